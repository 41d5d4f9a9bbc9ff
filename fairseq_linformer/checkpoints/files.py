"""Checkpoints as files: written whole or not at all, and refused where they have changed since.

fairseq opens, copies and finds every file through its PathManager. ``CheckpointFiles`` replaces the native file system
there, so what this module says holds for all of fairseq's command lines.
"""

import contextlib
import errno
import io
import logging
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import torch
from iopath.common.file_io import NativePathHandler

from ..errors import UserError
from ..system.state import check_plain

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"  # fairseq's names
BEST = "checkpoint_best.pt"
CRASHED = "crash.pt"
UNFINISHED = ".tmp"  # what fairseq writes before it renames

RUNS_CODE = "is not loaded: it holds more than plain data, which could run code"

# What zipfile raises for damaged headers: unknown compression, encryption, sizes beyond the file.
_DAMAGED_ZIP: tuple[type[Exception], ...] = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError)
_DAMAGED_ZIP += (ValueError, OverflowError, OSError, zlib.error, struct.error)
_BEFORE_ZIP = (
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled number that files of torch before 1.6 begin with
)


class DamagedCheckpointError(UserError):
    """A checkpoint is cut short, or its content is not what was written."""


class CheckpointFiles(NativePathHandler):
    """The native file system, with safe checkpoints (``*.pt``).

    fairseq writes a checkpoint as ``NAME.pt.tmp`` and renames it: here the file has reached the disk before that.
    fairseq copies it to its other names in place: here each copy is written and renamed, too. A checkpoint is checked
    before it is read.
    """

    def _open(self, path: str, mode: str = "r", buffering: int = -1, **kwargs: Any) -> IO[Any]:
        if mode == "wb" and str(path).endswith(f".pt{UNFINISHED}"):
            return _UnfinishedFile(path)
        return super()._open(path, mode, buffering, **kwargs)

    def _copy(self, src_path: str, dst_path: str, overwrite: bool = False, **kwargs: Any) -> bool:
        if not dst_path.endswith(".pt") or not overwrite:
            return super()._copy(src_path, dst_path, overwrite, **kwargs)
        copy_checkpoint(Path(src_path), Path(dst_path))
        return True

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        if str(path).endswith(".pt"):
            check_whole(Path(path))
        return super()._get_local_path(path, force, **kwargs)


class _UnfinishedFile(io.BufferedWriter):
    """A file that has reached the disk when it is closed. Where that or its ``with`` block fails, it is removed.

    An error in writing is raised only on closing. torch would raise another one in its place, and fairseq would write
    the checkpoint a second and a third time into the same file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "w"), 1 << 20)
        self._path = path
        self._failure: OSError | None = None

    def write(self, data: Any) -> int:
        if self._failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self._failure = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        if self._failure is None:
            try:
                super().flush()
            except OSError as error:
                self._failure = error

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        if self._failure is None:
            try:
                os.fsync(self.fileno())
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            self._discard()
            raise OSError(self._failure.errno, self._failure.strerror, self._path)
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _discard(self) -> None:
        self.raw.close()
        Path(self._path).unlink(missing_ok=True)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint. Whenever this process is killed, `target` is either the old file or the new one."""
    partial = target.with_name(target.name + UNFINISHED)
    with source.open("rb") as whole, _UnfinishedFile(str(partial)) as copy:
        shutil.copyfileobj(whole, copy, 1 << 20)
    partial.replace(target)


def check_whole(path: Path) -> None:
    """Checks that a checkpoint is as it was written.

    torch writes a zip archive with a checksum of every tensor, but does not compare it on reading. Files of torch
    before 1.6 have no checksums.

    Raises:
        DamagedCheckpointError: the file is not a checkpoint, or has changed.
        FileNotFoundError: there is no such file.
        UserError: its configuration refers to something outside of it.
    """
    with contextlib.suppress(pickle.UnpicklingError):  # this content is refused when it is read
        read_whole(path)


def read_whole(path: Path) -> Any:
    """The content of a checkpoint, whose configuration refers to nothing; its tensors stay in the file where it is a
    zip archive.
    """
    if _is_old(path):
        content = torch.load(path, map_location="cpu", weights_only=True)
    else:
        _check_sums(path)
        content = _read_mapped(path)
    if isinstance(content, dict):
        for name in ("cfg", "args"):
            check_plain(content.get(name), str(path))
    return content


def _check_sums(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except _DAMAGED_ZIP as error:
        if (
            isinstance(error, OSError) and error.errno != errno.EINVAL
        ):  # EINVAL: an offset before the beginning of the file
            raise
        raise DamagedCheckpointError(
            f"{path} is not a complete checkpoint: it is cut short or damaged ({error})"
        ) from error
    if member is not None:
        raise DamagedCheckpointError(f"{path} is damaged: the checksum of {member} in it does not match")


def _is_old(path: Path) -> bool:
    """Whether a file is of torch before 1.6: not a zip archive, so it cannot be mapped."""
    with path.open("rb") as stream:
        return stream.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP


def _read_mapped(path: Path) -> Any:
    """The content of a checkpoint, with its tensors left in the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # torch's reader of zip archives is stricter than zipfile
        raise DamagedCheckpointError(f"{path} is not a complete checkpoint: {str(error).splitlines()[0]}") from error
