"""Own labelled data: the rows of tables into the splits of a task, and what is to be known about them.

The kind of the task is what its labels say that cannot be mistaken, and otherwise asked for. Nothing of a text is
changed; what is left out, or looks wrong, is counted and said.
"""

import ast
import contextlib
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError, check
from ..task_record import KINDS, Task, check_label, own_task
from ..text import first_of
from .examples import Example, Label, is_blank, names_of
from .stratified_split import quantile_bins, split_rows, text_key
from .table_formats import Row

SPLITS = ("train", "valid", "test")
RARE = 10  # rows of train: a class with fewer is named
FEW = 20  # different labels: more whole numbers than that may be scores, and more texts, half of the rows, no classes
LEAST_DEVIATION = 0.05  # of scores, as a share of the highest
MISSING = ("na", "n/a", "nan", "<na>", "null", "none", "-", "?")  # what tables have for a number that is not known
YES, NO = ("1", "true"), ("0", "false")


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


@dataclass(frozen=True)
class OwnData:
    """A task, its splits, and what was found, a line each."""

    task: Task
    splits: Mapping[str, Sequence[Example]]
    notes: Sequence[str]


def own_data(
    name: str,
    tables: Mapping[str, Iterable[Row]],
    columns: Columns,
    fractions: Mapping[str, float],
    kind: str | None = None,
    seed: int = 1,
) -> OwnData:
    """The task that some tables are.

    Args:
        name: of the task.
        tables: the rows of train, and of valid and test where there are files of their own.
        columns: where texts and labels stand. Rows of test may have no label, all of them: then none is written.
        fractions: what train is divided into, by the share of its rows; nothing where it is train alone.
        kind: one of KINDS; None: as the labels say.
        seed: of the division.

    Raises:
        UserError: a row that is not what the others are, or a table without rows; labels that may be of several kinds.
    """
    notes: list[str] = []
    read = _without_decimals({split: _read(split, rows, columns, notes) for split, rows in tables.items()})
    every = [item for items in read.values() for item in items]
    _refuse_vectors(every, columns)
    kind = kind or _find_kind(every, columns, notes)
    check("--kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}")
    items = {split: _labelled(split, rows, kind, columns, notes) for split, rows in read.items()}
    notes += _contradictions([item for rows in items.values() for item in rows])
    notes += _remove_leaks(items)
    if fractions:
        items = {**_divide(items["train"], kind, fractions, seed), **{k: v for k, v in items.items() if k != "train"}}
    for split, rows in items.items():
        if not rows:
            counts = ", ".join(f"{name} {len(rows):,}" for name, rows in items.items())
            raise UserError(f"{split} would have no row ({counts}): give it a table of its own, or another --split")
    notes += _scores_notes(items) if kind == "regression" else _class_notes(items)
    splits = {split: [item.example for item in items[split]] for split in SPLITS if split in items}
    if kind == "regression":
        task = own_task(name, kind, scale=_highest(items["train"]))
    else:
        classes = {label for item in items["train"] for label in names_of(item.example.label)}
        task = own_task(name, kind, sorted(classes))
    has_answers = any(example.label is not None for example in splits.get("test", ()))
    return OwnData(replace(task, test_sets={"test": "test"}) if has_answers else task, splits, notes)


def _read(split: str, rows: Iterable[Row], columns: Columns, notes: list[str]) -> list[Item]:
    """The rows that have a text."""
    items: list[Item] = []
    empty = 0
    for row in rows:
        if any(row.value(name) is None for name in (columns.text, columns.second) if name is not None):
            empty += 1  # null, in formats that have it
            continue
        text = row.text(columns.text)
        second = None if columns.second is None else row.plain_text(columns.second)
        if items and isinstance(text, str) != isinstance(items[0].example.text, str):
            raise UserError(f"{row.where}: {columns.text} must hold text in all rows, or lists of words in all")
        if is_blank("".join(text)) or (second is not None and is_blank(second)):
            empty += 1
            continue
        group = None if columns.group is None else row.value(columns.group)
        group = None if group in (None, "") else str(group)
        items.append(Item(Example(text, None, second, row.where), _raw_label(split, row, columns), group))
    if empty:
        notes.append(f"{split}: {empty:,} rows with an empty text are left out")
    return items


def _raw_label(split: str, row: Row, columns: Columns) -> object:
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
    if text[1] in "'\"" or all(_number(part) is not None for part in text[1:-1].split()):
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


def _without_decimals(read: dict[str, list[Item]]) -> dict[str, list[Item]]:
    """The rows with the label 1 for 1.0, where all are whole numbers: pandas writes 1.0 if the column has empty cells.

    A number without a point stays as it stands: 007 may be a name.
    """
    if not all(_is_whole(item.raw) for items in read.values() for item in items if item.raw is not None):
        return read
    return {
        split: [replace(item, raw=str(int(float(str(item.raw))))) if "." in str(item.raw) else item for item in items]
        for split, items in read.items()
    }


