"""Labels in the columns of a table, and the type of label that they are."""

import ast
import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from ...errors import UserError
from .examples import Example, Label, names_of
from .table import Row

FEW = 20  # different labels: more whole numbers than that may be scores, and more texts, half of the rows, no classes
TRUE, FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are read.

    `labels`: one, or a column of 0 and 1 for each class of a multi-label task. `group`: rows with the same value stay
    in one split. `separator` stands between the classes of a multi-label row.
    """

    text: str
    labels: tuple[str, ...]
    second: str | None = None
    group: str | None = None
    separator: str | None = None


@dataclass(frozen=True)
class TableRow(Example):
    """A row of a table with its label as text, or several as a tuple, and the value of its group."""

    group: str | None = None


def read_label(row: Row, columns: Columns) -> Label | None:
    """Return the label of a row as text, or several as a tuple; None for an empty cell.

    Raises:
        UserError: there is no such column, or it holds neither text nor numbers, nor lists of such.
    """
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
        raise UserError(f"{row.where}: {column} is {value!r}, but of several label columns each must be 0 or 1")
    return value in TRUE


def _parse_list(text: str, row: Row, column: str) -> object:
    """Return the list that a text in brackets is, as JSON or Python writes it; another text itself.

    Raises:
        UserError: it is numpy's list, without commas, which tables from pandas hold: Python reads ['a' 'b'] as ['ab'].
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        if "".join(repr(value).split()) == "".join(text.split()):
            return value
    if text[1] in "'\"" or all(number_of(part) is not None for part in text[1:-1].split()):
        raise UserError(f"{row.where}: {column} is {text[:100]!r}, but a list must be as JSON has it, with commas")
    return text


def _normalize(value: object, row: Row, column: str) -> str:
    """Return a label as text; 1 and 1.0 of a table of numbers are "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(f"{row.where}: {column} is {value!r}, a label must be text or a number, or a list of such")
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
    """Return the rows with 1 for the label 1.0, if all labels are whole numbers: pandas writes them so.

    A number without a point keeps its digits: 007 may be a name.
    """
    if not all(_is_whole(row.label) for rows in splits.values() for row in rows if row.label is not None):
        return splits

    def without_point(row: TableRow) -> TableRow:
        return replace(row, label=str(int(Decimal(str(row.label))))) if "." in str(row.label) else row

    return {split: list(map(without_point, rows)) for split, rows in splits.items()}


def find_label_type(rows: Sequence[TableRow], columns: Columns) -> tuple[str, str]:
    """Return the type of label that the values leave no doubt of, and why.

    Raises:
        UserError: the values leave doubt.
    """
    labels = [row.label for row in rows if row.label is not None]
    column = ", ".join(columns.labels)
    if rows and isinstance(rows[0].text, tuple):
        return "token-label", f"{columns.text} holds lists of words"
    if any(isinstance(label, tuple) for label in labels):
        return "multi-label", f"{column} holds lists" if len(columns.labels) == 1 else "there are several label columns"
    numbers = [number for number in map(number_of, labels) if number is not None]
    distinct = len(set(labels))
    if labels and len(numbers) == len(labels):
        whole = all(map(_is_whole, labels))
        if whole and distinct <= FEW:
            return "single-label", f"{column} holds {distinct:,} different whole numbers"
        if not whole and distinct > FEW:
            return "regression", f"{column} holds {distinct:,} different numbers"
        doubt = f"{column} holds {distinct:,} different numbers, which may be classes or scores"
    elif 2 * len(numbers) > len(labels):
        first = next(row for row in rows if row.label is not None and number_of(row.label) is None)
        doubt = f"{_no_number(first, column)}, though most labels are"
    elif distinct <= max(FEW, len(labels) / 2):
        return "single-label", f"{column} holds text"
    else:
        doubt = f"{column} holds {distinct:,} different texts in {len(labels):,} rows, which may be no classes"
    raise UserError(f"{doubt}: give --kind single-label or --kind regression")


def _no_number(row: TableRow, column: str) -> str:
    label = str(row.label)[:100]
    return f"{row.where}: {column} is {label!r}, which is no number (leave the cell of a missing value empty)"


def check_labels(rows: Sequence[TableRow], label_type: str, columns: Columns) -> None:
    """Check the labels of rows against the type of label.

    Raises:
        UserError: a label is not of that type, or the lists of all rows are a 0 or 1 for each class: read as names of
            classes, they would give every row the classes 0 and 1.
    """
    column = ", ".join(columns.labels)
    expected = {
        "single-label": "one class",
        "multi-label": "a list of classes (--separator names what stands between them)",
        "regression": "a number",
        "token-label": f"a list with a class for each word of {columns.text}",
    }[label_type]
    for row in rows:
        several, words = isinstance(row.label, tuple), isinstance(row.text, tuple)
        if several != (label_type in ("multi-label", "token-label")) or words != (label_type == "token-label"):
            text = "words" if words else "a text"
            label = str(row.label)[:100]
            raise UserError(f"{row.where}: {column} of {text} is {label!r}, but for {label_type} it must be {expected}")
        if words and len(names_of(row.label)) != len(row.text):
            counts = f"{len(row.text)} words in {columns.text}, but {len(names_of(row.label))} in {column}"
            raise UserError(f"{row.where}: {counts}")
        if label_type == "regression" and number_of(row.label) is None:
            raise UserError(_no_number(row, column))
    lists = [names_of(row.label) for row in rows] if label_type == "multi-label" else []
    same_length = len(set(map(len, lists))) == 1 and len(lists[0]) > 1
    if same_length and all(name.lower() in TRUE + FALSE for names in lists for name in names):
        raise UserError(
            f"{rows[0].where}: {column} holds lists of {len(lists[0])} times 0 or 1: write the names of each row's "
            "classes instead, or a column of 0 and 1 for each class (--label A B C)"
        )
