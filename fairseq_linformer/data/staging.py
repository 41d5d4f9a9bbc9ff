"""A folder that appears under its name only when it is whole."""

import contextlib
import errno
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def staged_folder(out: Path, mark: str) -> Iterator[tuple[Path, IO[str]]]:
    """Gives `out`.partial to work in, and its open file `mark`; renames the folder to `out` when the body succeeds.

    After an error nothing is left. A killed run leaves `out`.partial, which the next one empties and takes over: the
    file `mark` says that the folder is ours. It is also locked, so that two runs do not write into each other.
    Raises ValueError if `out` is there and not empty, if `out`.partial is not ours, or another run is at work in it.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not an empty folder: nothing was changed; name another, or remove it")
    partial = out.with_name(out.name + ".partial")
    marked = partial / mark
    if partial.exists() and not marked.is_file() and (not partial.is_dir() or any(partial.iterdir())):
        raise ValueError(f"{partial} is in the way: it is no unfinished run (there is no {mark} in it); move it")
    partial.mkdir(parents=True, exist_ok=True)
    with marked.open("a", encoding="utf-8") as stream:
        _lock(stream, partial)
        stream.truncate(0)
        _empty(partial, keep=marked)
        try:
            yield partial, stream
            stream.flush()
            partial.rename(out)
        finally:
            # Gone already if it was renamed.
            shutil.rmtree(partial, ignore_errors=True)


def _lock(stream: IO[str], partial: Path) -> None:
    """Locks the file for as long as this process keeps it open; worker processes do not inherit such a lock."""
    try:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise ValueError(f"{partial}: another run is writing there") from error
        # Otherwise the file system knows no locks, which many clusters' do not: go on without.


def _empty(folder: Path, keep: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != keep:
            path.unlink()
