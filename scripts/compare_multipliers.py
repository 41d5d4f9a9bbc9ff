#!/usr/bin/env python3
"""Trains Linformer with several multipliers c of its learned matrix, at several lengths, and draws their perplexities.

    python scripts/compare_multipliers.py --data data-bin/python --out runs/multipliers

Model and recipe are those of scripts/compare.py with k=128 and one matrix for all layers; an update has 2,048 tokens,
at least one row. Beside them, at each length, mean pooling to the same k, where nothing is learned, and the control:
mean pooling to one row. OUT gets results.json, results.md and multipliers.png. Completed runs are not repeated.
"""

import argparse
from collections.abc import Sequence

from benchmarking.multipliers import LENGTHS, MULTIPLIERS, compare_multipliers
from benchmarking.options import comparison_parser, parse_once_each

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of ``compare_multipliers``."""
    parser = comparison_parser(__doc__, out="runs/multipliers", updates=1500)
    lengths, multipliers = (f"default: {' '.join(format(x, 'g') for x in values)}" for values in (LENGTHS, MULTIPLIERS))
    length, multiplier = number(int, least=128, most=65_536), number(float, above=0)
    parser.add_argument("--lengths", metavar="N", nargs="+", type=length, default=LENGTHS, help=lengths)
    parser.add_argument("--multipliers", metavar="C", nargs="+", type=multiplier, default=MULTIPLIERS, help=multipliers)
    return parse_once_each(parser, words, "--lengths", "--multipliers")


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(f"\n{compare_multipliers(**vars(arguments))}")
        print(f"results.json, results.md, multipliers.png: {arguments.out}")
