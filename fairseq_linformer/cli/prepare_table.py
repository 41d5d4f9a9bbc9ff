"""`linformer prepare table`: rows of tables into the splits of an own task."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.dictionaries import unknown_warning
from ..data.prepare.labelled_folder import write_labelled
from ..data.prepare.labels import Columns
from ..data.prepare.own_data import SPLITS, own_data
from ..data.prepare.table import WHOLE, Row, read_table
from ..data.task_record import letters_of
from ..data.tasks import TASKS
from ..data.tokenizer import load_tokenizer
from ..errors import UserError, check
from ..system.files import A_NAME, check_data_path, is_name
from .program import print_next

DEFAULT_SPLIT = (0.8, 0.1, 0.1)


def _read_tables(files: Mapping[str, Sequence[Path]], file_format: str | None) -> dict[str, Iterable[Row]]:
    """Return the rows by split: of the files of each, and of the splits of data sets that are named as train's files.

    Raises:
        UserError: a data set that --valid or --test names has no such split.
    """
    tables: dict[str, list[Iterable[Row]]] = {}
    for split, paths in files.items():
        for path in paths:
            read = read_table(path, file_format)
            if split != "train" and not read.keys() & {WHOLE, split}:
                raise UserError(f"--{split} {path}: no split {split} among {', '.join(read)}: name the folder of one")
            for name, rows in read.items():
                if name in (WHOLE, split):
                    tables.setdefault(split, []).append(rows)
                elif split == "train" and name in SPLITS and not files[name]:
                    tables.setdefault(name, []).append(rows)
                elif split == "train":
                    print(f"not used: {path}, split {name}")
    return {split: chain.from_iterable(rows) for split, rows in tables.items()}


def _fractions(tables: Mapping[str, object], shares: Sequence[float] | None) -> dict[str, float]:
    """Return the splits that the rows of train are divided into, and their shares; none where valid has its own."""
    if "valid" in tables:
        check("--split", shares, shares is None, "left out, as valid has rows of its own")
        return {}
    splits = [split for split in SPLITS if split == "train" or split not in tables]
    shares = shares or (DEFAULT_SPLIT if len(splits) == 3 else (0.9, 0.1))
    check("--split", " ".join(map(str, shares)), 2 <= len(shares) <= len(splits), f"the shares of {', '.join(splits)}")
    return dict(zip(splits, shares, strict=False))


def check_task_name(name: str) -> None:
    """Raise a UserError for a name that cannot be one of an own task."""
    check("--out", name, is_name(name), f"a folder whose name has {A_NAME}")
    if taken := [task for task in TASKS if letters_of(task) == letters_of(name)]:
        raise UserError(f"--out: the folder's name is the task's, but {taken[0]} is a task already")


def run(
    files: Sequence[Path],
    valid: Sequence[Path],
    test: Sequence[Path],
    text: str,
    label: Sequence[str],
    second: str | None,
    group: str | None,
    separator: str | None,
    tokenizer: Path,
    out: Path,
    format: str | None,
    kind: str | None,
    split: Sequence[float] | None,
    seed: int,
) -> None:
    check_data_path(out)  # before anything is read
    check_task_name(out.resolve().name)
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    tables = _read_tables({"train": files, "valid": valid, "test": test}, format)
    if "train" not in tables:
        raise UserError(f"{', '.join(map(str, files))}: no rows of train")
    columns = Columns(text, tuple(label), second, group, separator)
    data = own_data(out.resolve().name, tables, columns, _fractions(tables, split), kind, seed)
    summary = write_labelled(out, data.task, data.splits, loaded)
    print(*data.notes, *summary.lines(), *unknown_warning(summary.unknown_shares), sep="\n")
    print_next(out.parent, [summary.task.name], tokenizer)
