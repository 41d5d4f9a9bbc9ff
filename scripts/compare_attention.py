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
import logging
from pathlib import Path

from benchmarking.mechanisms import compare_mechanisms

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.errors import one_line_errors


def parse_arguments() -> argparse.Namespace:
    """The options of ``compare_mechanisms``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path("runs/attention"), help="default: runs/attention")
    attentions = "default: all"
    add("--attentions", metavar="A", nargs="+", choices=sorted(ATTENTIONS), default=sorted(ATTENTIONS), help=attentions)
    add("--updates", metavar="N", type=int, default=2000, help="default: 2000")
    add("--rounds", metavar="N", type=int, default=7, help="times that each cost is measured (default 7)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets it to DEBUG, for every library
    with one_line_errors():
        print(f"\n{compare_mechanisms(**vars(arguments))}")
        print(f"results.json, results.md, perplexity.png, cost.png: {arguments.out}")
