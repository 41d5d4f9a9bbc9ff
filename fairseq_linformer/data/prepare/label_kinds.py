"""What stands in the columns of labels: each row's label, the kind of the task, and labels as that kind has them."""

import ast
import contextlib
import json
import math
from collections import Counter
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain

from ...errors import UserError
from ..text import first_of
from .examples import Example, Label
from .table_formats import Row

FEW = 20  # different labels: more whole numbers than that may be scores, and more texts, half of the rows, no classes
SEPARATORS = ";|,"  # what is looked for between the classes of a label, where none is given
MISSING = ("na", "n/a", "nan", "<na>", "null", "none", "-", "?")  # what tables have for a number that is not known
YES, NO = ("1", "1.0", "true"), ("0", "0.0", "false")


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
class Item:
    """A row that is read, and its label as it stands there, then as the kind of the task has it."""

    example: Example
    raw: object
    group: Hashable

    @property
    def where(self) -> str:
        return self.example.where


def raw_label(split: str, row: Row, columns: Columns) -> object:
    """None, a text, a list of texts; for several columns the names of those that are true."""
    if split == "test" and not set(columns.labels) & set(row.columns):
        return None
    if len(columns.labels) > 1:
        return [name for name in columns.labels if _is_true(row, name)]
    value = row.value(columns.labels[0])
    if isinstance(value, str):
        value = value.strip()
        if columns.separator is not None:
            return [name for part in value.split(columns.separator) if (name := part.strip())]
        if value.startswith("[") and value.endswith("]"):
            value = _listed(value, row.where, columns.labels[0])
    if isinstance(value, list | tuple):
        return [_plain(item, row.where, columns.labels[0]) for item in value]
    return None if value is None or value == "" else _plain(value, row.where, columns.labels[0])


def _listed(text: str, where: str, column: str) -> object:
    """The list that a text in brackets is, as JSON or as Python writes it; another text itself.

    Raises:
        UserError: it is a list, but not one of these: numpy, in tables from pandas, writes no commas.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        if "".join(repr(value).split()) == "".join(text.split()):  # Python reads numpy's ['a' 'b'] as ['ab']
            return value
    if text[1] in "'\"" or all(number_of(part) is not None for part in text[1:-1].split()):
        raise UserError(f"{where}: {column} is {text[:100]!r}, but a list must be as JSON has it, with commas")
    return text


def _is_true(row: Row, column: str) -> bool:
    value = _plain(row.value(column), row.where, column).lower()
    if value not in YES + NO:
        raise UserError(f"{row.where}: {column} is {value!r}, but of several label columns each must be 0 or 1")
    return value in YES


def _plain(value: object, where: str, column: str) -> str:
    """A label as text: 1 and 1.0 of a table of numbers is "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int | float):
        raise UserError(f"{where}: {column} is {value!r}, a label must be text or a number, or a list of such")
    return str(value).strip()


def without_decimals(read: dict[str, list[Item]]) -> dict[str, list[Item]]:
    """The rows with the label 1 for 1.0, where all are whole numbers: pandas writes 1.0 if the column has empty cells.

    A number without a point stays as it stands: 007 may be a name.
    """
    if not all(_is_whole(item.raw) for items in read.values() for item in items if item.raw is not None):
        return read
    return {
        split: [replace(item, raw=str(int(Decimal(str(item.raw))))) if "." in str(item.raw) else item for item in items]
        for split, items in read.items()
    }


def refuse_vectors(items: Sequence[Item], columns: Columns) -> None:
    """UserError where lists are 0 or 1 for each class: read as names they would give every row the classes 0 and 1."""
    lists = [
        (item.where, item.raw) for item in items if isinstance(item.raw, list) and isinstance(item.example.text, str)
    ]
    lengths = {len(names) for _, names in lists}
    if len(lengths) == 1 and max(lengths) > 1 and all(name.lower() in YES + NO for _, names in lists for name in names):
        where, names = lists[0]
        raise UserError(
            f"{where}: {columns.labels[0]} is [{', '.join(names)[:100]}], and all lists are of {len(names)} times 0 or "
            "1: write the names of each row's classes instead, or a column of 0 and 1 for each class (--label A B C)"
        )


def find_kind(items: Sequence[Item], columns: Columns, notes: list[str]) -> str:
    labels = [item.raw for item in items if item.raw is not None]
    column, distinct = ", ".join(columns.labels), len({str(label) for label in labels})
    if items and isinstance(items[0].example.text, tuple):
        kind, reason = "token-label", f"{columns.text} holds lists of words"
    elif any(isinstance(label, list) for label in labels):
        kind, reason = "multi-label", f"{column} holds lists" if len(columns.labels) == 1 else "several label columns"
    elif labels and all(number_of(label) is not None for label in labels):
        whole = all(map(_is_whole, labels))
        if whole == (distinct > FEW):
            raise UserError(
                f"{column} holds {distinct:,} different numbers, which may be classes or scores: give "
                "--kind single-label or --kind regression"
            )
        kind = "single-label" if whole else "regression"
        reason = f"{column} holds {distinct:,} different {'whole ' if whole else ''}numbers"
    else:
        if no_numbers := _no_numbers(items):
            instead = "; --kind single-label takes them as classes" if distinct <= FEW else ""
            raise UserError(f"{_described(no_numbers, items, column)}{instead}")
        kind, reason = "single-label", f"{column} holds text"
        if distinct > max(FEW, len(labels) / 2):
            raise UserError(
                f"{column} holds {distinct:,} different texts in {len(labels):,} rows, which are no classes"
            )
    notes.append(f"{kind}, as {reason} (--kind names another)")
    if kind == "single-label" and (joined := _joined_classes({str(label) for label in labels})):
        label, separator = joined
        notes.append(
            f"warning: labels such as {label[:100]!r} look like several classes: --separator '{separator}' reads them "
            "so"
        )
    return kind


