"""Own labelled data, from tables, into a folder that scripts/finetune.py trains on.

examples:
  python scripts/prepare_table.py reviews.csv --text review --label stars --tokenizer runs/books --out data/own/stars
  python scripts/prepare_table.py train.jsonl --test test.jsonl --text question --second answer --label right \\
      --tokenizer data/books --out data/own/answers
  python scripts/prepare_table.py ner.conll --text 0 --label -1 --tokenizer data/books --out data/own/entities

A table is a .csv (quotes as in RFC 4180), a .tsv (in which quotes are text), JSON lines, Parquet, CoNLL columns, a
folder that datasets.save_to_disk wrote, or a folder with a folder of .txt files per class (columns: text, label).

The kind of the task is found where the labels leave no doubt:
  single-label  a class per row                              multi-label  lists of classes, or columns of 0 and 1
  regression    a number per row                             token-label  lists of words, and of a class for each

Rows are divided into train, valid and test at random, each label in the same proportions, and rows with the same text
(or --group) together. Where --valid or --test name files of their own, rows of train with the same text are left out,
and rows of valid that test holds; the test set stays as it is, and may have no labels.
"""

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from ..checkpoints.reading import find_tokenizer
from ..data.prepare.labelled_folder import write_labelled
from ..data.prepare.own_data import Columns, own_data
from ..data.prepare.table_files import WHOLE, read_table
from ..data.prepare.table_formats import FORMATS, Row
from ..data.task_record import KINDS, letters_of
from ..data.tasks import TASKS
from ..data.tokenizer import load_tokenizer
from ..data.unknown_pieces import GIVEN_REMEDY
from ..errors import UserError, check
from ..system.files import A_NAME, check_data_path, is_name
from .arguments import comma_list, make_parser, number
from .program import program

# What the rows of train become, by the splits that have files of their own.
FRACTIONS: Mapping[frozenset[str], tuple[str, ...]] = {
    frozenset(): ("train", "valid", "test"),
    frozenset({"test"}): ("train", "valid"),
    frozenset({"valid"}): (),
    frozenset({"valid", "test"}): (),
}
DEFAULT_SPLIT = (0.8, 0.1, 0.1)


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_files = partial(add, metavar="FILE|DIR", type=Path, nargs="+")
    add_files("files", help="tables, all with the same columns")
    add("--text", metavar="COLUMN", default="text", help="column of the text (default: text); of CoNLL its number")
    add("--second", metavar="COLUMN", help="column of the second text, for pairs")
    several = "column of the label (default: label); several columns of 0 and 1, separated by commas: multi-label"
    add("--label", metavar="COLUMN[,…]", type=comma_list(str), default=["label"], help=several)
    add("--kind", choices=KINDS, help="what the labels are (default: as they say)")
    add("--separator", metavar="TEXT", help="what stands between the classes of a multi-label row: ';'")
    add("--group", metavar="COLUMN", help="rows with the same value (a document, an author) stay in one split")
    add_files("--valid", default=[], help="tables of the dev set")
    add_files("--test", default=[], help="tables of the test set")
    shares = "shares of train, valid and test; with --test of train and valid (default: 0.8,0.1,0.1 or 0.9,0.1)"
    add("--split", metavar="A,B[,C]", type=_shares, help=shares)
    formats = (*FORMATS, "parquet")
    add("--from", dest="format", choices=formats, help="format of the files (default: by their names)")
    add("--seed", metavar="N", type=number(int, least=0), default=1, help="of the division (default: 1)")
    from_where = "the corpus that the model was pretrained on, the model (checkpoint or run's folder), or a .model file"
    add("--tokenizer", metavar="DIR|FILE", type=Path, required=True, help=from_where)
    add("--out", metavar="DIR", type=Path, required=True, help="folder to make; its name is that of the task")
    return parser.parse_args(words)


def _shares(text: str) -> list[float]:
    """An argparse type: shares that add up to 1."""
    shares = [number(float, above=0)(word) for word in text.split(",")]
    if abs(sum(shares) - 1) > 1e-6:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: the shares must add up to 1")
    return shares


def _tables(files: Mapping[str, Sequence[Path]], kind: str | None) -> dict[str, Iterable[Row]]:
    """The rows by split: of the files of each, and of what a saved dataset calls its splits."""
    tables: dict[str, list[Iterable[Row]]] = {}
    for split, paths in files.items():
        for path in paths:
            for name, rows in read_table(path, kind).items():
                if name not in (WHOLE, split) and (split != "train" or files.get(name)):
                    continue  # of a saved dataset the split that the option asks for, or all where none asks
                tables.setdefault(split if name == WHOLE else name, []).append(rows)
    return {split: chain.from_iterable(rows) for split, rows in tables.items()}


def _fractions(tables: Mapping[str, object], shares: Sequence[float] | None) -> dict[str, float]:
    """What the rows of train are divided into."""
    splits = FRACTIONS[frozenset(tables) - {"train"}]
    if not splits:
        check("--split", shares, shares is None, "left out, as valid has rows of its own")
        return {}
    shares = shares or (DEFAULT_SPLIT if len(splits) == 3 else (0.9, 0.1))
    check("--split", ",".join(map(str, shares)), 2 <= len(shares) <= len(splits), f"the shares of {', '.join(splits)}")
    return dict(zip(splits, shares, strict=False))


def check_task_name(name: str) -> None:
    """UserError for a name that cannot be one of an own task."""
    check("--out", name, is_name(name), f"a folder whose name has {A_NAME}")
    if taken := [task for task in TASKS if letters_of(task) == letters_of(name)]:
        raise UserError(f"--out: the folder's name is the task's, but {taken[0]} is a task already")


def prepare_table(
    files: Mapping[str, Sequence[Path]],
    columns: Columns,
    tokenizer: Path,
    out: Path,
    *,
    format: str | None = None,
    kind: str | None = None,
    split: Sequence[float] | None = None,
    seed: int = 1,
) -> None:
    check_data_path(out)  # before anything is read
    check_task_name(out.resolve().name)
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    tables = _tables(files, format)
    if "train" not in tables:
        raise UserError(f"{', '.join(map(str, files['train']))}: no rows of train")
    data = own_data(out.resolve().name, tables, columns, _fractions(tables, split), kind, seed)
    summary = write_labelled(out, data.task, data.splits, loaded)
    print(*data.notes, *summary.lines(), *summary.unknown.warning(GIVEN_REMEDY), sep="\n")
    parent, name = shlex.quote(str(out.parent)), summary.task.name
    print(f"next: python scripts/finetune.py --checkpoint CHECKPOINT --data {parent} --tasks {name}")


def main(words: Sequence[str] | None = None) -> None:
    given = vars(parse_arguments(words))
    files = {"train": given.pop("files"), "valid": given.pop("valid"), "test": given.pop("test")}
    labels = tuple(given.pop("label"))
    columns = Columns(given.pop("text"), labels, *(given.pop(name) for name in ("second", "group", "separator")))
    with program():
        prepare_table(files, columns, **given)
