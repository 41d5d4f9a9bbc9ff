#!/usr/bin/env python3
"""Trains variants of one small model on masked associative recall: what they bring back, and what they cost.

    python scripts/recall.py --out runs/recall
    python scripts/recall.py --only softmax control mean-pool-k16 --lengths 64 128 --out runs/recall
    python scripts/recall.py --variant softmax model.attention=softmax --variant k8 model.projected_length=8

A row of n tokens holds D pairs of a key and a value, queries, which are a key and <mask>, and noise, in any order.
Which value belongs to which key is drawn anew for every row (the multi-query associative recall of Arora et al. 2023,
arXiv 2312.04927, made bidirectional). The model has two layers of d=128, two heads and a local convolution of width 3,
in which a value can see its key; a variant is a name and what it changes in the model. Each is trained with every
learning rate and the first seed, and with the best of them and the other seeds. All are tested on the same rows.

OUT/nN gets results.json, results.md and recall.png: the share of the values that each brings back, by D, and its mean
against the median time of an update, measured in turns. A repeated command trains only what is not complete.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarking.options import add_device, add_variants, own_variants, parse_once_each
from benchmarking.recall import Task, configure
from benchmarking.recall_comparison import VARIANTS, RecallComparison, compare_recall
from benchmarking.small_model import TEST_SEED

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import make_parser, number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a ``RecallComparison``, with lengths, pairs and threads."""
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("--out", metavar="DIR", type=Path, default=Path("runs/recall"), help="default: runs/recall")
    add_variants(parser, [*VARIANTS])
    add("--lengths", metavar="N", nargs="+", type=number(int, least=16, most=65_536), default=[64], help="n (64)")
    add("--pairs", metavar="D", nargs="+", type=count, default=[2, 4, 8], help="pairs of a row (2 4 8)")
    rates = "tried for each with the first seed (default 0.001 0.002 0.004)"
    rate = number(float, above=0)
    add("--learning-rates", metavar="LR", nargs="+", type=rate, default=[0.001, 0.002, 0.004], help=rates)
    add(
        "--seeds",
        metavar="N",
        nargs="+",
        type=number(int, least=0, most=TEST_SEED - 1),
        default=[1, 2, 3],
        help="(1 2 3)",
    )
    add("--updates", metavar="N", type=count, default=1000, help="of every run, of 1,024 tokens (1000)")
    add("--rounds", metavar="N", type=count, default=15, help="times that an update is measured (15)")
    add_device(parser)
    add("--threads", metavar="N", type=count, default=torch.get_num_threads(), help="of the CPU (PyTorch's choice)")
    arguments = parse_once_each(parser, words, "--only", "--lengths", "--pairs")
    named = {name: VARIANTS[name] for name in arguments.only or VARIANTS}
    arguments.variants = own_variants(parser, arguments) or named
    return arguments


def comparisons(arguments: argparse.Namespace) -> list[RecallComparison]:
    """One for each length, shortest first, with its models' configurations: what can fail before a training.

    Raises:
        UserError: a length, a number of pairs or an override cannot work.
    """
    tasks = [Task(n, tuple(sorted(arguments.pairs))) for n in sorted(arguments.lengths)]
    for task in tasks:
        for overrides in arguments.variants.values():
            configure(overrides, task.length)
    return [
        RecallComparison(
            task,
            arguments.out / f"n{task.length}",
            arguments.variants,
            arguments.learning_rates,
            arguments.seeds,
            arguments.updates,
            arguments.rounds,
            arguments.device,
        )
        for task in tasks
    ]


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        torch.set_num_threads(arguments.threads)
        for comparison in comparisons(arguments):
            print(f"\nn = {comparison.task.length}\n\n{compare_recall(comparison)}\nfiles: {comparison.out}")