def _refuse_vectors(items: Sequence[Item], columns: Columns) -> None:
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


def _find_kind(items: Sequence[Item], columns: Columns, notes: list[str]) -> str:
    labels = [item.raw for item in items if item.raw is not None]
    column, distinct = ", ".join(columns.labels), len({str(label) for label in labels})
    if items and isinstance(items[0].example.text, tuple):
        kind, reason = "token-label", f"{columns.text} holds lists of words"
    elif any(isinstance(label, list) for label in labels):
        kind, reason = "multi-label", f"{column} holds lists" if len(columns.labels) == 1 else "several label columns"
    elif labels and all(_number(label) is not None for label in labels):
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
    return kind


def _no_numbers(items: Sequence[Item]) -> list[Item]:
    """The labels that are no numbers where numbers are meant; none where the labels may be names of classes.

    Numbers are meant where nothing but numbers, also with a decimal comma, and marks of a missing value stand there,
    or where they are most of more than FEW different labels.
    """
    labels = [str(item.raw) for item in items if item.raw is not None]
    known = [label for label in labels if _number(label.replace(",", ".", 1)) is not None]
    others = {label for label in labels if label.lower() not in MISSING} - set(known)
    meant = (known and not others) or (2 * len(known) > len(labels) and len(set(labels)) > FEW)
    return [item for item in items if item.raw is not None and _number(item.raw) is None] if meant else []


def _described(no_numbers: Sequence[Item], items: Sequence[Item], column: str) -> str:
    """Labels that are no numbers: the first, how many there are of which, and what to do."""
    first = no_numbers[0]
    labels = Counter(str(item.raw)[:100] for item in no_numbers)
    listed = first_of([f"{label!r} in {number:,}" for label, number in labels.most_common()])
    remedies = []
    if any(_number(label) is None and _number(label.replace(",", ".", 1)) is not None for label in labels):
        remedies.append("write 3.5 for 3,5 and 1234 for 1,234, or give --separator , where several classes stand there")
    if any(label.lower() in MISSING for label in labels):
        remedies.append("leave the cell of a missing value empty, and the row is left out, or fill it")
    return (
        f"{first.where}: {column} is {str(first.raw)[:100]!r}, which is no number, as in {len(no_numbers):,} of "
        f"{len(items):,} rows ({listed}): {'; '.join(remedies) or 'mend or remove these rows'}"
    )


def _number(label: object) -> float | None:
    """The value of a finite number; None for anything else."""
    with contextlib.suppress(ValueError):
        value = float(str(label))
        return value if math.isfinite(value) else None
    return None


def _is_whole(label: object) -> bool:
    """Whether a label is a whole number, which 1.0 is."""
    number = _number(label)
    return number is not None and number.is_integer()


def _labelled(split: str, items: Sequence[Item], kind: str, columns: Columns, notes: list[str]) -> list[Item]:
    """The rows that have a label, as the kind of the task has it; all rows of a test set that has no label at all."""
    if split == "test" and not any(item.raw for item in items):  # no class of several in any row is no label either
        notes.append("test: has no labels")
        return list(items)
    known = [item for item in items if item.raw is not None]
    if len(known) < len(items):
        notes.append(f"{split}: {len(items) - len(known):,} rows with an empty label are left out")
    texts = [item for item in known if not isinstance(item.raw, list)]
    if kind == "regression" and (no_numbers := [item for item in texts if _number(item.raw) is None]):
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


def _contradictions(items: Sequence[Item]) -> Iterator[str]:
    """What is to be said of texts that stand there more than once."""
    labels: dict[str, list[object]] = defaultdict(list)
    for item in items:
        if (label := item.example.label) is not None:
            number = _number(label)
            several = isinstance(label, tuple) and isinstance(item.example.text, str)  # classes, in any order
            same = tuple(sorted(set(label))) if several else label
            labels[text_key(item.example)].append(same if number is None else number)
    repeated = [found for found in labels.values() if len(found) > 1]
    contradictory = [found for found in repeated if len(set(found)) > 1]
    if repeated:
        yield f"{len(repeated):,} texts stand in several rows ({sum(map(len, repeated)):,}): each in one split"
    if contradictory:
        rows = sum(map(len, contradictory))
        yield f"warning: {len(contradictory):,} of these texts have different labels ({rows:,} rows)"


def _remove_leaks(items: dict[str, list[Item]]) -> Iterator[str]:
    """Takes out of train what valid or test hold too, and out of valid what test holds: the test set stays as given."""
    order = [split for split in SPLITS if split in items]
    for number, split in enumerate(order):
        later = {key for other in order[number + 1 :] for item in items[other] for key in _bonds(item)}
        kept = [item for item in items[split] if not later.intersection(_bonds(item))]
        if len(kept) < len(items[split]):
            lost = len(items[split]) - len(kept)
            yield f"{split}: {lost:,} rows whose text or group is in {' or '.join(order[number + 1 :])} are left out"
        items[split] = kept


