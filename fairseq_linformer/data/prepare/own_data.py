"""Division of labelled tables into the splits of a task, and an audit of them.

No text is changed; notes count rows that are left out or suspicious.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import train_test_split

from ...errors import UserError, join_truncated
from ..task_record import Task, own_task
from .examples import Example, names_of
from .labels import Columns, TableRow, check_labels, drop_decimals, find_label_type, number_of, read_label
from .table import Row
from .text_files import is_blank

SPLITS = ("train", "valid", "test")
BINS = 10  # of scores: rows of each tenth are divided in the same proportions, as those of a class


@dataclass(frozen=True)
class OwnData:
    """Task, its splits, and notes on them, a line each."""

    task: Task
    splits: Mapping[str, Sequence[Example]]
    notes: Sequence[str]


def own_data(
    name: str,
    tables: Mapping[str, Iterable[Row]],
    columns: Columns,
    fractions: Mapping[str, float],
    label_type: str | None = None,
    seed: int = 1,
) -> OwnData:
    """Make a task from tables.

    Args:
        name: name of the task.
        tables: rows of train, and of valid and test if these have separate tables.
        columns: columns of texts and labels. Rows of test may all be without a label: then none is written.
        fractions: the splits that train is divided into, and their shares; empty for train alone.
        label_type: the type of label, one of KINDS; None to derive it from the values.
        seed: seed of the division.

    Raises:
        UserError: a row does not fit the type of label, a split has no rows, or the type of label is ambiguous.
    """
    notes: list[str] = []
    splits = drop_decimals({split: list(_read(split, rows, columns)) for split, rows in tables.items()})
    splits = {split: _leave_out_empty(split, rows, notes) for split, rows in splits.items()}
    if label_type is None:
        label_type = find_label_type(list(chain(*splits.values())), columns)
        notes.append(f"{label_type}, by the labels (--kind names another)")
    labelled = [row for row in chain(*splits.values()) if row.label is not None]
    check_labels(labelled, label_type, columns)
    notes += _repeated_texts(labelled)
    notes += _leave_out_leaks(splits)
    if fractions and (rows := splits["train"]):
        strata = [names_of(row.label) for row in rows]
        if label_type == "regression":
            strata = [(tenth,) for tenth in quantile_bins([float(str(row.label)) for row in rows])]
        chosen = split_rows([_keys(row) for row in rows], strata, fractions, seed)
        splits |= {name: [row for row, split in zip(rows, chosen, strict=True) if split == name] for name in fractions}
    if empty := [split for split, rows in splits.items() if not rows]:
        raise UserError(f"{empty[0]} would have no row ({'; '.join(notes)})")
    if label_type == "regression":
        scores = [float(str(row.label)) for row in splits["train"]]
        task = own_task(name, label_type, scale=max(map(abs, scores)) or 1.0)
        notes.append(f"scores from {min(scores):g} to {max(scores):g}, written divided by {task.scale:g}")
    else:
        task = own_task(name, label_type, _classes(splits, notes))
    has_answers = any(row.label is not None for row in splits.get("test", ()))
    texts = (columns.text,) if columns.second is None else (columns.text, columns.second)
    task = replace(task, columns=texts, test_sets={"test": "test"} if has_answers else {})
    return OwnData(task, {split: splits[split] for split in SPLITS if split in splits}, notes)


def _read(split: str, rows: Iterable[Row], columns: Columns) -> Iterator[TableRow]:
    """Yield the rows; the text of a row is empty if one of its texts is blank or null."""
    names = [columns.text] if columns.second is None else [columns.text, columns.second]
    for row in rows:
        text = "" if any(row.value(name) is None for name in names) else row.text(columns.text)
        second = row.plain_text(columns.second) if text and columns.second is not None else None
        if is_blank("".join(text)) or (second is not None and is_blank(second)):
            yield TableRow("", None)
            continue
        group = None if columns.group is None else row.value(columns.group)
        is_unlabelled = split == "test" and not set(columns.labels) & set(row.columns)
        label = None if is_unlabelled else read_label(row, columns)
        yield TableRow(text, label, second, row.location, None if group in (None, "") else str(group))


def _leave_out_empty(split: str, rows: Sequence[TableRow], notes: list[str]) -> list[TableRow]:
    """Return the rows that have a text and a label; of a test set without any label, the rows that have a text."""
    filled = [row for row in rows if row.text]
    if split == "test" and not any(row.label for row in filled):  # a row without classes is unlabelled if all are
        notes.append("test: has no labels")
        labelled = [replace(row, label=None) for row in filled]
    else:
        labelled = [row for row in filled if row.label is not None]
    for part, count in {"text": len(rows) - len(filled), "label": len(filled) - len(labelled)}.items():
        if count:
            notes.append(f"{split}: {count:,} rows with an empty {part} are left out")
    return labelled


def text_key(example: Example) -> str:
    """Return a text without differences in case and white space."""
    text = example.text if isinstance(example.text, str) else " ".join(example.text)
    return "\0".join(" ".join(part.casefold().split()) for part in (text, example.second or ""))


def _repeated_texts(rows: Sequence[TableRow]) -> Iterator[str]:
    """Yield notes on texts in several rows, and on those of them that have different labels."""
    by_text: dict[str, list[Hashable]] = defaultdict(list)
    for row in rows:
        classes = frozenset(names_of(row.label)) if isinstance(row.text, str) else names_of(row.label)
        number = number_of(row.label)
        by_text[text_key(row)].append(classes if number is None else number)
    repeated = [labels for labels in by_text.values() if len(labels) > 1]
    different = [labels for labels in repeated if len(set(labels)) > 1]
    if repeated:
        yield f"{len(repeated):,} texts are in several rows ({sum(map(len, repeated)):,}): each is in one split"
    if different:
        yield f"warning: {len(different):,} of these texts have different labels ({sum(map(len, different)):,} rows)"


def _leave_out_leaks(splits: dict[str, list[TableRow]]) -> Iterator[str]:
    """Remove the texts of valid and test from train, and the texts of test from valid; test is unchanged."""
    order = [split for split in SPLITS if split in splits]
    for number, split in enumerate(order):
        later = {key for name in order[number + 1 :] for row in splits[name] for key in _keys(row)}
        remaining = [row for row in splits[split] if not later.intersection(_keys(row))]
        if lost := len(splits[split]) - len(remaining):
            yield f"{split}: {lost:,} rows whose text or group is in {' or '.join(order[number + 1 :])} are left out"
        splits[split] = remaining


def _keys(row: TableRow) -> list[Hashable]:
    return [text_key(row)] + ([] if row.group is None else [("group", row.group)])


def _classes(splits: Mapping[str, Sequence[TableRow]], notes: list[str]) -> list[str]:
    """Return the classes of train, sorted; note the classes that occur once."""
    counts = Counter(chain.from_iterable(set(names_of(row.label)) for row in splits["train"]))
    if len(counts) < 2:
        raise UserError(f"train has the classes {', '.join(counts) or 'none'}: two are needed")
    for split, rows in splits.items():
        for row in rows:
            if unknown := set(names_of(row.label)) - set(counts):
                raise UserError(f"{row.location}: label {min(unknown)!r} of {split} is not in train")
    if rare := sorted(name for name, count in counts.items() if count == 1):
        notes.append(f"warning: {len(rare):,} labels occur once in train: {join_truncated(rare)}")
    return sorted(counts)


def quantile_bins(scores: Sequence[float]) -> list[str]:
    """Return the bin of each score, one of BINS quantiles; equal scores share a bin."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1]))
    return [str(number) for number in np.searchsorted(edges, scores, side="right")]


