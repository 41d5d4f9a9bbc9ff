#!/usr/bin/env python3
"""Pretrains variants of one small model at equal updates, over seeds, and prints their perplexities as a table.

    python scripts/compare.py --data data-bin/books --out runs/compare \\
        --variant linformer model.attention=linformer --variant softmax model.attention=softmax

A variant is a name and what it changes in configs/pretrain/tiny_512.yaml, here with two layers of d=64, 2,048 tokens
per update and a quarter of them masked. Overrides after --all apply to every variant. Perplexity is measured on the
same masked tokens of valid for every variant and seed, at most 400 batches of 8 rows. Completed runs are not repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarking.variants import compare_variants

from fairseq_linformer.cli.arguments import make_parser, number
from fairseq_linformer.cli.program import program


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of ``compare_variants``."""
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    variant = "a name, then Hydra's overrides"
    add("--variant", metavar="WORD", nargs="+", action="append", required=True, dest="variants", help=variant)
    add("--all", metavar="OVERRIDE", nargs="+", default=[], help="Hydra's overrides for every variant")
    add("--seeds", metavar="N", nargs="+", type=number(int, least=0), default=[1, 2, 3], help="default: 1 2 3")
    add("--updates", metavar="N", type=count, default=1500, help="default: 1500")
    add("--jobs", metavar="N", type=count, default=2, help="runs at a time (default 2)")
    arguments = parser.parse_args(words)
    names = [name for name, *_ in arguments.variants]
    for option, values in (("--variant", names), ("--seeds", arguments.seeds)):
        if len(set(values)) < len(values):
            parser.error(f"{option}: each must be there once, not {', '.join(map(str, values))}")
    arguments.variants = {name: [*arguments.all, *overrides] for name, *overrides in arguments.variants}
    del arguments.all
    return arguments


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(f"\n{compare_variants(**vars(arguments))}")
