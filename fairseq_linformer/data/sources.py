"""Where a data set comes from: a folder, an archive, or its official downloads, each as a folder to read."""

import contextlib
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import pooch

CACHE = "fairseq_linformer"  # name of the folder of downloads in the user's cache


@contextlib.contextmanager
def as_folder(source: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """The folder `source`, or a temporary one with the wanted files of the archive `source` (zip, tar, tar.*).

    Raises FileNotFoundError where there is neither, ValueError for a file that is no archive or a damaged one, and for
    an archive with a member that would leave the folder.
    """
    if source.is_dir():
        yield source
        return
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such folder or archive")
    with tempfile.TemporaryDirectory() as folder:
        unpack(source, Path(folder), wanted)
        yield Path(folder)


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Unpacks the wanted regular files of an archive into a folder; errors as in ``as_folder``."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder, [name for name in _inside(archive, zipped.namelist()) if wanted(name)])
        else:
            with tarfile.open(archive) as tarred:
                members = tarred.getmembers()
                _inside(archive, [member.name for member in members])
                files = [member for member in members if member.isfile() and wanted(member.name)]
                tarred.extractall(folder, files, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise ValueError(f"{archive} cannot be read as a zip or tar archive: {error}") from error


def _inside(archive: Path, names: list[str]) -> list[str]:
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[:1]:
            raise ValueError(f"{archive} is refused: its member {name!r} would leave the folder it is unpacked into")
    return names


def download(base: str, files: Mapping[str, str]) -> dict[str, Path]:
    """Downloads files below the address `base`, with a progress bar, three retries and a cache.

    Args:
        base: address of the official server, or of a mirror with the same paths.
        files: path below `base`, with the file's checksum (``sha256:…``).

    Returns:
        Each path, with the file in the cache (the folder ``fairseq_linformer`` in the user's cache folder).

    Raises:
        OSError: the server cannot be reached, or lacks a file.
        ValueError: a file has another checksum than the official one.
    """
    store = pooch.create(pooch.os_cache(CACHE), base.rstrip("/") + "/", registry=dict(files), retry_if_failed=3)
    pooch.get_logger().setLevel("WARNING")
    return {name: Path(store.fetch(name, progressbar=True)) for name in files}


def is_address(source: str) -> bool:
    """Whether a source is an address to download from."""
    return "://" in source