def _bonds(item: Item) -> list[Hashable]:
    """What a row may not have in common with a row of another split."""
    return [text_key(item.example)] + ([] if item.group is None else [("group", item.group)])


def _divide(items: Sequence[Item], kind: str, fractions: Mapping[str, float], seed: int) -> dict[str, list[Item]]:
    if not items:
        return {split: [] for split in fractions}
    labels = [names_of(item.example.label) for item in items]
    if kind == "regression":
        labels = [(number,) for number in quantile_bins([float(str(item.example.label)) for item in items])]
    chosen = split_rows([_bonds(item) for item in items], labels, fractions, seed)
    return {split: [item for item, place in zip(items, chosen, strict=True) if place == split] for split in fractions}


def _highest(items: Sequence[Item]) -> float:
    """What scores are divided by, so that the highest, or the lowest where that is further from 0, is 1 (or -1)."""
    return max(abs(float(str(item.example.label))) for item in items) or 1.0


def _scores_notes(items: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    scores = [float(str(item.example.label)) for item in items["train"]]
    deviation, scale = statistics.pstdev(scores), _highest(items["train"])
    yield f"scores from {min(scores):g} to {max(scores):g}, written divided by {scale:g}"
    if deviation < LEAST_DEVIATION * scale:
        yield (
            f"warning: the scores' standard deviation, {deviation:.3g}, is less than {LEAST_DEVIATION:.0%} of the "
            "highest: a model learns them badly; subtract their mean first, or take logarithms"
        )


def _class_notes(items: Mapping[str, Sequence[Item]]) -> Iterator[str]:
    """Which classes are rare, and of multi-label rows how many have none."""
    train: Counter[str] = Counter()
    for item in items["train"]:
        for name in names_of(item.example.label):
            if name not in train:
                check_label(name, f"{item.where}: ")
            train[name] += 1
    check("classes of train", len(train), len(train) > 1, "at least 2")
    for split, rows in items.items():
        for item in rows:
            if unknown := set(names_of(item.example.label)) - set(train):
                raise UserError(f"{item.where}: label {min(unknown)!r} of {split} is not in train: {_some(train)}")
        if without := sum(item.example.label == () for item in rows):
            yield f"{split}: {without:,} rows have no class"
    if rare := {name: number for name, number in train.items() if number < RARE}:
        yield f"warning: {len(rare):,} classes have fewer than {RARE} rows in train: {_some(rare)}"
    if alike := list(_alike(train)):
        yield f"warning: classes that differ only in capitals, or are one number: {first_of(alike)}"
    if misspelt := [f"{one!r} ({other!r}: {train[other]:,} rows)" for one, other in _misspelt(train)]:
        yield f"warning: labels in one row of train that may be others, misspelt: {first_of(misspelt)}"


def _alike(counts: Mapping[str, int]) -> Iterator[str]:
    """Classes that are one but for capitals, or the same number: all of one meaning together."""
    spellings: dict[Hashable, list[str]] = defaultdict(list)
    for label in counts:
        number = _number(label)
        spellings[label.casefold() if number is None else number].append(label)
    for same in spellings.values():
        if len(same) > 1:
            yield " and ".join(f"{label!r} ({counts[label]:,})" for label in sorted(same))


def _misspelt(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Labels that occur once, each with the commonest that differs by one character.

    Not numbers, nor B-X and I-X, nor those that `_alike` names.
    """
    for label in (label for label, number in counts.items() if number == 1 and _number(label) is None):
        alike = [other for other in counts if counts[other] > 1 and _differ_by_one(label, other)]
        alike = [other for other in alike if other.casefold() != label.casefold()]
        alike = [other for other in alike if not (label[1:] == other[1:] and label[1:2] == "-")]
        if alike:
            yield label, max(alike, key=counts.__getitem__)


def _differ_by_one(one: str, other: str) -> bool:
    """Whether one character changed, added or left out makes one text of the other."""
    shorter, longer = sorted((one, other), key=len)
    same = next((at for at, pair in enumerate(zip(shorter, longer, strict=False)) if pair[0] != pair[1]), len(shorter))
    return longer[same + 1 :] in (shorter[same:], shorter[same + 1 :]) and len(longer) - len(shorter) < 2


def _some(counts: Mapping[str, int]) -> str:
    """The first names of some classes, the rarest first, with how often each stands in train."""
    names = sorted(counts, key=lambda name: (counts[name], name))
    return first_of([f"{name} ({counts[name]:,})" for name in names])
