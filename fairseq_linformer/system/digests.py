"""SHA-256 of files and folders: what tells one content from another, whatever its name and time."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20  # bytes
_LARGE, _BLOCKS = 1 << 28, 64  # bytes from which on a file of a folder is large, and blocks that are read of it


def digest_options(content: Mapping[str, Any]) -> str:
    """The digest of what can be written as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """The SHA-256 of a file; read once in a process, unless it is replaced or written to.

    Raises:
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    about = path.stat()
    version = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
    return _digest_content(path.absolute(), version)


@cache
def _digest_content(path: Path, version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _digest_large(file: Path) -> str:
    """The SHA-256 of a file's size and of blocks spread over it, its ends included: a corpus may have terabytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for block in range(_BLOCKS):
            stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def digest_folder(folder: Path, marks: Collection[str] = ()) -> str:
    """The SHA-256 of the names and digests of all files below a folder, hidden ones excepted.

    Of a file of more than 256 MiB its size counts, and 64 blocks of 1 MiB spread over it. Folders below it that hold a
    file named in `marks` are left out.

    Raises:
        FileNotFoundError: there is none.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [own for own in folders if not any(Path(place, own, mark).is_file() for mark in marks)]
        files += [Path(place, name) for name in names]
    own = {str(file.relative_to(folder)): file for file in files}
    shown = {name: file for name, file in own.items() if not Path(name).name.startswith(".")}
    large = {name for name, file in shown.items() if file.stat().st_size > _LARGE}
    return digest_options(
        {name: (_digest_large if name in large else digest_file)(file) for name, file in shown.items()}
    )
