"""Your own labelled data, from tables, into a folder to fine-tune on.

examples:
  linformer prepare table reviews.csv --text review --label stars --tokenizer runs/books --out data/own/stars
  linformer prepare table train.jsonl --test test.jsonl --text question --second answer --label right \\
      --tokenizer data/books --out data/own/answers
  linformer prepare table stanfordnlp/imdb --tokenizer runs/books --out data/own/reviews
  linformer prepare table ner.conll --text 0 --label -1 --tokenizer data/books --out data/own/entities

A table is a .csv (quotes as in RFC 4180), a .tsv (in which quotes are text), JSON lines, CoNLL columns (these four also
as .gz or .xz), a folder with a folder of .txt files per class (columns: text, label), or what the library datasets
reads (pip install datasets): .parquet, .arrow, a folder that save_to_disk wrote, a data set of the Hugging Face Hub by
its name, OWNER/NAME or OWNER/NAME:CONFIGURATION.

The kind of the task is found where the labels leave no doubt:
  single-label  a class per row                              multi-label  lists of classes, or columns of 0 and 1
  regression    a number per row                             token-label  lists of words, and of a class for each

Rows are divided into train, valid and test at random, each label in the same proportions, and rows with the same text
(or --group) together. Where --valid or --test name files of their own, rows of train with the same text are left out,
and rows of valid that test holds; the test set stays as it is, and may have no labels.
"""

from pathlib import Path
from typing import Any

from .arguments import FORMATS, KINDS, Distinct, Parser, item_of, number


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    files: dict[str, Any] = {"metavar": "FILE|DIR|NAME", "type": Path, "nargs": "+"}
    add("files", **files, help="tables, all with the same columns")
    parser.share("--text", default="text", help="column of the text; of CoNLL its number")
    parser.share("--second", help="column of the second text, for pairs")
    several = "column of the label, or several columns of 0 and 1: multi-label"
    add("--label", metavar="COLUMN", nargs="+", type=item_of(str), action=Distinct, default=["label"], help=several)
    add("--kind", choices=KINDS, help="what the labels are (default: as they say)")
    add("--separator", metavar="TEXT", help="what stands between the classes of a multi-label row: ';'")
    add("--group", metavar="COLUMN", help="rows with the same value (a document, an author) stay in one split")
    add("--valid", **files, default=[], help="tables of the dev set")
    add("--test", **files, default=[], help="tables of the test set")
    shares = "shares of train, valid and test; with --test of train and valid (default: 0.8 0.1 0.1, or 0.9 0.1)"
    add("--split", metavar="SHARE", nargs="+", type=item_of(number(float, above=0)), help=shares)
    wrong = "--split {split} is not allowed: the shares must add up to 1"
    parser.rule(lambda given: abs(sum(given["split"] or [1]) - 1) < 1e-6, wrong)
    parser.rule(lambda given: given["separator"] != "", "--separator is empty: it must stand between classes")
    parser.share("--from", choices=(*FORMATS, "parquet"), help="format of the files (default: by their names)")
    add("--seed", metavar="N", type=number(int, least=0), default=1, help="of the division")
    parser.share("--tokenizer")
    parser.share("--out", help="folder to make; its name is that of the task")
