#!/usr/bin/env python3
"""Prints what pretraining, converting and fine-tuning cost, computed from the operations of the models: docs/costs.md.

    python scripts/compute_costs.py

Nothing is measured: hours are operations over 40 % of a GPU's peak in bfloat16, without dropout, recomputation,
communication and reading of data.
"""

import argparse

from benchmarking.costs import LENGTHS, SIZES, as_table, costs
from tqdm import tqdm

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import make_parser


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, default=[*SIZES], help=f"default: {' '.join(SIZES)}")
    add("--lengths", metavar="N", nargs="+", type=int, choices=LENGTHS, default=LENGTHS, help="default: all")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(as_table([*tqdm(costs(arguments.sizes, arguments.lengths), unit="training")]))
