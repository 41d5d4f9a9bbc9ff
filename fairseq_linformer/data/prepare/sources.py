"""Sources of a data set: a folder, an archive, or the official downloads, each as a folder to read."""

import contextlib
import errno
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from lzma import LZMAError
from pathlib import Path
from typing import IO, cast

from ...errors import UserError
from ...files import naming

CACHE = "fairseq_linformer"  # name of the folder of downloads in the user's cache
BLOCK = 1 << 20  # bytes that are read at once


Target = Callable[[str], str | None]  # maps the name of a member of an archive to its path in a folder, or None


@contextlib.contextmanager
def as_folder(source: Path, target: Target, name: str | None = None) -> Iterator[Path]:
    """Yield the folder `source`, or a temporary folder with files of the archive `source` (zip, tar, tar.*).

    Errors of the body that name a file in the temporary folder name the archive, or `name`, and the member instead.
    """
    if source.is_dir():
        yield source
        return
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such folder or archive")
    with tempfile.TemporaryDirectory() as folder, naming(folder, name or str(source)):
        unpack(source, Path(folder), target)
        yield Path(folder)


def unpack(archive: Path, folder: Path, target: Target) -> None:
    """Unpack the regular files of an archive that have a target into a folder.

    Raises:
        OSError: the disk is full, or cannot be read or written.
        UserError: the file is not an archive, or is damaged or encrypted.
    """
    try:
        for name, stream in _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive):
            if target_path := target(name):
                path = folder / target_path
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    shutil.copyfileobj(stream, copy)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, LZMAError, zlib.error, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk; errors of the readers are an invalid seek, or have no number
        raise UserError(f"{archive} cannot be read as a zip or tar archive: {error}") from error


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as zipped:
        if damaged := zipped.testzip():  # of all members, as a required one may have a damaged name
            raise zipfile.BadZipFile(f"{damaged} is damaged")
        yield from ((name, zipped.open(name)) for name in zipped.namelist())


def _tar_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as tarred:
        yield from ((file.name, cast("IO[bytes]", tarred.extractfile(file))) for file in tarred if file.isfile())
        while cast("IO[bytes]", tarred.fileobj).read(BLOCK):
            pass  # to the checksum of the whole archive, which is compared at its end


def download(base: str, files: Mapping[str, str]) -> dict[str, Path]:
    """Return files below the address `base` with the given checksums (``sha256:…``), in the cache or downloaded to it.

    Raises:
        OSError: the server cannot be reached, or lacks a file.
        UserError: a file does not have the official checksum, or the address has an unknown protocol.
    """
    import pooch  # imported here: tests on a GPU without a network prepare nothing

    store = pooch.create(pooch.os_cache(CACHE), base.rstrip("/") + "/", registry=dict(files), retry_if_failed=3)
    pooch.get_logger().setLevel("WARNING")
    try:
        return {name: Path(store.fetch(name, progressbar=True)) for name in files}
    except ValueError as error:  # pooch's message for both
        raise UserError(f"{base}: {error}") from error


def is_address(source: str) -> bool:
    return "://" in source
