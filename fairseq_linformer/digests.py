"""SHA-256 of options, files and folders."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20  # bytes
_LARGE, _BLOCKS = 1 << 28, 64  # size in bytes of a large file, and the number of its blocks that are digested


def digest_options(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of options, serialized as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file. Each version of the file is read only once per process."""
    status = path.stat()
    version = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return _digest_content(path.absolute(), version)


@cache
def _digest_content(path: Path, version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _digest_large(file: Path) -> str:
    """Return the SHA-256 of a file's size and of evenly spaced blocks; a corpus may have terabytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for block in range(_BLOCKS):
            stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def digest_folder(folder: Path, marks: Collection[str] = ()) -> str:
    """Return the SHA-256 of the names and digests of all files below a folder, except hidden ones.

    For a file of more than 256 MiB, its size and 64 evenly spaced blocks of 1 MiB are digested. Subfolders with a file
    named in `marks` are skipped.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = []
    for folder_path, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not any(Path(folder_path, name, mark).is_file() for mark in marks)]
        files += [Path(folder_path, name) for name in names]
    digests = {}
    for file in files:
        if not file.name.startswith("."):
            digest = _digest_large if file.stat().st_size > _LARGE else digest_file
            digests[str(file.relative_to(folder))] = digest(file)
    return digest_options(digests)
