#!/usr/bin/env python3
"""Measures Linformer's time and memory beside fairseq's example, full attention and other encoders, in one run.

    python scripts/benchmark.py --out runs/benchmark
    python scripts/benchmark.py --quick
    python scripts/benchmark.py --device cuda --dtype bfloat16 --layers 12 --tokens 65536

The models of a comparison run in turns, round after round, after one call to warm up; times are medians with quartiles.
Baselines that are not installed, and cases that take longer than --limit, are left out with the reason. Memory is the
peak that a call adds to what was held before it, as PyTorch's allocator counts. OUT gets results.json, results.md and
plots. A repeated command measures only what is missing. Results of other code, of another machine or of other options
are refused and left as they are: name another OUT.

Suites: overview (a training step against n: ours, fairseq's example, full attention), attention (one layer beside the
example's), models (whole models of equal width and depth), table3 (the paper's table 3 and figure 2), growth (exponents
of cost against n), efficiency (from which n a mechanism beats full attention, at three widths), memory (activation
checkpointing and offload), long (a training step at n = 65,536, inference at 262,144), lengths (the real lengths of
IMDB's reviews, which --reviews names).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarking.baselines import MODELS, Sizes
from benchmarking.measuring import DTYPES, Machine
from benchmarking.options import add_device
from benchmarking.report import write_report
from benchmarking.runner import Benchmark
from benchmarking.suites import COMPARED, SUITES, Plan

from fairseq_linformer.cli.program import program
from linformer_cli.arguments import make_parser, number

LENGTHS = tuple(2**power for power in range(9, 17))  # 512 to 65,536
QUICK = {"layers": 1, "embed_dim": 256, "heads": 4, "vocab_size": 2000, "tokens": 1024, "rounds": 3, "limit": 5.0}
QUICK |= {
    "lengths": LENGTHS[:3],
    "suites": [suite for suite in SUITES if suite not in ("efficiency", "long", "lengths")],
}


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add, count = parser.add_argument, number(int, least=1)
    add("--out", metavar="DIR", type=Path, default=Path("runs/benchmark"), help="default: runs/benchmark")
    add("--suites", metavar="S", nargs="+", choices=sorted(SUITES), help="default: all (lengths: with --reviews)")
    models = f"what the suite models compares (default: {', '.join(COMPARED)}; every attention= is allowed, too)"
    add("--models", metavar="M", nargs="+", choices=sorted(MODELS), default=COMPARED, help=models)
    add_device(parser)
    add("--dtype", choices=sorted(DTYPES), default="float32", help="default: float32")
    add("--layers", metavar="L", type=count, default=2, help="default: 2")
    add("--embed-dim", metavar="D", type=count, default=768, help="default: 768")
    add("--heads", metavar="H", type=count, default=12, help="default: 12")
    add("--vocab-size", metavar="V", type=count, default=8000, help="default: 8000")
    add("--dropout", metavar="P", type=float, default=0.1, help="of hidden layers and attention weights (default 0.1)")
    add("--tokens", metavar="N", type=count, default=4096, help="per batch, at least one row (default 4096)")
    rounds = "times that each case runs, three if it is slow; 0: memory only, also on a busy machine (default 7)"
    add("--rounds", metavar="N", type=number(int, least=0), default=7, help=rounds)
    limit = "seconds that a case may take (default 60)"
    add("--limit", metavar="S", type=number(float, above=0), default=60.0, help=limit)
    add("--threads", metavar="N", type=count, default=torch.get_num_threads(), help="of the CPU (PyTorch's choice)")
    add("--reviews", metavar="DIR", type=Path, help="IMDB as scripts/prepare_imdb.py writes it, for the suite lengths")
    add("--lengths", metavar="N", type=count, nargs="+", default=LENGTHS, help="n (512 to 65536)")
    add("--quick", action="store_true", help="a small model, n to 2,048, two minutes; other options can change it")
    first = parser.parse_args(words)
    parser.set_defaults(suites=[suite for suite in SUITES if suite != "lengths" or first.reviews])
    if first.quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args(words)


def run(arguments: argparse.Namespace) -> None:
    """Measures what is missing, prints the report and writes it.

    Raises:
        UserError: an option is not allowed, or the folder holds other results.
        OSError: the reviews cannot be read.
    """
    torch.set_num_threads(arguments.threads)
    sizes = Sizes(
        layers=arguments.layers,
        embed_dim=arguments.embed_dim,
        heads=arguments.heads,
        vocabulary=arguments.vocab_size,
        dropout=arguments.dropout,
    )
    lengths = tuple(sorted(set(arguments.lengths)))
    plan = Plan(sizes, arguments.tokens, lengths, arguments.device, tuple(arguments.models), arguments.reviews)
    plan.validate()
    machine = Machine(arguments.device, arguments.dtype)
    benchmark = Benchmark(plan, machine, arguments.rounds, arguments.limit, arguments.out)
    benchmark.run(arguments.suites)
    print(f"\n{write_report(arguments.out, benchmark.settings, benchmark.rows)}\nfiles: {arguments.out}")


if __name__ == "__main__":
    arguments = parse_arguments()
    with program():
        run(arguments)
