"""Rows of text, as users have them: lines of text, CSV, TSV, JSON lines, CoNLL columns."""

import csv
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ...errors import UserError
from ...system.state import parse_json
from ..text import MOST_NAMED, check_line_ends, decoded, first_of
from .examples import Example, is_blank

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character: JSON can write it, no tokenizer can read it
DELIMITERS = ",;\t"  # of CSV: which of them, its header says; a TSV that quotes its cells is a CSV with tabs
UNIVERSAL_COLUMNS = 10  # of CoNLL-U (universaldependencies.org/format.html)
UNIVERSAL_COMMENT = re.compile(r"#\s+(?:new(?:doc|par)\b|\w[\w.:-]*\s+=(?:\s|$))")  # above a sentence: # name = value
UNIVERSAL_RANGE = re.compile(r"\d+[-.]\d+")  # its numbers of what is no word: a contraction's range, an elided word


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        where: file and line, for errors.
        columns: the names of its columns; one may stand there twice.
        values: as many; text, or what JSON, Parquet and the like have: numbers, lists, None.
        header: where the columns are named, for errors about them; "" where the row does it.
    """

    where: str
    columns: Sequence[str]
    values: Sequence[object]
    header: str = ""

    def value(self, column: str) -> object:
        """What stands in a column.

        Raises:
            UserError: no column, or more than one, has that name.
        """
        if (found := list(self.columns).count(column)) == 1:
            return self.values[self.columns.index(column)]
        close = difflib.get_close_matches(column, self.columns, n=1, cutoff=0.5)
        hint = f" (did you mean {close[0]!r}?)" if close and not found else ""
        number = "two columns" if found else "no column"
        where, columns = self.header or self.where, ", ".join(self.columns) or "none"
        raise UserError(f"{where}: {number} {column!r}{hint} among {columns}")

    def text(self, column: str) -> str | tuple[str, ...]:
        """The text of a column, or its words where a list stands there.

        Raises:
            UserError: as `value`; something else stands there.
        """
        value = self.value(column)
        words = [
            word
            for word in (value if isinstance(value, list | tuple) else [value])
            if isinstance(word, str) and not SURROGATE.search(word)
        ]
        if isinstance(value, list | tuple) and len(words) == len(value):
            return tuple(words)
        if words and words[0] is value:
            return words[0]
        raise UserError(f"{self.where}: {column} is {repr(value)[:100]}, it must be text")

    def plain_text(self, column: str) -> str:
        """As `text`, where no list may stand."""
        if isinstance(text := self.text(column), str):
            return text
        raise UserError(f"{self.where}: {column} is a list of words, it must be text")


def read_rows(
    lines: Iterable[bytes], kind: str, source: str, text: str = "text", second: str | None = None
) -> Iterator[Example]:
    """The texts of a file, without labels, read as they are consumed.

    Args:
        lines, kind, source: as for ``parse_rows``.
        text, second: column of the text, and of the second text of pairs; lines of text have none but "text".

    Raises:
        UserError: as ``parse_rows``; a row without such a column, or with something else than text in it.
    """
    for row in parse_rows(lines, kind, source):
        yield Example(row.text(text), None, None if second is None else row.plain_text(second), row.where)


def check_filled(
    lines: Iterable[bytes],
    kind: str,
    source: str,
    text: str = "text",
    second: str | None = None,
    *,
    words: bool,
) -> None:
    """Reads what ``read_rows`` does to its end.

    Args:
        lines, kind, source, text, second: as for ``read_rows``.
        words: whether a list of words may stand for a text.

    Raises:
        UserError: as ``read_rows``; or there is no row, a row has words where it may not, or rows hold no text, neither
            of both. The message has their number and where the first MOST_NAMED of them stand.
    """
    count, blank = 0, []
    for row in read_rows(lines, kind, source, text, second):
        count += 1
        if not words and not isinstance(row.text, str):
            raise UserError(f"{row.where}: {text} is a list of words, but the model predicts texts")
        if is_blank("".join(row.text) + (row.second or "")):
            blank.append(row.where.removeprefix(f"{source}, "))
    if not count:
        raise UserError(f"{source}: it holds no text")
    if blank:
        named = first_of(blank, f" and {len(blank) - MOST_NAMED:,} more")
        raise UserError(
            f"{source}: {len(blank):,} of the texts are empty ({named}): predictions are a row per text, so fill or "
            "remove them"
        )


def parse_rows(lines: Iterable[bytes], kind: str, source: str) -> Iterator[Row]:
    """The rows of a file, read as they are consumed.

    Args:
        lines: of the file, as a file that was opened in binary mode gives them: a carriage return in a text is text.
        kind: one of FORMATS. ``txt``: a text per line, in the column "text". ``csv``: a header and fields between
            commas, semicolons or tabs, in quotes where they hold such or line ends (RFC 4180). ``tsv``: a header and
            fields between tabs, in which quotes are text. ``jsonl``: an object per line. ``conll``: a word per line
            and its labels, between tabs or spaces; a blank line ends a sentence. Its columns are called by number,
            "0" from the left or "-1" from the right, a single one "0" alone, and hold lists.
        source: what errors call the file.

    Raises:
        UserError: a line that is not UTF-8, or not what the format says.
    """
    return FORMATS[kind](lines, source)


def _decoded(lines: Iterable[bytes], source: str) -> Iterator[tuple[str, str]]:
    """Where each line stands, and the line with its end."""
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if number == 1:
            check_line_ends(line, source)
        yield where, decoded(line, where, mark=number == 1)


def _txt(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    for where, line in _decoded(lines, source):
        yield Row(where, ("text",), (line.rstrip("\r\n"),))


def tsv_rows(
    lines: Iterable[bytes],
    source: str,
    columns: Sequence[str] | None = None,
    *,
    header: bool = True,
    skips_broken: bool = False,
) -> Iterator[Row | None]:
    """The rows of a file with tabs between its fields, in which quotes are text.

    Args:
        lines, source: as for ``parse_rows``.
        columns: their names, which a header must have; None for whichever it has.
        header: whether the first line names the columns.
        skips_broken: whether None stands for a row with another number of fields, which is an error otherwise.

    Raises:
        UserError: a line is not UTF-8, or not what the arguments say.
    """
    names, above = columns or (), ""
    for number, (where, line) in enumerate(_decoded(lines, source), 1):
        fields = line.rstrip("\r\n").split("\t")
        if number == 1 and header:
            if columns is not None and fields != list(columns):
                raise UserError(f"{where}: the header is {fields}, it must be {list(columns)}")
            names, above = fields, where
        elif len(fields) == len(names):
            yield Row(where, names, fields, above)
        elif skips_broken:
            yield None
        else:
            named = f"the file has {len(names)} columns: {', '.join(names)}"
            raise UserError(f"{where}: {len(fields)} fields between tabs, but {named}")


def _csv(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    decoded_lines = _decoded(lines, source)
    start = []  # to the first line that is not blank
    for _, line in decoded_lines:
        start.append(line)
        if line.strip("\r\n"):
            break
    delimiter = max(DELIMITERS, key="".join(start).count)
    csv.field_size_limit(sys.maxsize)  # a chapter may stand in a cell
    texts = chain(start, (line for _, line in decoded_lines))
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    header: list[str] = []
    above = ""
    while True:
        where = f"{source}, line {reader.line_num + 1}"  # the first of those that the row takes
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{where}: not CSV ({error})") from error
        if not header:
            header, above = fields, where
        elif not fields and len(header) > 1:
            continue  # a blank line; in a table of one column it would be an empty text
        elif len(fields) != len(header):
            raise UserError(f"{where}: {len(fields)} fields, but the header has {len(header)}")
        else:
            yield Row(where, header, fields, above)


def _jsonl(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    blank = ""
    for where, line in _decoded(lines, source):
        if not line.strip():
            blank = blank or where  # at the end of a file they are no rows
            continue
        if blank:
            raise UserError(f"{blank}: a blank line, not a JSON object")
        if line.lstrip().startswith("["):
            raise UserError(f"{where}: an array; write an object per line, as jq -c '.[]' does")
        row = parse_json(line.rstrip("\r\n"), where)
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object, but {line[:100].rstrip()}")
        yield Row(where, tuple(row), tuple(row.values()))


def _conll(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    tabs, columns, begin = False, 0, ""
    tokens: list[list[str]] = []
    for where, ended_line in _decoded(lines, source):
        line = ended_line.rstrip("\r\n")
        if not line.strip():
            yield from _sentence(begin, tokens)
            tokens = []
            continue
        if not columns and line.startswith("# "):
            continue  # a comment above the first word
        if not tokens and UNIVERSAL_COMMENT.match(line):
            continue
        tabs = tabs or (not columns and "\t" in line)
        if tabs and line.startswith("#") and "\t" not in line:
            continue  # a comment of CoNLL-U
        fields = line.split("\t") if tabs else line.split()
        if tabs and len(fields) == UNIVERSAL_COLUMNS and UNIVERSAL_RANGE.fullmatch(fields[0]):
            continue
        columns = columns or len(fields)
        if len(fields) != columns:
            raise UserError(f"{where}: {len(fields)} columns, but the first word has {columns}")
        begin = begin if tokens else where
        tokens.append(fields)
    yield from _sentence(begin, tokens)


def _sentence(where: str, tokens: Sequence[Sequence[str]]) -> Iterator[Row]:
    """The row of a sentence, without the mark of CoNLL-2003 that a document starts; none for no word."""
    tokens = tokens[1:] if tokens and tokens[0][0] == "-DOCSTART-" else tokens
    if tokens:
        by_column = list(zip(*tokens, strict=True))
        from_right = range(-len(by_column), 0) if len(by_column) > 1 else ()  # words alone have no label, "-1"
        names = [*map(str, range(len(by_column))), *map(str, from_right)]
        yield Row(where, names, [*by_column, *by_column[: len(from_right)]])


FORMATS: Mapping[str, Callable[[Iterable[bytes], str], Iterator[Row]]] = {
    "txt": _txt,
    "csv": _csv,
    "tsv": lambda lines, source: filter(None, tsv_rows(lines, source)),
    "jsonl": _jsonl,
    "conll": _conll,
}
ENDINGS: Mapping[str, str] = {  # of files, and their formats
    **{f".{name}": name for name in FORMATS},
    **dict.fromkeys((".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".conllu", ".bio", ".iob", ".iob2"), "conll"),
}
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")


def no_format(path: Path, endings: Iterable[str]) -> UserError:
    """What to say of a file whose name does not end in any that are known."""
    if path.suffix.lower() in SPREADSHEETS:
        return UserError(f"{path} is a spreadsheet: save it as CSV, in UTF-8")
    return UserError(f"{path} ends in none of {', '.join(endings)}: --from names its format")
