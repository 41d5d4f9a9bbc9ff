"""Measures the tokens per second of a pretraining on 1, 2, 4, … processes, and prints them as a table.

    python scripts/benchmark_scaling.py --data data-bin/books --ranks 1 2 4

Each run is `torchrun --nproc-per-node N --no-python fairseq-hydra-train … +distributed=torchrun` on this machine, with
as many rows per process and update whatever their number. The runs take turns; a figure is the median of the rounds.
Words at the end are Hydra's overrides for every run: dataset.batch_size=8
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarking.scaling import as_table, measure_scaling

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import make_parser, number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    ranks = [n for n in (1, 2, 4) if n <= (torch.cuda.device_count() or 4)]
    said = " ".join(map(str, ranks))
    add("--data", metavar="DIR", type=Path, required=True, help="a prepared corpus")
    add("--config", metavar="NAME", default="tiny_512", help="of configs/pretrain (default tiny_512)")
    add("--ranks", metavar="N", type=count, nargs="+", default=ranks, help=f"processes (default {said})")
    add("--updates", metavar="N", type=number(int, least=20), default=60, help="of each run (default 60)")
    add("--rounds", metavar="N", type=count, default=3, help="runs of each number of processes (default 3)")
    add("overrides", metavar="OVERRIDE", nargs="*", help="Hydra's overrides for every run")
    return parser.parse_intermixed_args(words)


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        print(as_table(measure_scaling(**vars(arguments))))
