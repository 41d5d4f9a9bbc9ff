"""A folder that appears under its name only when it is whole."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import UserError, one_line

LOCK_FILE = ".lock"  # in a folder that one process at a time works in


@contextlib.contextmanager
def staged_folder(out: Path, mark: str) -> Iterator[tuple[Path, IO[str]]]:
    """Gives `out`.partial to work in, and its open file `mark`; renames the folder to `out` when the body succeeds.

    After an error nothing is left, except where the renaming alone fails: then `out`.partial is whole, and stays. A
    killed run leaves `out`.partial too, which the next one empties and takes over: the file `mark` says that the
    folder is ours. It is also locked, so that two runs do not write into each other.
    Raises ValueError if `out` is there and not empty, or a mount point, if `out`.partial is not ours, or if another run
    is at work in it; OSError if no folder can be made there, as on a read-only file system.
    """
    if os.path.ismount(out):
        raise UserError(f"{out} is a mount point, which cannot be replaced: name a folder inside it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder: nothing was changed; name another, or remove it")
    partial = out.with_name(out.name + ".partial")
    marked = partial / mark
    if partial.exists() and not marked.is_file() and (not partial.is_dir() or any(partial.iterdir())):
        raise UserError(f"{partial} is in the way: it is no unfinished run (there is no {mark} in it); move it")
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # its file may be a folder above, and its reason one of /proc, which takes no folders
        raise OSError(f"{out}: no folder can be made there ({error.strerror}: {error.filename})") from error
    with marked.open("a", encoding="utf-8") as stream:
        lock(stream, f"{partial}: another run is writing there")
        _check_unmoved(stream, marked)
        stream.truncate(0)
        _empty(partial, keep=marked)
        try:
            yield partial, stream
            stream.flush()
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _rename(partial, out)


def check_path(path: Path | str) -> None:
    """ValueError for a path that cannot be put into a configuration of fairseq's.

    OmegaConf takes ${ for the start of another option's name. An escape is used up each time that fairseq resolves a
    configuration, once before training and once for each checkpoint that it writes, so none lasts.
    """
    if "${" in str(path):
        raise UserError(
            f"{one_line(path)}: a path with ${{ in it is not allowed: fairseq takes that for an option's name"
        )


def check_data_path(path: Path) -> None:
    """ValueError for a data folder that fairseq cannot be told, as its name is typed.

    fairseq takes a colon for the end of one folder's name, and the start of the next.
    """
    check_path(path)
    if os.pathsep in str(path):
        raise UserError(
            f"{one_line(path)}: a data folder with a colon in its path is not allowed: fairseq splits it there"
        )


def lock(stream: IO[str], busy: str, inherited: bool = False) -> None:
    """Locks a file for as long as this process keeps it open; worker processes do not inherit such a lock.

    With `inherited` they do: it lasts until the last process to which the open file was passed has ended.
    Raises ValueError, with the message `busy`, if another process holds it.
    """
    try:
        (fcntl.flock if inherited else fcntl.lockf)(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UserError(busy) from error
        # Otherwise the file system knows no locks, which many clusters' do not: go on without.


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there as it was, or as it shall be, whenever this process is killed."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _check_unmoved(stream: IO[str], marked: Path) -> None:
    """Between opening and locking, the run that held the lock may have renamed or removed the folder."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(stream.fileno()), marked.stat()):
            return
    raise UserError(f"{marked.parent}: another run has just finished there")


def _rename(partial: Path, out: Path) -> None:
    try:
        partial.rename(out)
    except OSError as error:
        raise OSError(
            f"{out}: the folder cannot be given this name ({error.strerror}); the complete result lies in {partial}: "
            "move it before the next run"
        ) from error


def _empty(folder: Path, keep: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != keep:
            path.unlink()
