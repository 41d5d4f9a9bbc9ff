"""Prepare your own labelled data, from tables, for fine-tuning.

examples:
  linformer prepare table reviews.csv --text review --label stars --tokenizer runs/books --out data/own/stars
  linformer prepare table train.jsonl --test test.jsonl --text question --second answer --label right \\
      --tokenizer data/books --out data/own/answers
  linformer prepare table stanfordnlp/imdb --tokenizer runs/books --out data/own/reviews
  linformer prepare table ner.conll --text 0 --label -1 --tokenizer data/books --out data/own/entities

A table is a .csv (quotes as in RFC 4180), a .tsv (in which quotes are text), JSON lines, CoNLL columns (these four also
as .gz or .xz), a folder with a folder of .txt files per class (columns: text, label), or a format of the library
datasets (pip install datasets): .parquet, .arrow, a folder of save_to_disk, or the name of a data set on the Hugging
Face Hub, OWNER/NAME or OWNER/NAME:CONFIGURATION.

The type of the task is inferred from the labels if they are unambiguous:
  single-label  a class per row                              multi-label  lists of classes, or columns of 0 and 1
  regression    a number per row                             token-label  lists of words, and of a class for each

Rows are split into train, valid and test at random, stratified by label; rows with the same text (or value of --group)
stay together. With files in --valid or --test, rows of train whose text is in either, and rows of valid whose text is
in test, are removed. The test set is not changed, and may have no labels.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import UserError, check
from .arguments import FORMATS, KINDS, Distinct, Parser, number
from .program import print_next

DEFAULT_SPLIT = (0.8, 0.1, 0.1)
LONGEST_NAME = 200  # bytes: file systems allow 255, and suffixes are added
A_NAME = f"letters, digits, -, _ and . alone, the first neither - nor ., and at most {LONGEST_NAME} bytes"


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    files: dict[str, Any] = {"metavar": "FILE|DIR|NAME", "type": Path, "nargs": "+"}
    add("files", **files, help="tables, all with the same columns")
    parser.add_shared("--text", default="text", help="column of the text; for CoNLL, its number")
    parser.add_shared("--second", help="column of the second text, for pairs")
    label_help = "column of the label, or several columns of 0 and 1: multi-label"
    add("--label", metavar="COLUMN", nargs="+", action=Distinct, default=["label"], help=label_help)
    add("--kind", choices=KINDS, help="type of the labels (default: inferred from them)")
    add("--separator", metavar="TEXT", help="text between the classes of a multi-label row, such as ';'")
    add("--group", metavar="COLUMN", help="rows with the same value (a document, an author) are in one split")
    add("--valid", **files, default=[], help="tables of the dev set")
    add("--test", **files, default=[], help="tables of the test set")
    shares = "shares of train, valid and test; with --test of train and valid (default: 0.8 0.1 0.1, or 0.9 0.1)"
    add("--split", metavar="SHARE", nargs="+", type=number(float, above=0), help=shares)
    parser.add_shared("--from", choices=(*FORMATS, "parquet"), help="format of the files (default: by their names)")
    add("--seed", metavar="N", type=number(int, minimum=0), default=1, help="seed of the division")
    parser.add_shared("--tokenizer")
    parser.add_shared("--out", help="folder to make; its name becomes the name of the task")


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
    check("--split", split, abs(sum(split or [1]) - 1) < 1e-6, "shares that add up to 1")
    from ..checkpoint import find_tokenizer
    from ..data.dictionaries import unknown_warning
    from ..data.prepare.labelled_folder import write_labelled
    from ..data.prepare.labels import Columns
    from ..data.prepare.own_data import own_data
    from ..data.subword_models import load_tokenizer
    from ..data.task_record import letters_of
    from ..data.tasks import TASKS
    from ..files import check_data_path

    check_data_path(out)  # before anything is read
    task = out.resolve().name
    check("--out", task, is_name(task), f"a folder whose name has {A_NAME}")
    if taken := [name for name in TASKS if letters_of(name) == letters_of(task)]:
        raise UserError(f"--out={task} is not allowed: its name becomes the task's, and {taken[0]} is an official task")
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    tables = _read_tables({"train": files, "valid": valid, "test": test}, format)
    if "train" not in tables:
        raise UserError(f"{', '.join(map(str, files))}: no rows to train on")
    columns = Columns(text, tuple(label), second, group, separator)
    data = own_data(task, tables, columns, _fractions(tables, split), kind, seed)
    summary = write_labelled(out, data.task, data.splits, loaded)
    print(*data.notes, *summary.lines(), *unknown_warning(summary.unknown_shares), sep="\n")
    print_next(out.parent, [summary.task.name], tokenizer)


def is_name(name: str) -> bool:
    """Return True if a name is valid for a file or a folder and in an override of Hydra."""
    return bool(re.fullmatch(r"\w[\w.-]*", name)) and len(name.encode()) <= LONGEST_NAME


def _read_tables(files: Mapping[str, Sequence[Path]], file_format: str | None) -> dict[str, Any]:
    """Return the rows by split, from the files of each split and from the splits of data sets in train's files.

    Raises:
        UserError: a data set in --valid or --test has no split of this name.
    """
    from ..data.prepare.own_data import SPLITS
    from ..data.prepare.table import WHOLE, read_table

    tables: dict[str, list[Any]] = {}
    for split, paths in files.items():
        for path in paths:
            splits = read_table(path, file_format)
            if split != "train" and not splits.keys() & {WHOLE, split}:
                listed = ", ".join(splits)
                raise UserError(
                    f"--{split} {path}: it has the splits {listed}, but not {split}: give the folder of one"
                )
            for name, rows in splits.items():
                if name in (WHOLE, split):
                    tables.setdefault(split, []).append(rows)
                elif split == "train" and name in SPLITS and not files[name]:
                    tables.setdefault(name, []).append(rows)
                elif split == "train":
                    print(f"not used: {path}, split {name}")
    return {split: chain.from_iterable(rows) for split, rows in tables.items()}


def _fractions(tables: Mapping[str, object], shares: Sequence[float] | None) -> dict[str, float]:
    """Return the shares of the splits that are drawn from train; empty if valid has its own rows."""
    if "valid" in tables:
        check("--split", shares, shares is None, "left out, as --valid or the data set has the rows of valid")
        return {}
    splits = [split for split in ("train", "valid", "test") if split == "train" or split not in tables]
    shares = shares or (DEFAULT_SPLIT if len(splits) == 3 else (0.9, 0.1))
    check("--split", " ".join(map(str, shares)), 2 <= len(shares) <= len(splits), f"the shares of {', '.join(splits)}")
    return dict(zip(splits, shares, strict=False))
