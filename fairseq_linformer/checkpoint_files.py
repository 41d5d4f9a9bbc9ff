"""Checkpoints as files: written whole, read without running code from them, rejected where they are damaged.

fairseq opens, copies and finds every file through its PathManager. ``CheckpointFiles`` replaces the native file system
there, so that all of fairseq's command lines handle checkpoints as described here.
"""

import argparse
import contextlib
import errno
import io
import os
import pickle
import shutil
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from fairseq.file_io import PathManager
from iopath.common.file_io import NativePathHandler

from .errors import UserError

LAST = "checkpoint_last.pt"  # fairseq's names
BEST = "checkpoint_best.pt"
UNFINISHED = ".tmp"  # what fairseq writes before it renames

# The pickled number that files of torch before 1.6 begin with.
_BEFORE_ZIP = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


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
            return UnfinishedFile(path)
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


def install_checkpoint_files() -> None:
    """Make all of fairseq's command lines handle checkpoints as this module does.

    torch.load then reads plain data that fairseq-train's checkpoints hold, while it still rejects everything that could
    run code (weights_only stays on): their arguments as an argparse.Namespace; and where a task is chosen by a
    correlation the best of it as one of numpy's numbers, whose module has another name before numpy 2.
    """
    scalar, (float64, _) = np.float64().__reduce__()
    scalars: list[tuple[Any, str]] = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    torch.serialization.add_safe_globals([argparse.Namespace, *scalars, np.dtype, type(float64)])
    PathManager.register_handler(CheckpointFiles())


class UnfinishedFile(io.BufferedWriter):
    """A file that has reached the disk when it is closed. Where that or its ``with`` block fails, it is removed.

    An error in writing, or Ctrl-C, is raised only on closing. torch would raise another one in its place, and fairseq
    would write the checkpoint a second and a third time into the same file. Where it does, closing fails, too.
    """

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "w"), 1 << 20)
        self._failure: BaseException | None = None

    def write(self, data: Any) -> int:
        self._try(super().write, data)
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._try(super().flush)

    def close(self) -> None:
        if self.closed:
            return
        self.flush()
        self._try(os.fsync, self.fileno())
        self._try(_check_begin, self.name)
        if self._failure is not None:
            self._discard()
            if isinstance(self._failure, OSError):
                self._failure.filename = self.name
            raise self._failure
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._discard()

    def _try(self, step: Callable[..., Any], *arguments: Any) -> None:
        """Do a step, unless one before it failed."""
        if self._failure is None:
            try:
                step(*arguments)
            except BaseException as error:
                self._failure = error

    def _discard(self) -> None:
        self.raw.close()
        Path(self.name).unlink(missing_ok=True)


def _check_begin(path: str) -> None:
    """Raise an error for an archive that follows the beginning of another: an interruption between two writes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if archive.infolist()[0].header_offset > 0:
                raise InterruptedError(errno.EINTR, "interrupted while it was written")


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint. Whenever this process is killed, `target` is either the old file or the new one."""
    partial = target.with_name(target.name + UNFINISHED)
    with source.open("rb") as whole, UnfinishedFile(str(partial)) as copy:
        shutil.copyfileobj(whole, copy, 1 << 20)
    partial.replace(target)


def check_whole(path: Path) -> None:
    """Check that a checkpoint is as it was written.

    Raises:
        DamagedCheckpointError: the file is not a checkpoint, or has changed.
        FileNotFoundError: there is no such file.
        UserError: its configuration refers to something outside of it.
    """
    with contextlib.suppress(pickle.UnpicklingError):  # this content is rejected when it is read
        read_whole(path)


def read_whole(path: Path, mmap: bool = True) -> Any:
    """Return the content of a checkpoint after a check; with `mmap` tensors stay in the file, if it is a zip archive.

    torch writes a zip archive with a checksum of every tensor, but does not compare it on reading. Files of torch
    before 1.6 have no checksums.

    Raises:
        pickle.UnpicklingError: it holds more than plain data.
        DamagedCheckpointError, FileNotFoundError, UserError: as ``check_whole``.
    """
    with path.open("rb") as stream:
        is_zip = stream.read(len(_BEFORE_ZIP)) != _BEFORE_ZIP
    if is_zip:
        _check_sums(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zip)
    except RuntimeError as error:  # torch's reader of zip archives is stricter than zipfile
        raise DamagedCheckpointError(f"{path} is not a complete checkpoint: {str(error).splitlines()[0]}") from error
    if isinstance(content, dict):
        for name in ("cfg", "args"):
            check_plain(content.get(name), str(path))
    return content


def _check_sums(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except Exception as error:  # zipfile raises nine kinds of them for damaged headers
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which an offset before the file's begin gives
            raise
        raise DamagedCheckpointError(f"{path} is not a complete checkpoint: cut short or damaged ({error})") from error
    if member is not None:
        raise DamagedCheckpointError(f"{path} is damaged: the checksum of {member} in it does not match")


def check_plain(options: Any, where: str) -> None:
    """Raise an error for options from a file that refer to something: OmegaConf would look up ``${oc.env:HOME}``.

    Args:
        options: plain data, in which a Namespace may stand; wherever OmegaConf finds text in it.
        where: the file, with which the message begins.
    """
    try:
        for name, text in _texts(options, ""):
            if "${" in text:
                shown = f"{name}={text!r:.100}"
                raise UserError(f"{where}: {shown} is not allowed: a file's option must be a value, not a reference")
    except RecursionError as error:
        raise UserError(f"{where}: its options are nested too deeply") from error


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield every text among options, with the dotted name of its option."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, name)
    elif isinstance(value, str):
        yield name, value
