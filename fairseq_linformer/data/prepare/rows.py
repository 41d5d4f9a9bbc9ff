"""Texts to predict, as users have them: lines of text, a table with tabs, or JSON lines."""

import re
from collections.abc import Iterable, Iterator, Sequence

from ...errors import UserError
from ...system.state import parse_json
from .labelled import Example

FORMATS = ("txt", "tsv", "jsonl")
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character: JSON can write it, no tokenizer can read it

Lines = Iterator[tuple[str, str]]  # where a line stands, and the line


def read_rows(
    lines: Iterable[bytes], kind: str, source: str, text: str = "text", second: str | None = None
) -> Iterator[Example]:
    """The rows of a file, read as they are consumed: one a line, after the header of a table.

    Args:
        lines: of the file, as a file that was opened in binary mode gives them: a carriage return in a text is text.
        kind: ``txt``, a text a line; ``tsv``, a header and fields between tabs, in which quotes are text; ``jsonl``,
            an object a line.
        source: what errors call the file.
        text, second: column (tsv) or key (jsonl) of the text, and of the second text of pairs.

    Raises:
        ValueError: a line that is not UTF-8, or not what the format says, or without that column or key.
    """
    numbered = _decoded(lines, source)
    if kind == "txt":
        yield from (Example(line, None) for _, line in numbered)
        return
    names = [text] if second is None else [text, second]
    for texts in _tsv(numbered, names) if kind == "tsv" else _jsonl(numbered, names):
        yield Example(texts[0], None, *texts[1:])


def _decoded(lines: Iterable[bytes], source: str) -> Lines:
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        try:
            yield where, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: not UTF-8 ({error})") from error


def _tsv(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    header: list[str] = []
    for where, line in lines:
        fields = line.split("\t")
        if not header:
            header = fields
            for name in names:
                if header.count(name) != 1:
                    raise UserError(f"{where}: {name!r} must name one column of the table: {', '.join(header)}")
        elif len(fields) != len(header):
            raise UserError(f"{where}: {len(fields)} fields between tabs, but the header has {len(header)}")
        else:
            yield [fields[header.index(name)] for name in names]


def _jsonl(lines: Lines, names: Sequence[str]) -> Iterator[list[str]]:
    for where, line in lines:
        row = parse_json(line, where)
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object, but {line[:100]}")
        for name in names:
            if name not in row:
                raise UserError(f"{where}: no key {name!r} among {', '.join(row) or 'none'}")
            if not isinstance(row[name], str) or SURROGATE.search(row[name]):
                raise UserError(f"{where}: {name} is {row[name]!r}, it must be text")
        yield [row[name] for name in names]
