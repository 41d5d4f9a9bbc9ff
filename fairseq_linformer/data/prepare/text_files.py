"""Text files as a stream of lines: plain, .gz and .xz, checked as they are read.

Memory does not grow with the files. Each line must fit into it, so a line has at most LINE_BYTES.
"""

import contextlib
import gzip
import io
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import UserError
from ..dictionaries import DICTIONARY_FILE
from ..text import check_line_ends, first_of
from .examples import is_blank

PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
SUFFIXES = (".txt", *PACKED)  # in lower or upper case

# Names of files that are no text, in lower or upper case, and what to do with them.
_NO_TEXT = {
    r"\.(tar(\.\w+)?|tgz|txz)$": "is a tar archive: unpack it",
    r"\.(json|jsonl|ndjson|csv|tsv|parquet)(\.[gx]z)?$": "is no plain text: write its texts to a .txt file, each with "
    "a blank line after it",
    r"\.(zst|zip|bz2)(\.[gx]z)?$": "is compressed in another way than .gz and .xz: unpack it",
}

# Text that is read, encoded and written at once: enough that passing it to another process costs little in comparison.
CHUNK_BYTES = 1 << 20

# Each line is held in memory; a small compressed file may hold one of any length.
LINE_BYTES = 100_000_000


@dataclass(frozen=True)
class Chunk:
    """Some lines of the corpus, without white space around them; an empty line ends a document."""

    lines: list[str]
    bytes_read: int  # of text, after decompression


def find_files(names: Iterable[Path], held_out: Iterable[Path] = ()) -> list[Path]:
    """The files that `names` stand for: a file for itself, a folder for all text files below it, sorted.

    Hidden files and folders are no part of a folder: macOS and Jupyter keep their own there, also copies of texts.

    Args:
        names: of files and folders.
        held_out: files that no folder stands for: it may hold what is to validate on.

    Raises:
        FileNotFoundError: there is no such file or folder, or a folder holds no text files.
        UserError: a name is a pipe or a device, which cannot be read twice, or says that the file is no text, as that
            of a tar archive or of JSON; or a file is named more than once, as with the folder that it lies in.
    """
    other = set(map(os.path.realpath, held_out))
    found = [path for name in names for path in _files_of(name, other)]
    for path in found:
        for ending, remedy in _NO_TEXT.items():
            if re.search(ending, path.name, re.IGNORECASE):
                raise UserError(f"{path}: {remedy}")
    real = [os.path.realpath(path) for path in found]
    times = Counter(real)
    if twice := [str(path) for path, place in zip(found, real, strict=True) if times[place] > 1]:
        raise UserError(f"named more than once: {first_of(list(dict.fromkeys(twice)))}")
    return found


def _files_of(name: Path, held_out: Set[str]) -> list[Path]:
    if name.is_dir():
        below = sorted(path for path in _texts_below(name) if os.path.realpath(path) not in held_out)
        if not below:
            besides = " beside what is to validate on" if held_out else ""
            raise FileNotFoundError(f"{name}: no files below this folder end in {', '.join(SUFFIXES)}{besides}")
        return below
    if name.is_file():
        return [name]
    if name.exists():
        raise UserError(
            f"{name}: is a pipe or device and can be read only once: write the text to a file, or pass it to "
            "linformer prepare corpus as - (standard input)"
        )
    raise FileNotFoundError(f"{name}: no such text file or folder")


def _texts_below(root: Path) -> Iterator[Path]:
    """The text files below a folder, and below the folders that links in it lead to, each once.

    Raises:
        OSError: a folder cannot be read, or a link leads nowhere that might stand for a text or for a folder of some.
    """
    seen = set()
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_raise):
        real = os.path.realpath(folder)
        if real in seen:  # two links to one folder, or a link to a folder above it
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = _shown(subfolders)
        for path in (Path(folder, file) for file in _shown(files)):
            if path.suffix.lower() in (*SUFFIXES, "") and path.is_symlink() and not path.exists():
                raise FileNotFoundError(f"{path}: a link to {path.readlink()}, which is not there")
            # A prepared folder holds a dict.txt, which is not text to train on.
            is_text = path.suffix.lower() in SUFFIXES and path.name != DICTIONARY_FILE and path.is_file()
            if is_text and (real := os.path.realpath(path)) not in seen:
                seen.add(real)
                yield path


