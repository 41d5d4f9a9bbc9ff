"""Own labelled data: the rows of tables into the splits of a task, and what is to be known about them.

The kind of the task is what its labels say that cannot be mistaken, and otherwise asked for. Nothing of a text is
changed; what is left out, or looks wrong, is counted and said.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UserError, check
from ..task_record import KINDS, Task, own_task
from .class_checks import class_notes, highest, scores_notes
from .examples import Example, is_blank, names_of, words_of
from .label_kinds import Columns, Item, find_kind, labelled, number_of, raw_label, refuse_vectors, without_decimals
from .stratified_split import quantile_bins, split_rows, text_key
from .table_formats import Row

SPLITS = ("train", "valid", "test")
QUOTED = re.compile(r'"[^"]*(?:""[^"]*)+"')  # a cell as CSV writes it


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
    read = without_decimals({split: _read(split, rows, columns, notes) for split, rows in tables.items()})
    for split, with_text in read.items():
        if not with_text:
            raise UserError(f"the table of {split} has no row with a text")
    every = [item for items in read.values() for item in items]
    refuse_vectors(every, columns)
    kind = kind or find_kind(every, columns, notes)
    check("--kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}")
    items = {split: labelled(split, rows, kind, columns, notes) for split, rows in read.items()}
    notes += _quoted(every)
    notes += _contradictions([item for rows in items.values() for item in rows])
    notes += _remove_leaks(items)
    if fractions:
        items = {**_divide(items["train"], kind, fractions, seed), **{k: v for k, v in items.items() if k != "train"}}
    for split, rows in items.items():
        if not rows:
            counts = [f"{name} {len(rows):,}" for name, rows in items.items()]
            why = "; ".join([", ".join(counts), *(note for note in notes if note.endswith("are left out"))])
            raise UserError(f"{split} would have no row ({why}): give it other rows, or another --split")
    notes += scores_notes(items) if kind == "regression" else class_notes(items)
    splits = {split: [item.example for item in items[split]] for split in SPLITS if split in items}
    if kind == "regression":
        task = own_task(name, kind, scale=highest(items["train"]))
    else:
        classes = {label for item in items["train"] for label in names_of(item.example.label)}
        task = own_task(name, kind, sorted(classes))
    has_answers = any(example.label is not None for example in splits.get("test", ()))
    texts = (columns.text,) if columns.second is None else (columns.text, columns.second)
    task = replace(task, columns=texts, test_sets={"test": "test"} if has_answers else {})
    return OwnData(task, splits, notes)


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
        items.append(Item(Example(text, None, second, row.where), raw_label(split, row, columns), group))
    if empty:
        notes.append(f"{split}: {empty:,} rows with an empty text are left out")
    return items


def _quoted(items: Sequence[Item]) -> Iterator[str]:
    """What is to be said of texts in the quotation marks of CSV, which in a TSV are text."""
    if number := sum(bool(QUOTED.fullmatch(text)) for item in items for text in words_of(item.example)):
        yield (
            f"warning: {number:,} texts stand between quotation marks and have doubled ones within, as CSV writes "
            "them: --from csv reads a .tsv file so"
        )


def _contradictions(items: Sequence[Item]) -> Iterator[str]:
    """What is to be said of texts that stand there more than once."""
    labels: dict[str, list[object]] = defaultdict(list)
    for item in items:
        if (label := item.example.label) is not None:
            number = number_of(label)
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
