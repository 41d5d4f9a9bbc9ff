"""Checkpoint files: atomic writing, reading without running code, and rejection of damaged files.

fairseq opens, copies and finds every file through its PathManager. ``CheckpointFiles`` replaces its native file system,
so that all of fairseq's command lines handle checkpoints this way.
"""

import argparse
import contextlib
import errno
import io
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from fairseq.file_io import PathManager
from iopath.common.file_io import NativePathHandler

from .errors import UserError

LAST = "checkpoint_last.pt"  # fairseq's names
BEST = "checkpoint_best.pt"
UNFINISHED = ".tmp"  # suffix of fairseq's files before it renames them

# The first bytes of files of torch before 1.6, a pickled number.
_BEFORE_ZIP = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


class DamagedCheckpointError(UserError):
    """Error for a truncated or changed checkpoint."""


class CheckpointFiles(NativePathHandler):
    """Native file system with safe checkpoints (``*.pt``).

    fairseq writes a checkpoint as ``NAME.pt.tmp`` and renames it: this class flushes the file to disk first. fairseq
    copies it in place to its other names: this class writes and renames each copy, too. A checkpoint is verified before
    it is read.
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

    torch.load then also accepts two types of plain data in fairseq-train's checkpoints: arguments in an
    argparse.Namespace, and a best correlation as a numpy scalar, whose module has another name before numpy 2.
    weights_only stays on, so that everything that could run code is still rejected.
    """
    scalar, (float64, _) = np.float64().__reduce__()
    scalars: list[tuple[Any, str]] = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
    torch.serialization.add_safe_globals([argparse.Namespace, *scalars, np.dtype, type(float64)])
    PathManager.register_handler(CheckpointFiles())


class UnfinishedFile(io.BufferedWriter):
    """File that is flushed to disk when it is closed, and removed if writing or its ``with`` block fails.

    A write error, or Ctrl-C, is raised only on closing. Otherwise torch would replace it by another error, and fairseq
    would write the checkpoint again to the same file, up to three times. Closing such a file raises an error, too.
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
        """Call a function, unless an earlier call failed."""
        if self._failure is None:
            try:
                step(*arguments)
            except BaseException as error:
                self._failure = error

    def _discard(self) -> None:
        self.raw.close()
        Path(self.name).unlink(missing_ok=True)


def _check_begin(path: str) -> None:
    """Raise an error for an archive that follows an unfinished one, after an interruption between two writes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if archive.infolist()[0].header_offset > 0:
                raise InterruptedError(errno.EINTR, "interrupted while it was written")


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint atomically: if this process is killed, `target` is either the old file or the new one."""
    partial = target.with_name(target.name + UNFINISHED)
    with source.open("rb") as source_file, UnfinishedFile(str(partial)) as copy:
        shutil.copyfileobj(source_file, copy, 1 << 20)
    partial.replace(target)


def check_whole(path: Path) -> None:
    """Check that a checkpoint is complete and unchanged; raise the errors of ``read_whole``."""
    with contextlib.suppress(pickle.UnpicklingError):  # reading the content later rejects it
        read_whole(path)


def read_whole(path: Path, mmap: bool = True) -> Any:
    """Return the content of a checkpoint after a check; with `mmap`, tensors of a zip archive stay in the file.

    torch writes a zip archive with a checksum of every tensor, but does not compare it on reading. Files of torch
    before 1.6 have no checksums.

    Raises:
        DamagedCheckpointError: the file is not a checkpoint, or was changed.
        FileNotFoundError: the file does not exist.
        pickle.UnpicklingError: the file contains more than plain data.
        UserError: the configuration contains a reference.
    """
    with path.open("rb") as stream:
        is_zip = stream.read(len(_BEFORE_ZIP)) != _BEFORE_ZIP
    if is_zip:
        _check_sums(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zip)
    except (pickle.UnpicklingError, OSError, MemoryError):
        raise
    except Exception as error:  # the type depends on what is damaged; torch's reader is stricter than zipfile
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DamagedCheckpointError(f"{path} is not a complete checkpoint: {reason}") from error
    if isinstance(content, dict):
        for name in ("cfg", "args"):
            check_plain(content.get(name), str(path))
    return content


def _check_sums(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
    except Exception as error:  # zipfile raises nine types of errors for damaged headers
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a negative offset
            raise
        raise DamagedCheckpointError(f"{path} is not a complete checkpoint: cut short or damaged ({error})") from error
    if member is not None:
        raise DamagedCheckpointError(f"{path} is damaged: the checksum of {member} in it does not match")


def check_plain(options: Any, file: str) -> None:
    """Raise an error for references in options from a file: OmegaConf would resolve ``${oc.env:HOME}``.

    Args:
        options: plain data, which may contain a Namespace.
        file: its name in the message.
    """
    try:
        reference = re.search(r".{,100}\$\{.{,100}", repr(options))
    except RecursionError as error:
        raise UserError(f"{file}: its options are nested too deeply") from error
    if reference:
        raise UserError(f"{file}: {reference[0]} is not allowed: a file's option must be a value, not a reference")
