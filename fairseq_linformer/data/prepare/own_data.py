"""Own labelled data: rows of tables into the splits of a task, and an audit of them.

Nothing of a text is changed; rows that are left out, or look wrong, are counted in notes.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ...errors import UserError, check, join_truncated
from ..task_record import KINDS, Task, own_task
from .examples import Example, names_of
from .labels import Columns, TableRow, check_labels, drop_decimals, find_label_type, number_of, read_label
from .splitting import quantile_bins, split_rows, text_key
from .table import Row
from .text_files import is_blank

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class OwnData:
    """A task, its splits, and notes on them, a line each."""

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
    """Make a task of tables.

    Args:
        name: of the task.
        tables: the rows of train, and of valid and test where these have tables of their own.
        columns: of texts and labels. Rows of test may have no label, all of them: then none is written.
        fractions: the splits that train is divided into, and their shares; empty where it is train alone.
        kind: the type of label, one of KINDS; None: as the values say.
        seed: of the division.

    Raises:
        UserError: a row does not fit the others, a split has no rows, or labels may be of several types.
    """
    notes: list[str] = []
    splits = drop_decimals({split: _read(split, rows, columns, notes) for split, rows in tables.items()})
    if kind is None:
        kind, reason = find_label_type(list(chain(*splits.values())), columns)
        notes.append(f"{kind}, as {reason} (--kind names another)")
    check("--kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}")
    splits = {split: _labelled(split, rows, notes) for split, rows in splits.items()}
    check_labels([row for row in chain(*splits.values()) if row.label is not None], kind, columns)
    notes += _repeated_texts(list(chain(*splits.values())))
    notes += _leave_out_leaks(splits)
    if fractions:
        splits = {**splits, **_divide(splits["train"], kind, fractions, seed)}
    for split, rows in splits.items():
        if not rows:
            counts = ", ".join(f"{name} {len(rows):,}" for name, rows in splits.items())
            raise UserError(f"{split} would have no row ({'; '.join([counts, *notes])})")
    texts = (columns.text,) if columns.second is None else (columns.text, columns.second)
    if kind == "regression":
        scores = [float(str(row.label)) for row in splits["train"]]
        task = own_task(name, kind, scale=max(map(abs, scores)) or 1.0)
        notes.append(f"scores from {min(scores):g} to {max(scores):g}, written divided by {task.scale:g}")
    else:
        task = own_task(name, kind, _classes(splits, notes))
    has_answers = any(row.label is not None for row in splits.get("test", ()))
    task = replace(task, columns=texts, test_sets={"test": "test"} if has_answers else {})
    examples = {split: list(map(_without_group, splits[split])) for split in SPLITS if split in splits}
    return OwnData(task, examples, notes)


def _read(split: str, rows: Iterable[Row], columns: Columns, notes: list[str]) -> list[TableRow]:
    """Return the rows that have a text."""
    read: list[TableRow] = []
    empty = 0
    for row in rows:
        if any(row.value(name) is None for name in (columns.text, columns.second) if name is not None):
            empty += 1  # null, in formats that have it
            continue
        text = row.text(columns.text)
        second = None if columns.second is None else row.plain_text(columns.second)
        if read and isinstance(text, str) != isinstance(read[0].text, str):
            raise UserError(f"{row.where}: {columns.text} must hold text in all rows, or lists of words in all")
        if is_blank("".join(text)) or (second is not None and is_blank(second)):
            empty += 1
            continue
        group = None if columns.group is None else row.value(columns.group)
        unlabelled = split == "test" and not set(columns.labels) & set(row.columns)
        label = None if unlabelled else read_label(row, columns)
        read.append(TableRow(text, label, second, row.where, None if group in (None, "") else str(group)))
    if empty:
        notes.append(f"{split}: {empty:,} rows with an empty text are left out")
    return read


def _labelled(split: str, rows: Sequence[TableRow], notes: list[str]) -> list[TableRow]:
    """Return the rows that have a label; all rows of a test set that has no label at all."""
    if split == "test" and not any(row.label for row in rows):  # no class of several in any row is no label either
        notes.append("test: has no labels")
        return [replace(row, label=None) for row in rows]
    labelled = [row for row in rows if row.label is not None]
    if len(labelled) < len(rows):
        notes.append(f"{split}: {len(rows) - len(labelled):,} rows with an empty label are left out")
    return labelled


def _without_group(row: TableRow) -> Example:
    label = row.label
    if isinstance(label, tuple) and isinstance(row.text, str):
        label = tuple(dict.fromkeys(label))  # a class that a row names twice counts once
    return Example(row.text, label, row.second, row.where)


def _repeated_texts(rows: Sequence[TableRow]) -> Iterator[str]:
    """Yield notes on texts in several rows, and on those among them that have different labels."""
    labels: dict[str, list[Hashable]] = defaultdict(list)
    for row in rows:
        if row.label is not None:
            in_any_order = isinstance(row.label, tuple) and isinstance(row.text, str)
            number = number_of(row.label)
            label = tuple(sorted(set(row.label))) if in_any_order else row.label if number is None else number
            labels[text_key(row)].append(label)
    repeated = [found for found in labels.values() if len(found) > 1]
    different = [found for found in repeated if len(set(found)) > 1]
    if repeated:
        yield f"{len(repeated):,} texts stand in several rows ({sum(map(len, repeated)):,}): each in one split"
    if different:
        yield f"warning: {len(different):,} of these texts have different labels ({sum(map(len, different)):,} rows)"


def _leave_out_leaks(splits: dict[str, list[TableRow]]) -> Iterator[str]:
    """Leave out of train what valid or test hold, too, and out of valid what test holds; test stays as it is."""
    order = [split for split in SPLITS if split in splits]
    for number, split in enumerate(order):
        later = {key for other in order[number + 1 :] for row in splits[other] for key in _keys(row)}
        kept = [row for row in splits[split] if not later.intersection(_keys(row))]
        if lost := len(splits[split]) - len(kept):
            yield f"{split}: {lost:,} rows whose text or group is in {' or '.join(order[number + 1 :])} are left out"
        splits[split] = kept


def _keys(row: TableRow) -> list[Hashable]:
    """Return what no two splits may have in common."""
    return [text_key(row)] + ([] if row.group is None else [("group", row.group)])


def _divide(
    rows: Sequence[TableRow], kind: str, fractions: Mapping[str, float], seed: int
) -> dict[str, list[TableRow]]:
    strata = [names_of(row.label) for row in rows]
    if kind == "regression":
        strata = [(tenth,) for tenth in quantile_bins([float(str(row.label)) for row in rows])]
    chosen = split_rows([_keys(row) for row in rows], strata, fractions, seed)
    return {name: [row for row, split in zip(rows, chosen, strict=True) if split == name] for name in fractions}


def _classes(splits: Mapping[str, Sequence[TableRow]], notes: list[str]) -> list[str]:
    """Return the classes of train, sorted; note those that occur once."""
    counts = Counter(chain.from_iterable(set(names_of(row.label)) for row in splits["train"]))
    if len(counts) < 2:
        raise UserError(f"train has {f'one class, {min(counts)!r}' if counts else 'no class'}: two are needed")
    for split, rows in splits.items():
        for row in rows:
            if unknown := set(names_of(row.label)) - set(counts):
                raise UserError(f"{row.where}: label {min(unknown)!r} of {split} is not in train")
    if once := sorted(name for name, count in counts.items() if count == 1):
        notes.append(f"warning: {len(once):,} labels occur once in train: {join_truncated(once)}")
    return sorted(counts)