def split_rows(
    keys: Sequence[Sequence[Hashable]], labels: Sequence[Sequence[str]], fractions: Mapping[str, float], seed: int
) -> list[str]:
    """Return the split of each row.

    Rows that a chain of equal keys connects are one unit, which is in one split and counts under the rarest of its
    labels. The first split has every label.

    Args:
        keys: keys of each row: its text and, if any, its group.
        labels: labels of each row; it may have none.
        fractions: the share of the units that each split gets.
        seed: seed of the division.
    """
    units = _connect(keys)
    frequency = Counter(chain.from_iterable(map(set, labels)))
    stratum = [""] * (max(units) + 1)
    for unit, names in zip(units, labels, strict=True):
        candidates = {*names, stratum[unit]} - {""}
        stratum[unit] = min(candidates, key=lambda name: (frequency[name], name), default="")
    first, *other_splits = fractions
    split_of_unit = [first] * len(stratum)
    left = list(range(len(stratum)))
    for split in other_splits:
        size = round(fractions[split] * len(stratum))
        if not 0 < size < len(left):
            continue
        strata = _merge_rare([stratum[unit] for unit in left], size)
        left, assigned = train_test_split(left, test_size=size, random_state=seed, stratify=strata)
        for unit in assigned:
            split_of_unit[unit] = split
    rows = list(zip(units, labels, strict=True))
    trained = {name for unit, names in rows if split_of_unit[unit] == first for name in names}
    for unit, names in rows:
        if not trained.issuperset(names):
            split_of_unit[unit] = first
            trained.update(names)
    return [split_of_unit[unit] for unit in units]


def _merge_rare(strata: Sequence[str], size: int) -> list[str] | None:
    """Merge the strata with too few units for scikit-learn to divide; return None if that leaves one."""
    minimum = max(2, math.ceil(len(strata) / size), math.ceil(len(strata) / (len(strata) - size)))
    counts = Counter(strata)
    merged = ["" if counts[name] < minimum else name for name in strata]
    counts = Counter(merged)
    if counts.get("") == 1:
        merged[merged.index("")] = counts.most_common(1)[0][0]
    return merged if len(set(merged)) > 1 else None


def _connect(keys: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return a number for each row, the same for rows that a chain of keys connects."""
    numbers: dict[Hashable, int] = {}
    rows = [row for row, of_row in enumerate(keys) for _ in of_row]
    targets = [len(keys) + numbers.setdefault(key, len(numbers)) for of_row in keys for key in of_row]
    size = len(keys) + len(numbers)
    graph = coo_array((np.ones(len(rows), dtype=bool), (rows, targets)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(keys)].tolist()
