#!/usr/bin/env python3
"""Pretrains variants of one small model on blocks of several lengths n, at equal tokens, and compares their losses.

    python scripts/compare_lengths.py --data data-bin/python --out runs/lengths
    python scripts/compare_lengths.py --data data-bin/books --only softmax near_and_far --lengths 512 4096 --seeds 1
    python scripts/compare_lengths.py --data data-bin/books --variant softmax model.attention=softmax \\
        --variant window model.linformer_window=64 model.projection=mean-pool model.projected_length=1

Model and recipe are those of scripts/compare.py; a variant is a name and what it changes in the model. An update has
the tokens of the longest n, 4,096 by default, whatever n is: eight rows of 512 or one of 4,096. Each variant is trained
with each n, every learning rate and the first seed, and with the best of them and the other seeds.

A quarter of the tokens of valid, of 524,288 at most, is <mask>: the same tokens for every n, with the text cut into
rows of n. OUT gets results.json, results.md and two pictures: lengths.png, perplexity and the time of an update against
n, and positions.png, perplexity by position in the row and against time, which is updates times the median time of one,
measured in turns. The table has each model in rows shorter than its n, too. A repeated command trains and measures only
what is missing. A run keeps four checkpoints, of about 10 MB each.
"""

import argparse
from collections.abc import Sequence

from benchmarking.lengths import LENGTHS, VARIANTS, LengthComparison, compare_lengths
from benchmarking.options import add_variants, comparison_parser, own_variants, parse_once_each

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a ``LengthComparison``."""
    rates = (0.0025, 0.005, 0.01)
    parser = comparison_parser(__doc__, out="runs/lengths", updates=1500, learning_rates=rates)
    add_variants(parser, [*VARIANTS])
    length, lengths = number(int, least=16, most=65_536), f"default: {' '.join(map(str, LENGTHS))}"
    parser.add_argument("--lengths", metavar="N", nargs="+", type=length, default=LENGTHS, help=lengths)
    rounds = "times that an update is measured (15)"
    parser.add_argument("--rounds", metavar="N", type=number(int, least=1), default=15, help=rounds)
    arguments = parse_once_each(parser, words, "--only", "--lengths")
    named = {name: VARIANTS[name] for name in arguments.only or VARIANTS}
    arguments.variants = own_variants(parser, arguments) or named
    del arguments.only, arguments.variant
    return arguments


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        comparison = LengthComparison(**vars(arguments))
        print(f"\n{compare_lengths(comparison)}")
        print(f"results.json, results.md, lengths.png, positions.png: {comparison.out}")
