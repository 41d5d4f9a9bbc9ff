"""Text files as a stream of lines: plain, .gz and .xz, checked as they are read.

Memory does not grow with the files; each line must fit into it.
"""

import contextlib
import gzip
import io
import lzma
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import UserError, join_truncated
from ..dictionaries import DICTIONARY_FILE

PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
SUFFIXES = (".txt", *PACKED)  # in lower or upper case
NO_TEXT = re.compile(r"\.(tar(\.\w+)?|tgz|txz|jsonl?|ndjson|csv|tsv|parquet|zst|zip|bz2)(\.[gx]z)?$", re.IGNORECASE)

# Text that is read, encoded and written at once: enough that passing it to another process costs little in comparison.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Chunk:
    """Some lines of the corpus, without white space around them; an empty line ends a document."""

    lines: list[str]
    bytes_read: int  # of text, after decompression


def find_files(names: Iterable[Path], held_out: Iterable[Path] = ()) -> list[Path]:
    """Return the files that `names` stand for: a file for itself, a folder for all text files below it, sorted.

    Hidden files and folders are no part of a folder: macOS and Jupyter keep their own there, also copies of texts.

    Args:
        names: of files and folders.
        held_out: files that no folder stands for, as they are to validate on.

    Raises:
        FileNotFoundError: there is no such file or folder, or a folder holds no text files.
        UserError: a file is a pipe or a device, which cannot be read twice, or an archive or a table by its name; or is
            named more than once.
    """
    excluded = set(map(os.path.realpath, held_out))
    files = [path for name in names for path in _files_of(name, excluded)]
    for path in files:
        if NO_TEXT.search(path.name):
            raise UserError(f"{path} is no plain text: unpack it, or write its texts to a .txt file")
    real = [os.path.realpath(path) for path in files]
    times = Counter(real)
    if twice := [str(path) for path, place in zip(files, real, strict=True) if times[place] > 1]:
        raise UserError(f"named more than once: {join_truncated(list(dict.fromkeys(twice)))}")
    return files


def _files_of(name: Path, excluded: Set[str]) -> list[Path]:
    if name.is_dir():
        below = sorted(path for path in _texts_below(name) if os.path.realpath(path) not in excluded)
        if not below:
            besides = " besides those to validate on" if excluded else ""
            raise FileNotFoundError(f"{name}: no files below this folder end in {', '.join(SUFFIXES)}{besides}")
        return below
    if not name.exists():
        raise FileNotFoundError(f"{name}: no such text file or folder")
    if not name.is_file():
        raise UserError(
            f"{name} is a pipe or device, which can be read only once: write the text to a file, or pass it to "
            "linformer prepare corpus as - (standard input)"
        )
    return [name]


def _texts_below(root: Path) -> Iterator[Path]:
    """Yield the text files below a folder, and below the folders that links in it lead to, each once.

    Raises:
        OSError: a folder cannot be read, or a link that may be one to texts leads nowhere.
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
            is_text = path.suffix.lower() in SUFFIXES and path.name != DICTIONARY_FILE
            if is_text and (real := os.path.realpath(path)) not in seen:
                seen.add(real)
                yield path


def _raise(error: OSError) -> None:
    raise error


def is_hidden(name: str) -> bool:
    """Return True for what an editor, a file system or a packer left: .ipynb_checkpoints, ._1.txt, __MACOSX."""
    return name.startswith(".") or name == "__MACOSX"


def _shown(names: Iterable[str]) -> list[str]:
    """Return the names that are not hidden, sorted, so that the same one of two links is followed everywhere."""
    return sorted(name for name in names if not is_hidden(name))


def read_chunks(files: Sequence[Path]) -> Iterator[Chunk]:
    """Read all lines of the files, in chunks of about CHUNK_BYTES.

    A blank line ends a document, and so does the end of a file that another one follows. Runs of blank lines count
    once, those before the first text not at all. Lines of zero-width characters alone are left out.

    Raises:
        OSError: a file cannot be read.
        UserError: text is not UTF-8 or has a zero byte, a compressed file is damaged, or a file holds no text. The
            message names the file, and the line where there is one.
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
    """Yield blocks of whole lines of a file, without the last line feed, and their size in bytes."""
    lines_before = 0
    with unpacked(path) as stream:
        while block := stream.read(CHUNK_BYTES) + stream.readline():
            if not lines_before:
                check_line_ends(block, str(path))
            try:
                text = block.decode("utf-8" if lines_before else "utf-8-sig")
            except UnicodeDecodeError as error:
                line = lines_before + block.count(b"\n", 0, error.start) + 1
                raise UserError(f"{path}: line {line} is not UTF-8: convert the file, as with iconv") from error
            if (zero := block.find(b"\0")) >= 0:  # UTF-16 is full of them
                line = lines_before + block.count(b"\n", 0, zero) + 1
                raise UserError(f"{path}: line {line} has a zero byte, which is no text: save the file as UTF-8")
            lines_before += block.count(b"\n")
            yield text.removesuffix("\n"), len(block)


def suffix_of(path: Path) -> str:
    """Return the ending of a file's name in small letters, below that of its packing (PACKED)."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in PACKED else suffix


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed where its name ends as that of a packed one (PACKED).

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


def decoded(content: bytes, where: str, *, mark: bool = False) -> str:
    """Decode UTF-8; `mark`: without the byte-order mark that some editors put at the start.

    Raises:
        UserError: it is not UTF-8. The message starts with `where`.
    """
    try:
        return content.decode("utf-8-sig" if mark else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error})") from error


def check_line_ends(start: bytes, where: str) -> None:
    """Raise a UserError for the start of a file whose lines end with carriage returns alone: it would be one line."""
    if b"\n" not in start and start.rstrip(b"\r").count(b"\r") > 1:
        raise UserError(f"{where}: its lines end with carriage returns alone: convert it with tr '\\r' '\\n'")


def is_blank(text: str) -> bool:
    """Return True if a text has nothing but white space and what no one sees: zero-width characters, byte-order marks.

    Or what sentencepiece reads as spaces: its own mark, and U+FFFD, which stands for what could not be decoded.
    """
    return all(one.isspace() or one in "\u2581\ufffd" or unicodedata.category(one) in ("Cf", "Cc") for one in text)
