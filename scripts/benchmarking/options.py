"""The options that the comparisons of trained models share (scripts/compare.py and its siblings)."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_linformer.training.launch import job_device
from linformer_cli.arguments import make_parser, number

from .variants import LEARNING_RATE

NAME = re.compile(r"[^.=/|][^=/|]*")  # of a variant: a folder, a cell of a table, and no override


def comparison_parser(
    about: str | None, *, out: str, updates: int, learning_rates: Sequence[float] = (LEARNING_RATE,)
) -> argparse.ArgumentParser:
    """A parser with the options of a ``Comparison``, variants aside."""
    parser = make_parser(about)
    add, count = parser.add_argument, number(int, least=1)
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path(out), help=f"default: {out}")
    rates = f"tried for each with the first seed (default {' '.join(map(str, learning_rates))})"
    add("--learning-rates", metavar="LR", nargs="+", type=number(float, above=0), default=[*learning_rates], help=rates)
    add("--seeds", metavar="N", nargs="+", type=number(int, least=0), default=[1, 2, 3], help="default: 1 2 3")
    add("--updates", metavar="N", type=count, default=updates, help=f"default: {updates}")
    add("--jobs", metavar="N", type=count, default=2, help="runs at a time (default 2)")
    return parser


def add_variants(parser: argparse.ArgumentParser, names: Sequence[str], default: str = "all") -> None:
    """Adds --only and --variant, of which a user gives one or none: what is compared.

    Args:
        parser: of a comparison.
        names: of the variants that there are.
        default: in words, those of them that are compared where the user gives neither.
    """
    what = parser.add_mutually_exclusive_group()
    only = f"those of {', '.join(names)} that are compared (default: {default})"
    what.add_argument("--only", metavar="NAME", nargs="+", choices=sorted(names), help=only)
    variant = "a name, then overrides of the model: others than these"
    what.add_argument("--variant", metavar="WORD", nargs="+", action="append", help=variant)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds --device: a GPU where there is one."""
    help = "default: a GPU, if any"
    parser.add_argument("--device", metavar="{cpu,cuda}", type=_device, default=job_device(), help=help)


def _device(name: str) -> str:
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name} is neither cpu nor cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch finds no GPU")
    return name


def own_variants(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The variants that a user gives by --variant, overrides by name; none where there are none."""
    own = arguments.variant or []
    for name, *_ in own:
        if not NAME.fullmatch(name):
            allowed = "a name comes first, without = / | in it or a dot in front: --variant NAME OVERRIDE …"
            parser.error(f"--variant {name} is not allowed: {allowed}")
    refuse_repeated(parser, "--variant", [name for name, *_ in own])
    return {name: overrides for name, *overrides in own}


def parse_once_each(parser: argparse.ArgumentParser, words: Sequence[str] | None, *more: str) -> argparse.Namespace:
    """The arguments, of which seeds, learning rates and the options named after them hold each value once."""
    arguments = parser.parse_args(words)
    for option in ("--seeds", "--learning-rates", *more):
        refuse_repeated(parser, option, getattr(arguments, option.lstrip("-").replace("-", "_")) or [])
    return arguments


def refuse_repeated(parser: argparse.ArgumentParser, option: str, values: Sequence[object]) -> None:
    """Ends the program with a message where a value of an option is there twice."""
    if len(set(values)) < len(values):
        parser.error(f"{option}: each must be there once, not {', '.join(map(str, values))}")
