"""Tables of texts and labels: text files, Parquet, data sets of the library ``datasets``, a folder per class.

CSV and JSON lines are read with Python's own modules, as ``datasets`` would change labels: it parses text that looks
like a date, and turns whole numbers in a column that also holds others into floating-point numbers.
"""

import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ...errors import UserError
from .examples import Example
from .text_files import PACKED, check_line_ends, is_blank, is_hidden, unpacked

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character, which JSON can write and no tokenizer can read
DELIMITERS = ",;\t"  # of CSV, found in the header
UNIVERSAL_COLUMNS = 10  # of CoNLL-U (universaldependencies.org/format.html)
UNIVERSAL_COMMENT = re.compile(r"#\s+(?:new(?:doc|par)\b|\w[\w.:-]*\s+=(?:\s|$))")  # above a sentence: # name = value
UNIVERSAL_RANGE = re.compile(r"\d+[-.]\d+")  # id of a line that is no word: a contraction, an elided word

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")  # OWNER/NAME, or OWNER/NAME:CONFIGURATION
WHOLE = ""  # the split of a table without splits
SPLIT_NAMES: Mapping[str, str] = {"validation": "valid", "val": "valid", "dev": "valid"}  # other names are kept


@dataclass(frozen=True)
class Row:
    """Row of a table.

    Attributes:
        location: file and line, or number of the row, for errors.
        values: by column: text, or numbers, lists and None if the format has them.
    """

    location: str
    values: Mapping[str, object]

    @property
    def columns(self) -> list[str]:
        return list(self.values)

    def value(self, column: str) -> object:
        """Return the value of a column, which must exist."""
        if column not in self.values:
            raise UserError(f"{self.location}: no column {column!r} among {', '.join(self.values) or 'none'}")
        return self.values[column]

    def text(self, column: str) -> str | tuple[str, ...]:
        """Return the text of a column, or its words if the value is a list; reject other values."""
        value = self.value(column)
        words = value if isinstance(value, list | tuple) else [value]
        texts = tuple(word for word in words if isinstance(word, str) and not SURROGATE.search(word))
        if len(texts) < len(words):
            raise UserError(f"{self.location}: {column} is {repr(value)[:100]}, it must be text")
        return texts[0] if isinstance(value, str) else texts

    def plain_text(self, column: str) -> str:
        """Return the text of a column; reject a list of words."""
        if isinstance(text := self.text(column), str):
            return text
        raise UserError(f"{self.location}: {column} is a list of words, it must be text")


def parse_rows(lines: Iterable[bytes], file_format: str, source: str) -> Iterator[Row]:
    """Parse the rows of a file as they are consumed.

    Args:
        lines: of a file that was opened in binary mode: a carriage return within a text is text.
        file_format: one of FORMATS. ``txt``: a text per line, in the column "text". ``csv``: a header, and fields
            between commas, semicolons or tabs, quoted if they contain these or line ends (RFC 4180). ``tsv``: a header,
            and fields between tabs, in which quotes are text. ``jsonl``: an object per line. ``conll``: a word per line
            with its labels, between tabs or spaces; a blank line ends a sentence. Its columns are numbers, "0" from the
            left or "-1" from the right, and hold lists.
        source: name of the file in errors.

    Raises:
        UserError: a line is not UTF-8, or not of that format.
    """
    return FORMATS[file_format](lines, source)


def read_rows(
    lines: Iterable[bytes], file_format: str, source: str, text: str = "text", second: str | None = None
) -> Iterator[Example]:
    """Read the texts of a file, or the pairs of two columns, without labels, as they are consumed."""
    for row in parse_rows(lines, file_format, source):
        yield Example(row.text(text), None, None if second is None else row.plain_text(second), row.location)


def check_filled(rows: Iterable[Example], source: str, *, words: bool) -> None:
    """Check all rows, which may be lists of words if `words` is True, before the first prediction."""
    row = None
    for row in rows:
        if not words and not isinstance(row.text, str):
            raise UserError(f"{row.location}: a list of words, but the model predicts texts")
        if is_blank("".join(row.text) + (row.second or "")):
            raise UserError(f"{row.location}: the text is empty: there is one prediction per row, so fill or remove it")
    if row is None:
        raise UserError(f"{source}: it holds no text")


