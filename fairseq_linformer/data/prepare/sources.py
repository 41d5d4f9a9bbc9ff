"""Sources of a dataset: a folder, an archive, or the official downloads, each as a folder to read.

The splits that are read from there report how they differ from the official ones.
"""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from ...errors import UserError, naming
from ...system.files import leaves_folder
from .examples import Example, Label

CACHE = "fairseq_linformer"  # name of the folder of downloads in the user's cache

# A small archive may unpack to any size; the official ones are far smaller than these. In a tar archive, the files that
# are not wanted are decompressed, too, though not written.
UNPACKED_BYTES = 1_000_000_000
SCANNED_BYTES = 10 * UNPACKED_BYTES
HEADER_BYTES = 1_000_000  # of a member of a tar archive: a long name, say

_DECOMPRESSORS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_OF_THE_DISK = {errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS}  # rather than of the archive


class SourceSplit:
    """The rows of a split, to be read once, and what was read of it.

    Args:
        rows: with None for each broken one.

    Attributes:
        examples: the rows, without broken ones.
        official_rows: how many the official split has.
        official_even: whether it has the same number of rows per label.
        labels: how many rows were read with each.
        broken: how many were left out.
    """

    def __init__(self, rows: Iterator[Example | None], official_rows: int, official_even: bool = False) -> None:
        self.official_rows, self.official_even = official_rows, official_even
        self.labels: Counter[Label | None] = Counter()
        self.broken = 0
        self.examples = self._counted(rows)

    def _counted(self, rows: Iterator[Example | None]) -> Iterator[Example]:
        for row in rows:
            if row is None:
                self.broken += 1
            else:
                self.labels[row.label] += 1
                yield row

    def report(self, name: str) -> str:
        """One line: what was read, and what the official split has."""
        read, broken = self.labels.total(), self.broken
        uneven = self.official_even and len(set(self.labels.values())) > 1
        labels = [f"{count:,} {label}" for label, count in self.labels.items()] if uneven else []
        whole = read == self.official_rows and not uneven
        official = "as in the official data" if whole else f"officially {self.official_rows:,}"
        remarks = [official, *(["the same number per label"] if uneven else [])]
        remarks += [f"{broken} broken rows left out"] if broken else []
        return f"{name}: {', '.join([f'{read:,} rows', *labels])} ({', '.join(remarks)})"


@contextlib.contextmanager
def as_folder(source: Path, wanted: Callable[[str], bool], name: str | None = None) -> Iterator[Path]:
    """The folder `source`, or a temporary one with the wanted files of the archive `source` (zip, tar, tar.*).

    In the body, errors that name a file in the temporary folder name the archive, or `name`, and the member.

    Raises:
        FileNotFoundError: there is neither.
        UserError: the file is not an archive, or it is damaged or encrypted; a member would leave the folder; or it
            unpacks to too many bytes.
    """
    if source.is_dir():
        yield source
        return
    if not source.is_file():
        raise FileNotFoundError(f"{source}: no such folder or archive")
    with tempfile.TemporaryDirectory() as folder, naming(folder, name or str(source)):
        unpack(source, Path(folder), wanted)
        yield Path(folder)


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Unpacks the wanted regular files of an archive into a folder.

    Raises:
        OSError: the disk is full, or cannot be read or written.
        UserError: as ``as_folder``.
    """
    # Not by pooch's processors: they have no limit of size, and leave what they unpacked in the cache.
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _check_inside(archive, zipped.namelist())
                regular = [file for file in zipped.infolist() if not stat.S_ISLNK(file.external_attr >> 16)]
                chosen = [file for file in regular if wanted(file.filename)]
                _check_size(archive, sum(file.file_size for file in chosen), UNPACKED_BYTES)
                _check_size(archive, sum(file.file_size for file in zipped.infolist()), SCANNED_BYTES)
                if damaged := zipped.testzip():  # of all members: a wanted one may have a damaged name
                    raise zipfile.BadZipFile(f"{damaged} is damaged")
                zipped.extractall(folder, [file.filename for file in chosen])
        else:
            with _decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tarred:
                members = list(_scanned(archive, tarred))
                _read_to_end(archive, stream)
                _check_inside(archive, [member.name for member in members])
                files = [member for member in members if member.isfile() and wanted(member.name)]
                _check_size(archive, sum(member.size for member in files), UNPACKED_BYTES)
                for member in files:  # not by extractall: Debian 12's Python, 3.11.2, has no filters for it
                    path = folder / member.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("wb") as copy:
                        shutil.copyfileobj(cast("IO[bytes]", tarred.extractfile(member)), copy)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        raise UserError(f"{archive} cannot be read as a zip or tar archive: {error}") from error
    except RuntimeError as error:  # encryption, or (NotImplementedError) an unknown compression
        raise UserError(f"{archive} cannot be unpacked here: {error}") from error


def _decompressed(archive: Path) -> BinaryIO:
    """The tar archive, decompressed."""
    with archive.open("rb") as stream:
        start = stream.read(6)
    compressed = next((magic for magic in _DECOMPRESSORS if start.startswith(magic)), None)
    return _Tar(archive.open("rb", buffering=0) if compressed is None else _DECOMPRESSORS[compressed](archive))


class _Tar(io.BufferedReader):
    """A tar archive with short headers only: tarfile reads a whole header into memory, however long it claims to be."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes: at most {HEADER_BYTES} are allowed")
        return super().read(size)


def _scanned(archive: Path, tarred: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """All members. To find the next one, a member is decompressed, wanted or not: its size is checked before that."""
    total = 0
    for member in tarred:
        total += member.size
        _check_size(archive, total, SCANNED_BYTES)
        yield member


def _read_to_end(archive: Path, stream: BinaryIO) -> None:
    """Reads past the last member: the checksum of the whole archive is there, and is compared when it is reached."""
    total = stream.tell()
    while block := stream.read(HEADER_BYTES):
        total += len(block)
        _check_size(archive, total, SCANNED_BYTES)


def _check_size(archive: Path, size: int, allowed: int) -> None:
    if size > allowed:
        raise UserError(f"{archive} is refused: it unpacks to {size:,} bytes or more; at most {allowed:,} are allowed")


def _check_inside(archive: Path, names: list[str]) -> None:
    for name in names:
        if leaves_folder(name):
            raise UserError(f"{archive} is refused: its member {name!r} would leave the folder it is unpacked into")


def download(base: str, files: Mapping[str, str]) -> dict[str, Path]:
    """Downloads files below the address `base`, with a progress bar, three retries and a cache.

    Args:
        base: address of the official server, or of a mirror with the same paths.
        files: paths below `base`, with the checksums of the files (``sha256:…``).

    Returns:
        Each path, with its file in the cache (the folder ``fairseq_linformer`` in the user's cache folder).

    Raises:
        OSError: the server cannot be reached, or lacks a file.
        UserError: a file does not have the official checksum, or the address has an unknown protocol.
    """
    import pooch  # here: tests of a GPU, on a machine without a network, prepare nothing

    store = pooch.create(pooch.os_cache(CACHE), base.rstrip("/") + "/", registry=dict(files), retry_if_failed=3)
    pooch.get_logger().setLevel("WARNING")
    try:
        return {name: Path(store.fetch(name, progressbar=True)) for name in files}
    except ValueError as error:  # pooch's word for both
        raise UserError(f"{base}: {error}") from error


def is_address(source: str) -> bool:
    """Whether a source is an address to download from."""
    return "://" in source
