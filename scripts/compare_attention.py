#!/usr/bin/env python3
"""Trains every attention mechanism in the same small model at equal updates, and compares perplexity and cost.

    python scripts/compare_attention.py --data data-bin/books --out runs/attention

Model and recipe are configs/pretrain/tiny_512.yaml with d=128, four rows per update and lr 2e-3, each mechanism with
its default options. The mechanisms are trained one after another. Then forward + backward is measured for all of them
in turns, at n=512 and at n=4,096: the median time of --rounds and the peak memory of PyTorch's allocator.

OUT gets results.json, results.md, perplexity.png (against updates and against time, which is updates times that median,
so that other load on the machine does not count) and cost.png. Completed runs are not repeated. Costs are measured
again with other code, options or vocabulary, or on another machine; cost.json keeps them all.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarking.mechanisms import compare_mechanisms

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.cli.arguments import make_parser, number
from fairseq_linformer.cli.program import program


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of ``compare_mechanisms``."""
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path("runs/attention"), help="default: runs/attention")
    attentions = "default: all"
    add("--attentions", metavar="A", nargs="+", choices=sorted(ATTENTIONS), default=sorted(ATTENTIONS), help=attentions)
    add("--updates", metavar="N", type=count, default=2000, help="default: 2000")
    add("--rounds", metavar="N", type=count, default=7, help="times that each cost is measured (default 7)")
    return parser.parse_args(words)


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(f"\n{compare_mechanisms(**vars(arguments))}")
        print(f"results.json, results.md, perplexity.png, cost.png: {arguments.out}")