def _joined_classes(labels: Set[str]) -> tuple[str, str] | None:
    """A label that may be several classes, and what separates them: most of the parts stand in other labels, too."""
    for separator in SEPARATORS:
        parts = {label: {part.strip() for part in label.split(separator)} for label in labels}
        joined = [label for label in labels if len(parts[label]) > 1 and all(parts[label])]
        number = Counter(chain.from_iterable(parts.values()))
        once = [number[part] == 1 for part in set(chain.from_iterable(parts[label] for label in joined))]
        if len(joined) > 1 and 2 * sum(once) < len(once):
            return min(joined), separator
    return None


def _no_numbers(items: Sequence[Item]) -> list[Item]:
    """The labels that are no numbers where numbers are meant; none where the labels may be names of classes.

    Numbers are meant where nothing but numbers, also with a decimal comma, and marks of a missing value stand there,
    or where they are most of more than FEW different labels.
    """
    labels = [str(item.raw) for item in items if item.raw is not None]
    known = [label for label in labels if number_of(label.replace(",", ".", 1)) is not None]
    others = {label for label in labels if label.lower() not in MISSING} - set(known)
    meant = (known and not others) or (2 * len(known) > len(labels) and len(set(labels)) > FEW)
    return [item for item in items if item.raw is not None and number_of(item.raw) is None] if meant else []


def _described(no_numbers: Sequence[Item], items: Sequence[Item], column: str) -> str:
    """Labels that are no numbers: the first, how many there are of which, and what to do."""
    first = no_numbers[0]
    labels = Counter(str(item.raw)[:100] for item in no_numbers)
    listed = first_of([f"{label!r} in {number:,}" for label, number in labels.most_common()])
    remedies = []
    if any(number_of(label) is None and number_of(label.replace(",", ".", 1)) is not None for label in labels):
        remedies.append("write 3.5 for 3,5 and 1234 for 1,234, or give --separator , where several classes stand there")
    if any(label.lower() in MISSING for label in labels):
        remedies.append("leave the cell of a missing value empty, and the row is left out, or fill it")
    return (
        f"{first.where}: {column} is {str(first.raw)[:100]!r}, which is no number, as in {len(no_numbers):,} of "
        f"{len(items):,} rows ({listed}): {'; '.join(remedies) or 'mend or remove these rows'}"
    )


def number_of(label: object) -> float | None:
    """The value of a finite number; None for anything else."""
    with contextlib.suppress(ValueError):
        value = float(str(label))
        return value if math.isfinite(value) else None
    return None


def _is_whole(label: object) -> bool:
    """Whether a label is a whole number, which 1.0 is."""
    number = number_of(label)
    return number is not None and number.is_integer()


def labelled(split: str, items: Sequence[Item], kind: str, columns: Columns, notes: list[str]) -> list[Item]:
    """The rows that have a label, as the kind of the task has it; all rows of a test set that has no label at all."""
    if split == "test" and not any(item.raw for item in items):  # no class of several in any row is no label either
        notes.append("test: has no labels")
        return list(items)
    known = [item for item in items if item.raw is not None]
    if len(known) < len(items):
        notes.append(f"{split}: {len(items) - len(known):,} rows with an empty label are left out")
    texts = [item for item in known if not isinstance(item.raw, list)]
    if kind == "regression" and (no_numbers := [item for item in texts if number_of(item.raw) is None]):
        raise UserError(_described(no_numbers, items, ", ".join(columns.labels)))
    return [replace(item, example=replace(item.example, label=_label(item, kind, columns))) for item in known]


def _label(item: Item, kind: str, columns: Columns) -> Label:
    raw, column = item.raw, ", ".join(columns.labels)
    is_list, is_words = isinstance(raw, list), isinstance(item.example.text, tuple)
    wanted = {
        "single-label": "one class",
        "multi-label": "a list of classes (--separator says what stands between them)",
        "regression": "a number",
        "token-label": f"a list with a class for each word of {columns.text}",
    }[kind]
    fits = is_list if kind in ("multi-label", "token-label") else not is_list
    if not fits or (kind == "token-label") != is_words:
        text = "words" if is_words else "a text"
        raise UserError(f"{item.where}: {column} of {text} is {str(raw)[:100]!r}, but for {kind} it must be {wanted}")
    if not isinstance(raw, list):
        return str(raw)
    if is_words and len(raw) != len(item.example.text):
        raise UserError(f"{item.where}: {len(item.example.text)} words in {columns.text}, but {len(raw)} in {column}")
    return tuple(raw if is_words else dict.fromkeys(raw))  # a class that stands in a row twice counts once
