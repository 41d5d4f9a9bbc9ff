#!/usr/bin/env python3
"""Trains variants of one small model on rows of 512 to 8,192 tokens: what they find, and what they cost.

    python scripts/long_documents.py --task needles --lengths 512 1024 2048 --texts books.txt --tokenizer data-bin/books
    python scripts/long_documents.py --task imdb-bytes --source aclImdb_v1.tar.gz --lengths 1024 4096
    python scripts/long_documents.py --task listops --only softmax control linformer --lengths 512
    python scripts/long_documents.py --task lra-listops --source lra_release --lengths 2048

books      which of the 16 longest books of --texts a passage is from (a blank line ends a book)
needles    the word that one sentence of a passage says to remember, where another says which one to forget
imdb       the sentiment of a review in subword pieces; imdb-bytes: in bytes, the Long Range Arena's task Text
listops    the value of an expression, drawn from the Long Range Arena's grammar; a quarter of n to n symbols
lra-…      lra-listops, lra-retrieval and lra-pathfinder read the Arena's archive, unpacked (lra_release)

The model has two layers of d=64, two heads, a local convolution of width 3 and a classification head on <s>; a variant
is a name and what it changes in the model. Each is trained with every learning rate and the first seed, and then with
the other seeds and the rate that was best on rows kept for that. All are tested on the same rows, beside TF-IDF and a
linear SVM, which learns from the rows that they are trained on.

OUT/TASK/nN gets results.json and results.md, OUT/TASK lengths.png: accuracy and the median time of an update, measured
in turns, against n, where updates, number of test rows and machine are the same. A repeated command trains only what is
not complete.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarking.long_comparison import LongComparison, compare_long, configure, default_variants
from benchmarking.long_tasks import TASKS, make_rows
from benchmarking.options import add_device, add_variants, own_variants, parse_once_each
from benchmarking.rows_of_text import Request
from benchmarking.small_model import TEST_SEED

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import make_parser, number

NAMES = list(default_variants(512))
DEFAULT = [name for name in NAMES if name not in ("none", "nystrom")]
MOST_ROWS = 25_000  # all of the official train of IMDB; the Long Range Arena has up to 160,000


def by_task(what: str) -> str:
    """The defaults of an option: of all tasks, and of those that have others."""
    values = {name: str(getattr(task, what)).strip("()").replace(",", "") for name, task in TASKS.items()}
    usual = max(values.values(), key=list(values.values()).count)
    others = ", ".join(f"{name}: {value}" for name, value in values.items() if value != usual)
    return f"default {usual}; {others}"


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a ``LongComparison``, with lengths, sources and threads."""
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("--task", choices=[*TASKS], required=True, help="what rows and labels are")
    add("--texts", metavar="FILE", type=Path, help="of books and needles: books, with a blank line after each")
    add("--tokenizer", metavar="DIR|FILE", type=Path, help="of books, needles and imdb: a prepared corpus or a .model")
    add("--source", metavar="DIR|ARCHIVE", type=Path, help="of imdb and imdb-bytes: aclImdb; of lra-…: lra_release")
    add("--out", metavar="DIR", type=Path, default=Path("runs/long"), help="default: runs/long")
    add_variants(parser, NAMES, "all but none and nystrom")
    add("--lengths", metavar="N", nargs="+", type=number(int, least=16, most=65_536), default=[512], help="n (512)")
    rate = number(float, above=0)
    rates = f"tried for each with the first seed ({by_task('learning_rates')})"
    add("--learning-rates", metavar="LR", nargs="+", type=rate, help=rates)
    seed = number(int, least=0, most=TEST_SEED - 1)
    add("--seeds", metavar="N", nargs="+", type=seed, default=[1, 2, 3], help="(1 2 3)")
    add("--updates", metavar="N", type=count, help=f"of every run ({by_task('updates')})")
    add("--tokens", metavar="N", type=count, help=f"of an update, at least one row ({by_task('tokens')})")
    rows = f"to train on, at most (default: those of all updates, each once; with --source at most {MOST_ROWS:,})"
    add("--rows", metavar="N", type=count, help=rows)
    add("--test-rows", metavar="N", type=count, default=512, help="of the test, and for the learning rate (512)")
    add("--rounds", metavar="N", type=count, default=15, help="times that an update is measured (15)")
    add_device(parser)
    add("--threads", metavar="N", type=count, default=torch.get_num_threads(), help="of the CPU (PyTorch's choice)")
    arguments = parse_once_each(parser, words, "--lengths", "--only")
    arguments.variant = own_variants(parser, arguments)
    return arguments


def comparisons(arguments: argparse.Namespace) -> list[LongComparison]:
    """One for each length, with its rows and the models' configurations: all that can fail before a training.

    Raises:
        OSError: what the task reads is not there.
        UserError: an option or an override cannot work.
    """
    task = TASKS[arguments.task]
    updates, tokens = arguments.updates or task.updates, arguments.tokens or task.tokens
    variants = {n: arguments.variant or _chosen(n, arguments.only or DEFAULT) for n in sorted(arguments.lengths)}
    for n, named in variants.items():
        for overrides in named.values():
            configure(overrides, n)  # which takes less time than rows
    compared = []
    for n, named in variants.items():
        seen = updates * max(1, tokens // n)  # TF-IDF, too, learns from no more
        rows = arguments.rows or (min(MOST_ROWS, seen) if "source" in task.needs else seen)
        places = arguments.texts, arguments.tokenizer, arguments.source
        comparison = LongComparison(
            arguments.task,
            n,
            make_rows(arguments.task, Request(n, rows, arguments.test_rows, *places)),
            arguments.out / arguments.task / f"n{n}",
            named,
            arguments.learning_rates or task.learning_rates,
            arguments.seeds,
            updates,
            tokens,
            arguments.rounds,
            arguments.device,
        )
        compared.append(comparison)
    return compared


def _chosen(n: int, names: Sequence[str]) -> dict[str, list[str]]:
    known = default_variants(n)
    return {name: known[name] for name in names}


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        torch.set_num_threads(arguments.threads)
        for comparison in comparisons(arguments):
            print(f"\n{compare_long(comparison)}\n\nfiles: {comparison.out}")