def decoded(content: bytes, location: str, *, mark: bool = False) -> str:
    """Decode UTF-8; with `mark` without the byte-order mark that some editors put at the start.

    An error begins with `location`.
    """
    try:
        return content.decode("utf-8-sig" if mark else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{location}: not UTF-8 ({error})") from error


def _decode_lines(lines: Iterable[bytes], source: str) -> Iterator[tuple[str, str]]:
    """Yield the location of each line, and the line with its end."""
    for number, line in enumerate(lines, 1):
        location = f"{source}, line {number}"
        if number == 1:
            check_line_ends(line, source)
        yield location, decoded(line, location, mark=number == 1)


def _parse_txt(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    for location, line in _decode_lines(lines, source):
        yield Row(location, {"text": line.rstrip("\r\n")})


def tsv_rows(
    lines: Iterable[bytes],
    source: str,
    columns: Sequence[str] | None = None,
    *,
    header: bool = True,
    skips_broken: bool = False,
) -> Iterator[Row | None]:
    """Parse the rows of a file with tabs between its fields, in which quotes are text, as they are consumed.

    Args:
        lines, source: as for ``parse_rows``.
        columns: names that the header must have; None for any.
        header: the first line names the columns.
        skips_broken: yield None for a row with another number of fields, which is an error otherwise.
    """
    names = columns
    for number, (location, line) in enumerate(_decode_lines(lines, source), 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and header:
            if columns is not None and fields != list(columns):
                raise UserError(f"{location}: the header is {fields}, it must be {list(columns)}")
            names = _check_header(fields, location)
        elif names is None or len(fields) == len(names):
            yield Row(location, dict(zip(names or (), fields, strict=True)))
        elif skips_broken:
            yield None
        else:
            listed = ", ".join(names)
            raise UserError(f"{location}: {len(fields)} fields between tabs, but the file has {len(names)}: {listed}")


def _check_header(names: Sequence[str], location: str) -> Sequence[str]:
    if repeated := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"{location}: two columns are called {repeated[0]!r}: rename one")
    return names


def _parse_csv(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    texts = (line for _, line in _decode_lines(lines, source))
    first = next(texts, "")
    csv.field_size_limit(sys.maxsize)  # a cell may hold a chapter
    reader = csv.reader(chain([first], texts), delimiter=max(DELIMITERS, key=first.count), strict=True)
    header: Sequence[str] = ()
    location = f"{source}, line 1"
    try:
        for fields in reader:
            if not fields and len(header) != 1:
                pass  # a blank line; in a table of one column it would be an empty text
            elif not header:
                header = _check_header(fields, location)
            elif len(fields) != len(header):
                raise UserError(f"{location}: {len(fields)} fields, but the header has {len(header)}")
            else:
                yield Row(location, dict(zip(header, fields, strict=True)))
            location = f"{source}, line {reader.line_num + 1}"  # the first of those that the next row takes
    except csv.Error as error:
        raise UserError(f"{location}: not CSV ({error})") from error


def _parse_jsonl(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    for location, line in _decode_lines(lines, source):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{location}: not JSON ({error})") from error
        if not isinstance(values, dict):
            raise UserError(f"{location}: not a JSON object; an array becomes one object per line by jq -c '.[]'")
        yield Row(location, values)


def _parse_conll(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    has_tabs, width, begin = False, 0, ""
    tokens: list[list[str]] = []
    for location, ended_line in chain(_decode_lines(lines, source), [("", "")]):
        line = ended_line.rstrip("\r\n")
        has_tabs = has_tabs or (not width and "\t" in line)
        fields = line.split("\t") if has_tabs else line.split()
        if not line.strip():
            yield from _sentence(begin, tokens)
            tokens = []
        elif not _is_comment(line, fields, has_tabs, not width, not tokens):
            width = width or len(fields)
            if len(fields) != width:
                raise UserError(f"{location}: {len(fields)} columns, but the first word has {width}")
            begin = begin if tokens else location
            tokens.append(fields)


def _is_comment(line: str, fields: Sequence[str], has_tabs: bool, of_file: bool, of_sentence: bool) -> bool:
    """Return True for a comment above the first word of a file or sentence, and for non-words of CoNLL-U."""
    if (of_file and line.startswith("# ")) or (of_sentence and UNIVERSAL_COMMENT.match(line)):
        return True
    if has_tabs and line.startswith("#") and len(fields) == 1:
        return True
    return has_tabs and len(fields) == UNIVERSAL_COLUMNS and UNIVERSAL_RANGE.fullmatch(fields[0]) is not None


def _sentence(location: str, tokens: Sequence[Sequence[str]]) -> Iterator[Row]:
    """Yield the row of a sentence, without CoNLL-2003's mark of a document's start; yield nothing without words."""
    tokens = tokens[1:] if tokens and tokens[0][0] == "-DOCSTART-" else tokens
    columns = list(zip(*tokens, strict=True))
    numbers = [*range(len(columns)), *(range(-len(columns), 0) if len(columns) > 1 else ())]
    if tokens:
        yield Row(location, {str(number): columns[number] for number in numbers})


FORMATS: Mapping[str, Callable[[Iterable[bytes], str], Iterator[Row]]] = {
    "txt": _parse_txt,
    "csv": _parse_csv,
    "tsv": lambda lines, source: filter(None, tsv_rows(lines, source)),
    "jsonl": _parse_jsonl,
    "conll": _parse_conll,
}
ENDINGS: Mapping[str, str] = {  # of files, and their formats
    **{f".{name}": name for name in FORMATS},
    **dict.fromkeys((".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".conllu", ".bio", ".iob", ".iob2"), "conll"),
}
COLUMNAR = {".parquet": "parquet", ".arrow": "arrow"}


def no_format(path: Path, endings: Iterable[str]) -> UserError:
    """Return the error for a file whose format does not follow from its name."""
    return UserError(f"{path} ends in none of {', '.join(endings)}: --from names its format")


def read_table(path: Path, file_format: str | None = None) -> dict[str, Iterator[Row]]:
    """Read the rows of a table by split, as they are consumed; those of a table without splits under WHOLE.

    Args:
        path: a file, text formats also as .gz or .xz; a folder that ``datasets`` saved; a folder with a folder of .txt
            files per class, whose columns are "text" and "label"; or the name of a data set of the Hub.
        file_format: one of FORMATS, or ``parquet``; by default it follows from the file's name.
    """
    if path.is_dir() and not (path / "state.json").is_file() and not (path / "dataset_dict.json").is_file():
        return {WHOLE: _read_classes(path)}
    if path.is_dir():
        return _read_dataset(str(path), lambda library: library.load_from_disk(str(path)))
    if not path.exists() and not path.parent.is_dir() and HUB_NAME.fullmatch(str(path)):
        names = str(path).split(":")
        return _read_dataset(str(path), lambda library: library.load_dataset(*names, streaming=True))
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such table")
    file_format = file_format or {**ENDINGS, **COLUMNAR}.get(suffix_of(path))
    if file_format is None:
        raise no_format(path, [*ENDINGS, *COLUMNAR])
    if file_format in FORMATS:
        return {WHOLE: _read_file(path, file_format)}
    with tempfile.TemporaryDirectory() as cache:  # datasets writes a lock there
        options = {"data_files": str(path), "split": "train", "streaming": True, "cache_dir": cache}
        return _read_dataset(str(path), lambda library: library.load_dataset(file_format, **options))


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's name in lower case, without that of its compression (PACKED)."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in PACKED else suffix


def _read_file(path: Path, file_format: str) -> Iterator[Row]:
    with unpacked(path) as lines:
        yield from parse_rows(lines, file_format, str(path))


def _read_classes(folder: Path) -> Iterator[Row]:
    files = [
        file
        for file in sorted(folder.glob("*/*"))
        if file.suffix.lower() == ".txt" and not is_hidden(file.name) and not is_hidden(file.parent.name)
    ]
    if not files:
        raise FileNotFoundError(f"{folder} holds neither a folder per class with .txt files, nor a saved data set")
    for file in files:
        yield Row(str(file), {"text": decoded(file.read_bytes(), str(file), mark=True), "label": file.parent.name})


def _read_dataset(source: str, load: Callable[[Any], Any]) -> dict[str, Iterator[Row]]:
    """Read a data set, or several by split, with the library ``datasets``."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"{source}: reading it needs the library datasets: pip install datasets") from error
    try:
        loaded = load(datasets)
    except (OSError, ValueError) as error:
        raise UserError(f"{source}: no table that can be read ({error})") from error
    splits = loaded if isinstance(loaded, dict) else {WHOLE: loaded}
    return {SPLIT_NAMES.get(name, name): _dataset_rows(split, source) for name, split in splits.items()}


def _dataset_rows(dataset: Any, source: str) -> Iterator[Row]:
    features = {name: getattr(feature, "feature", feature) for name, feature in (dataset.features or {}).items()}
    classes = {name: feature.names for name, feature in features.items() if hasattr(feature, "names")}
    try:
        for number, row in enumerate(dataset, 1):
            values = {name: _name_classes(row[name], classes[name]) if name in classes else row[name] for name in row}
            yield Row(f"{source}, row {number}", values)
    except (OSError, ValueError) as error:
        raise UserError(f"{source}: damaged ({error})") from error


def _name_classes(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or those of a list; None for -1, an unknown label."""
    if isinstance(value, list):
        return [_name_classes(number, names) for number in value]
    return None if value is None or value == -1 else names[value]
