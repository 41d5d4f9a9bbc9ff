"""Labels and probabilities from a fine-tuned model: for your texts, or for GLUE's test sets.

    linformer predict runs/SST-2 --input reviews.txt > predictions.tsv
    linformer predict runs/RTE --input pairs.tsv --text sentence1 --second sentence2
    linformer predict --runs runs/finetune --data data-bin/tasks --out submission

Texts are lines of a .txt file, a column of a .csv or .tsv file with a header, a key of a .jsonl file, or the words of a
.conll file; - is standard input.
What is printed has a row for each, in their order, so none may be blank; all are read once before the first is
predicted. It is a table with tabs, or JSON lines (--to jsonl).
Several classes are separated by commas. A model of token labels reads words between spaces, or JSON lists of words, and
prints a word and its label per line, with a blank line after each text. Long texts are shortened as in training; words
that this cuts have the most frequent label, and are counted.

A submission holds the files of GLUE's leaderboard, checked and zipped: those of each task of `linformer finetune`'s
folder, from the run that is best on the dev set; AX from MNLI's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .arguments import FORMATS, Parser, number


def add_arguments(parser: Parser) -> None:
    parser.usage = "%(prog)s MODEL --input FILE [options]\n       %(prog)s --runs DIR --data DIR --out DIR"
    add = parser.add_argument
    parser.share("model", nargs="?", help="fine-tuned checkpoint, or the folder of its run (its best checkpoint)")
    add("--input", metavar="FILE", help=f"texts: .{', .'.join(FORMATS)}, also .gz or .xz, or - for standard input")
    parser.share("--from", choices=FORMATS, help="format of the input (default: by its name; txt for -)")
    parser.share("--text")
    parser.share("--second")
    top = "the N most probable classes with their probabilities, instead of all"
    add("--top", metavar="N", type=number(int, least=1), help=top)
    add("--to", choices=("tsv", "jsonl"), help="format of what is printed (default: tsv)")
    data = "prepared task, for its vocabulary and labels (default: the training's); with --runs: a folder of tasks"
    parser.share("--data", help=data)
    add("--runs", metavar="DIR", type=Path, help="of GLUE, what linformer finetune made: for a submission")
    parser.share("--out", required=False, help="folder of the submission, to make")

    parser.rule(_is_one_of_both, "give MODEL and --input, with what goes with them, or --runs, --data and --out")


def _is_one_of_both(values: Mapping[str, Any]) -> bool:
    given = {name for name, value in values.items() if value is not None}
    of_texts = {"model", "input"} <= given and not given & {"runs", "out"}
    return of_texts or given == {"runs", "data", "out"}
