"""What `linformer prepare table` does: rows of tables into the splits of an own task."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.prepare.label_kinds import Columns
from ..data.prepare.labelled_folder import write_labelled
from ..data.prepare.own_data import SPLITS, own_data
from ..data.prepare.table_files import WHOLE, read_table
from ..data.prepare.table_formats import Row
from ..data.task_record import letters_of
from ..data.tasks import TASKS
from ..data.text import first_of
from ..data.tokenizer import load_tokenizer
from ..data.unknown_pieces import GIVEN_REMEDY
from ..errors import UserError, check
from ..system.files import A_NAME, check_data_path, is_name
from .program import print_next

DEFAULT_SPLIT = (0.8, 0.1, 0.1)


def _tables(files: Mapping[str, Sequence[Path]], kind: str | None) -> tuple[dict[str, Iterable[Row]], list[Path]]:
    """The rows by split: of the files of each, and of what a saved dataset calls its splits.

    Returns:
        The tables; and of saved datasets the folders of splits that have names of their own, and are not in `files`.
    """
    tables: dict[str, list[Iterable[Row]]] = {}
    unused = []
    named = {path.absolute() for paths in files.values() for path in paths}
    for split, paths in files.items():
        for path in paths:
            read = read_table(path, kind)
            if split != "train" and not read.keys() & {WHOLE, split}:
                raise UserError(f"--{split} {path}: no split {split} among {', '.join(read)}: name the folder of one")
            for name, rows in read.items():
                if name not in (WHOLE, split) and (split != "train" or files.get(name)):
                    continue  # of a saved dataset the split that the option asks for, or all where none asks
                if name in (WHOLE, *SPLITS):
                    tables.setdefault(split if name == WHOLE else name, []).append(rows)
                elif (path / name).absolute() not in named:
                    unused.append(path / name)
    return {split: chain.from_iterable(rows) for split, rows in tables.items()}, unused


def _refuse_division(tables: Collection[str], unused: Sequence[Path]) -> None:
    """UserError where rows of train would be divided although a saved dataset has splits to validate or test on."""
    for folder in unused:
        split = "test" if folder.name.startswith("test") else "valid"
        if folder.name.startswith(("val", "dev", "test")) and not {"valid", split} & set(tables):
            raise UserError(
                f"{first_of([*map(str, unused)])}: none is a split by its name, and train would be divided: give "
                f"--{split} {folder}, or {folder.with_name('train')} alone to divide it"
            )


def _fractions(tables: Mapping[str, object], shares: Sequence[float] | None) -> dict[str, float]:
    """What the rows of train are divided into, where valid has none of its own."""
    if "valid" in tables:
        check("--split", shares, shares is None, "left out, as valid has rows of its own")
        return {}
    splits = [split for split in SPLITS if split == "train" or split not in tables]
    shares = shares or (DEFAULT_SPLIT if len(splits) == 3 else (0.9, 0.1))
    check("--split", " ".join(map(str, shares)), 2 <= len(shares) <= len(splits), f"the shares of {', '.join(splits)}")
    return dict(zip(splits, shares, strict=False))


def check_task_name(name: str) -> None:
    """UserError for a name that cannot be one of an own task."""
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
    tables, unused = _tables({"train": files, "valid": valid, "test": test}, format)
    if "train" not in tables:
        raise UserError(f"{', '.join(map(str, files))}: no rows of train")
    _refuse_division(tables, unused)
    columns = Columns(text, tuple(label), second, group, separator)
    data = own_data(out.resolve().name, tables, columns, _fractions(tables, split), kind, seed)
    summary = write_labelled(out, data.task, data.splits, loaded)
    if unused:
        print(f"not used: {first_of([*map(str, unused)])}")
    print(*data.notes, *summary.lines(), *summary.unknown.warning(GIVEN_REMEDY), sep="\n")
    print_next(out.parent, [summary.task.name], tokenizer)
