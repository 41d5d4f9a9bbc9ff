"""Atomic writes of folders and files, locks, and checks of paths that fairseq cannot use."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import UserError

_PARENT = Path(__file__).resolve().parents[1]
_INSTALLED = _PARENT / "fairseq_linformer_configs"  # by a wheel: setup.py
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _PARENT / "configs"  # folder of the configurations

LOCK_FILE = ".lock"  # in a folder that only one process at a time may use


@contextlib.contextmanager
def staged_folder(out: Path, mark: str) -> Iterator[tuple[Path, IO[str]]]:
    """Create the folder `out`.partial, and rename it to `out` when the body succeeds.

    After an error the folder is removed. If only the renaming fails, `out`.partial is complete and stays. A killed run
    leaves `out`.partial, which the next run empties and uses. The file `mark` identifies such a folder; it is locked,
    so that two runs cannot write to one folder. If `out` is a link, its target is written.

    Yields:
        The folder `out`.partial, and its file `mark`, open for writing.

    Raises:
        OSError: the folder cannot be created, as on a read-only file system, or cannot be renamed.
        UserError: `out` is not an empty folder, or is a mount point or the current folder; `out`.partial is not an
            unfinished run; or another run is writing to it.
    """
    out = out.resolve()
    forbidden = "a mount point" if os.path.ismount(out) else "the current folder" if out == Path.cwd() else None
    if forbidden is not None:
        raise UserError(f"{out} is {forbidden}, which cannot be replaced: name a folder inside it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder: nothing was changed; name another, or remove it")
    partial = out.with_name(out.name + ".partial")
    mark_file = partial / mark
    if partial.exists() and not mark_file.is_file() and (not partial.is_dir() or any(partial.iterdir())):
        raise UserError(f"{partial} exists and is not an unfinished run (it has no {mark}): move it")
    partial.mkdir(parents=True, exist_ok=True)
    with mark_file.open("a", encoding="utf-8") as stream:
        lock(stream, f"{partial}: another run is writing there")
        # Emptied before the mark: a run that finished since the mark was opened has renamed the folder, and this fails.
        for path in partial.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != mark_file:
                path.unlink()
        stream.truncate(0)
        try:
            yield partial, stream
            stream.flush()
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno and not error.filename:  # a full disk's has no name
                raise OSError(error.errno, error.strerror, str(out)) from error
            raise
        try:
            partial.rename(out)
        except OSError as error:
            raise OSError(
                f"{out}: the folder cannot be renamed to this ({error.strerror}); the complete result is in {partial}: "
                "move it before the next run"
            ) from error


def check_path(path: Path | str) -> None:
    """Reject a path that a fairseq configuration cannot hold.

    OmegaConf reads ${ as a reference to another option. Escaping it does not help: fairseq resolves a configuration
    once before training and once per saved checkpoint, and each time removes one escape.

    Raises:
        UserError: the path contains ${.
    """
    if "${" in str(path):
        raise UserError(f"{one_line(path)}: a path with ${{ in it is not allowed: fairseq reads it as a reference")


def check_data_path(path: Path) -> None:
    """Reject a data folder whose path fairseq would misread: a colon separates two folders.

    Raises:
        UserError: the path contains a colon or ${.
    """
    check_path(path)
    if os.pathsep in str(path):
        raise UserError(f"{one_line(path)}: a data folder with a colon is not allowed: fairseq splits the path at it")


def lock(stream: IO[str], busy: str, inherited: bool = False) -> None:
    """Lock a file for as long as this process keeps it open. Do nothing on a file system without locks.

    Args:
        stream: the open file.
        busy: error message if another process holds the lock.
        inherited: True if processes that inherit the open file share the lock, which lasts until the last one ends.

    Raises:
        UserError: another process holds the lock.
    """
    try:
        (fcntl.flock if inherited else fcntl.lockf)(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UserError(busy) from error
        # Any other error means that the file system has no locks, as on many clusters.


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically: if this process is killed, `path` is either the old file or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        OSError: the file cannot be read.
        UserError: it is not JSON, or not an object.
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: it must contain an object")
    return content


@contextlib.contextmanager
def naming(path: str, name: str) -> Iterator[None]:
    """Replace the path of a temporary file or folder by a name in error messages."""
    try:
        yield
    except (UserError, OSError) as error:
        if path not in str(error):
            raise
        raise type(error)(str(error).replace(f"{path}{os.sep}", f"{name}: ").replace(path, name)) from error


def one_line(text: object) -> str:
    """Return user input, such as a path, with its line breaks replaced by spaces."""
    return " ".join(str(text).splitlines())
