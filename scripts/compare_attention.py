#!/usr/bin/env python3
"""Trains every attention mechanism in the same small model at equal updates, and compares perplexity and cost.

    python scripts/compare_attention.py --data data-bin/python --out runs/attention

Model and recipe are those of scripts/compare.py, each mechanism with its default options and the best of three learning
rates, over three seeds. Two controls are among them: attention=none, and "one-mean", Linformer with mean pooling to one
row, where attention has nothing to choose from. Then forward + backward is measured for all of them in turns, at n=512
and at n=4,096: the median time of --rounds and the peak memory of PyTorch's allocator.

OUT gets results.json, results.md, perplexity.png (against updates and against time, which is updates times that median,
so that other load on the machine does not count) and cost.png. Completed runs are not repeated. Costs are measured
again with other code, options or vocabulary, or on another machine; cost.json keeps them all.
"""

import argparse
from collections.abc import Sequence

from benchmarking.mechanisms import compare_mechanisms
from benchmarking.options import comparison_parser, parse_once_each

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.cli.program import program
from linformer_cli.arguments import number

REFERENCE_FIRST = ["softmax", *sorted(set(ATTENTIONS) - {"softmax"})]


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of ``compare_mechanisms``."""
    parser = comparison_parser(__doc__, out="runs/attention", updates=3000, learning_rates=(0.0025, 0.005, 0.01))
    add, attentions = parser.add_argument, "default: all; they are compared with the first (softmax)"
    add("--attentions", metavar="A", nargs="+", choices=REFERENCE_FIRST, default=REFERENCE_FIRST, help=attentions)
    rounds = "times that each cost is measured (default 7)"
    add("--rounds", metavar="N", type=number(int, least=1), default=7, help=rounds)
    return parse_once_each(parser, words, "--attentions")


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(f"\n{compare_mechanisms(**vars(arguments))}")
        print(f"results.json, results.md, perplexity.png, cost.png: {arguments.out}")
