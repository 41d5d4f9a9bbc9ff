"""Text files as a stream of lines: plain, .gz and .xz, checked during reading. Each line must fit into memory."""

import contextlib
import gzip
import io
import lzma
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import UserError
from ..dictionaries import DICTIONARY_FILE

PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
SUFFIXES = (".txt", *PACKED)  # in lower or upper case
NO_TEXT = re.compile(r"\.(tar(\.\w+)?|tgz|txz|jsonl?|ndjson|csv|tsv|parquet|zst|zip|bz2)(\.[gx]z)?$", re.IGNORECASE)

# Text that is read, encoded and written at once: enough that passing it to another process costs little in comparison.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Chunk:
    """Lines of the corpus, without white space around them; an empty line ends a document."""

    lines: list[str]
    bytes_read: int  # of text, after decompression


def find_files(names: Iterable[Path], held_out: Iterable[Path] = ()) -> list[Path]:
    """Return the text files for `names`: a file for itself, a folder for all text files below it, sorted.

    Hidden files and folders are left out: macOS and Jupyter write some, also copies of texts. So are the files of
    `held_out`, for validation, unless `names` has them.

    Raises:
        FileNotFoundError: there is no such file or folder, or a folder holds no text files.
        UserError: a file is an archive or a table by its name, or is named more than once.
    """
    excluded = set(map(os.path.realpath, held_out))
    files: list[Path] = []
    for name in names:
        if name.is_dir():
            texts = sorted(path for path in _texts_below(name) if os.path.realpath(path) not in excluded)
            if not texts:
                raise FileNotFoundError(f"{name}: no files below this folder end in {', '.join(SUFFIXES)}")
            files += texts
        elif name.is_file():
            files.append(name)
        else:  # the text is read twice, which a pipe does not allow
            raise FileNotFoundError(f"{name}: no such text file or folder (of a pipe, give - and standard input)")
    counts = Counter(map(os.path.realpath, files))
    for path in files:
        if NO_TEXT.search(path.name):
            raise UserError(f"{path} is no plain text: unpack it, or write its texts to a .txt file")
        if counts[os.path.realpath(path)] > 1:
            raise UserError(f"named more than once: {path}")
    return files


def _texts_below(root: Path) -> Iterator[Path]:
    """Yield the text files below a folder, and below the folders that its links lead to, each once."""
    visited = set()
    for folder, subfolders, files in os.walk(root, followlinks=True, onerror=_raise):
        subfolders[:] = [] if os.path.realpath(folder) in visited else sorted(filterfalse(is_hidden, subfolders))
        for path in (Path(folder, file) for file in sorted(filterfalse(is_hidden, files))):
            # A prepared folder holds a dict.txt, which is not text to train on.
            is_text = path.suffix.lower() in SUFFIXES and path.name != DICTIONARY_FILE
            if is_text and os.path.realpath(path) not in visited:
                visited.add(os.path.realpath(path))
                yield path
        visited.add(os.path.realpath(folder))


def _raise(error: OSError) -> None:
    raise error


def is_hidden(name: str) -> bool:
    """Return True for files of an editor, a file system or a packer: .ipynb_checkpoints, ._1.txt, __MACOSX."""
    return name.startswith(".") or name == "__MACOSX"


def read_chunks(files: Sequence[Path]) -> Iterator[Chunk]:
    """Read all lines of the files, in chunks of about CHUNK_BYTES.

    A blank line ends a document, and so does the end of a file unless it is the last. Runs of blank lines count once,
    those before the first text not at all. Lines of zero-width characters alone are left out.

    Raises:
        OSError: a file cannot be read.
        UserError: text is not UTF-8 or has a zero byte, a compressed file is damaged, or a file holds no text. The
            message names the file, and the line if there is one.
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
                # Most lines begin with a letter, a check that is ten times as fast.
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
            zero = block.find(b"\0")  # UTF-16 has many of them
            try:
                text = block.decode("utf-8" if lines_before else "utf-8-sig")
            except UnicodeDecodeError as error:
                zero = error.start
            if zero >= 0:
                line = lines_before + block.count(b"\n", 0, zero) + 1
                raise UserError(f"{path}: line {line} is not UTF-8 text: convert the file, as with iconv")
            lines_before += block.count(b"\n")
            yield text.removesuffix("\n"), len(block)


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed if its suffix is one of PACKED."""
    unpack = PACKED.get(path.suffix.lower())
    try:
        with io.BufferedReader(unpack(path), CHUNK_BYTES) if unpack else path.open("rb") as stream:
            yield stream
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: truncated or corrupt archive ({error})") from error


def check_line_ends(start: bytes, location: str) -> None:
    """Raise a UserError if the start of a file has carriage returns alone as line ends: it would be one line."""
    if b"\n" not in start and start.rstrip(b"\r").count(b"\r") > 1:
        raise UserError(f"{location}: its lines end with carriage returns alone: convert it with tr '\\r' '\\n'")


def is_blank(text: str) -> bool:
    """Return True if a text has nothing but white space, zero-width characters and byte-order marks.

    sentencepiece also reads its own mark and U+FFFD, which replaces undecodable bytes, as spaces.
    """
    return all(
        character.isspace() or character in "\u2581\ufffd" or unicodedata.category(character) in ("Cf", "Cc")
        for character in text
    )
