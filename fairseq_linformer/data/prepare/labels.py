"""Labels in the columns of a table, and their type."""

import ast
import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ...errors import UserError
from .examples import Example, Label, names_of
from .table import Row

# Up to this many different labels are classes. Of more, whole numbers may be scores, and texts are no classes if over
# half of them differ.
FEW_LABELS = 20
TRUE, FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read.

    `labels`: one column, or a column of 0 and 1 for each class of a multi-label task. `group`: rows with the same value
    are in one split. `separator` separates the classes of a multi-label row.
    """

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    group: str | None = None
    separator: str | None = None


@dataclass(frozen=True)
class TableRow(Example):
    """Row of a table with its label as text, or several as a tuple, and the value of its group."""

    group: str | None = None


def read_label(row: Row, columns: Columns) -> Label | None:
    """Return the label of a row as text, or several as a tuple; None for an empty cell."""
    if len(columns.labels) > 1:
        return tuple(name for name in columns.labels if _is_true(row, name))
    column = columns.labels[0]
    value = row.value(column)
    if isinstance(value, str) and columns.separator is not None:
        value = [part.strip() for part in value.split(columns.separator) if part.strip()]
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        value = _parse_list(value.strip(), row, column)
    if isinstance(value, list | tuple):
        return tuple(_normalize(item, row, column) for item in value)
    return None if value is None or value == "" else _normalize(value, row, column) or None


def _is_true(row: Row, column: str) -> bool:
    value = _normalize(row.value(column), row, column).lower()
    if value not in TRUE + FALSE:
        raise UserError(f"{row.location}: {column} is {value!r}, but each of several label columns must be 0 or 1")
    return value in TRUE


def _parse_list(text: str, row: Row, column: str) -> object:
    """Return the list in a text in brackets, as JSON or Python writes it; return any other text unchanged.

    Lists of numpy, which pandas writes to tables, have no commas: Python would read ['a' 'b'] as ['ab'].
    """
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = parse(text)
            if parse is json.loads or "".join(repr(value).split()) == "".join(text.split()):
                return value
    if text[1] in "'\"" or all(number_of(part) is not None for part in text[1:-1].split()):
        raise UserError(f"{row.location}: {column} is {text[:100]!r}, but a list must be JSON, with commas")
    return text


def _normalize(value: object, row: Row, column: str) -> str:
    """Return a label as text; the numbers 1 and 1.0 are "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        allowed = "a label must be text, a number, or a list of these"
        raise UserError(f"{row.location}: {column} is {value!r}, but {allowed}")
    return str(value).strip()


def number_of(label: object) -> float | None:
    """Return the value of a finite number; None for anything else."""
    with contextlib.suppress(ValueError):
        value = float(str(label))
        return value if math.isfinite(value) else None
    return None


def _is_whole(label: object) -> bool:
    number = number_of(label)
    return number is not None and number.is_integer()


def drop_decimals(splits: dict[str, list[TableRow]]) -> dict[str, list[TableRow]]:
    """Return the rows with 1 for the label 1.0, which pandas writes for it, if all labels are whole numbers."""

    def drop(row: TableRow) -> TableRow:
        return row if row.label is None else replace(row, label=re.sub(r"\.0*$", "", cast(str, row.label)))

    whole = all(_is_whole(row.label) for rows in splits.values() for row in rows if row.label is not None)
    return {split: list(map(drop, rows)) for split, rows in splits.items()} if whole else splits


def find_label_type(rows: Sequence[TableRow], columns: Columns) -> str:
    """Return the type of label if the values determine it."""
    labels = [row.label for row in rows if row.label is not None]
    if rows and isinstance(rows[0].text, tuple):
        return "token-label"
    if any(isinstance(label, tuple) for label in labels):
        return "multi-label"
    are_numbers = [number_of(label) is not None for label in labels]
    distinct = len(set(labels))
    if labels and all(are_numbers):
        integers = all(map(_is_whole, labels))
        if integers == (distinct <= FEW_LABELS):
            return "single-label" if integers else "regression"
    elif 2 * sum(are_numbers) <= len(labels) and distinct <= max(FEW_LABELS, len(labels) / 2):
        return "single-label"
    raise UserError(
        f"{', '.join(columns.labels)} holds {distinct:,} different labels in {len(labels):,} rows, of which "
        f"{sum(are_numbers):,} are numbers: give --kind single-label or --kind regression"
    )


def check_labels(rows: Sequence[TableRow], label_type: str, columns: Columns) -> None:
    """Check the labels of rows against the type of label.

    Lists with a 0 or 1 for each class are an error: as names they would give every row the classes 0 and 1.
    """
    column = ", ".join(columns.labels)
    expected = {
        "single-label": "one class",
        "multi-label": "a list of classes (in one text: --separator names the text between them)",
        "regression": "a number (leave the cell of a missing value empty)",
        "token-label": f"a list with a class for each word of {columns.text}",
    }[label_type]
    for row in rows:
        of_words = isinstance(row.text, tuple)
        works = of_words == (label_type == "token-label")
        works = works and isinstance(row.label, tuple) == (label_type in ("multi-label", "token-label"))
        works = works and (not of_words or len(names_of(row.label)) == len(row.text))
        if not works or (label_type == "regression" and number_of(row.label) is None):
            label = str(row.label)[:100]
            raise UserError(f"{row.location}: {column} is {label!r}, but for {label_type} it must be {expected}")
    lists = [names_of(row.label) for row in rows] if label_type == "multi-label" else []
    same_length = len(set(map(len, lists))) == 1 and len(lists[0]) > 1
    if same_length and all(name.lower() in TRUE + FALSE for names in lists for name in names):
        raise UserError(
            f"{rows[0].location}: {column} has a 0 or 1 for each class: write the names of the classes of each row, "
            "or a column of 0 and 1 for each class (--label A B C)"
        )