def _raise(error: OSError) -> None:
    raise error


def is_hidden(name: str) -> bool:
    """Whether an editor, a file system or a packer put it there: .ipynb_checkpoints, ._1.txt, __MACOSX."""
    return name.startswith(".") or name == "__MACOSX"


def _shown(names: Iterable[str]) -> list[str]:
    """The names that are not hidden, sorted, so that the same one of two links is followed everywhere."""
    return sorted(name for name in names if not is_hidden(name))


def read_chunks(files: Sequence[Path]) -> Iterator[Chunk]:
    """All lines of the files, in chunks of about CHUNK_BYTES.

    A blank line ends a document, and so does the end of a file that another one follows. Runs of blank lines count
    once, those before the first text not at all. Lines of zero-width characters alone are left out.

    Raises:
        OSError: a file cannot be read.
        UserError: text is not UTF-8 or has a zero byte, a line is too long, a compressed file is damaged, or a file
            holds no text. The message names the file, and the line where there is one.
    """
    document_open = False
    for path in files:
        if document_open:
            yield Chunk([""], 0)
            document_open = False
        holds_text = False
        for text, size in _read_text(path):
            lines = []
            for raw_line in text.split("\n"):
                line = raw_line.strip()
                # Most lines begin with a letter, which is seen ten times as fast.
                if line and not line[0].isalnum() and is_blank(line):
                    continue
                if line or document_open:
                    lines.append(line)
                document_open = bool(line)
                holds_text = holds_text or document_open
            yield Chunk(lines, size)
        if not holds_text:
            raise UserError(f"{path}: holds no text (it is empty, or has only blank lines)")


def _read_text(path: Path) -> Iterator[tuple[str, int]]:
    """Blocks of whole lines of one file, without the last line feed, and their size in bytes."""
    lines_before = 0
    for block in _read_blocks(path):
        try:
            text = block.decode("utf-8")
        except UnicodeDecodeError as error:
            line = lines_before + block.count(b"\n", 0, error.start) + 1
            raise UserError(
                f"{path}: line {line} is not UTF-8 (byte 0x{block[error.start]:02x}); convert the file, "
                "for example with iconv"
            ) from error
        if (zero := block.find(b"\0")) >= 0:  # UTF-16 is full of them
            line = lines_before + block.count(b"\n", 0, zero) + 1
            raise UserError(
                f"{path}: line {line} has a zero byte, which is no text: save the file as UTF-8, or remove such bytes "
                "with tr -d '\\0'"
            )
        if lines_before == 0:
            check_line_ends(block, str(path))
            text = text.removeprefix("\ufeff")  # a byte-order mark of an editor, not text
        lines_before += block.count(b"\n")
        yield text.removesuffix("\n"), len(block)


def _read_blocks(path: Path) -> Iterator[bytes]:
    """The bytes of one file, decompressed, in blocks that end where a line ends."""
    with unpacked(path) as stream:
        while block := stream.read(CHUNK_BYTES):
            rest = stream.readline(LINE_BYTES)
            if len(rest) == LINE_BYTES:
                raise UserError(f"{path}: holds a line of more than {LINE_BYTES:,} bytes; split it into several")
            yield block + rest


def suffix_of(path: Path) -> str:
    """The ending of a file's name in small letters, below that of its packing (PACKED)."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in PACKED else suffix


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed where its name says that it is packed (PACKED).

    Raises:
        OSError: it cannot be read.
        UserError: while it is read: it is damaged.
    """
    unpack = PACKED.get(path.suffix.lower())
    try:
        with io.BufferedReader(unpack(path), CHUNK_BYTES) if unpack else path.open("rb") as stream:
            yield stream
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: truncated or corrupt archive ({error})") from error
