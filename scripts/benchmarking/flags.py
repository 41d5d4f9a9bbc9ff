"""The flags of all studies: those that they share are defined here, once."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from linformer_cli.arguments import Distinct, item_of, number

from .variants import with_preset

LARGEST_SEED = 2**32 - 2  # PyTorch takes a seed modulo 2^32, and the next one draws the rows of tests
VARIANT = re.compile(r"[^.=/|][^=/|]*")  # a name: of a folder, in a table's cell, and no override

count, rate = number(int, least=1), number(float, above=0)


@dataclass(frozen=True)
class Flag:
    """An option of a command line.

    Attributes:
        help: what it is.
        type: parses a word.
        metavar: how --help names its value.
        several: whether it takes a list, in which each value stands once.
        choices: the values that are allowed, if those are few.
        default: None where it must be given, unless `shown` says otherwise.
        shown: the default in words.
        switch: whether it has no value.
    """

    help: str
    type: Any = str
    metavar: str | None = "N"
    several: bool = False
    choices: Sequence[str] | None = None
    default: Any = None
    shown: str = ""
    switch: bool = False

    def add_to(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Adds it as --NAME."""
        if self.switch:
            parser.add_argument(f"--{name}", action="store_true", help=self.help)
            return
        options: dict[str, Any] = {"nargs": "+", "action": Distinct} if self.several else {}
        options |= {"type": item_of(self.type) if self.several else self.type, "default": self.default}
        options |= {"metavar": self.metavar, "choices": self.choices}
        help = f"{self.help} (default: {self.shown})" if self.shown else self.help
        parser.add_argument(f"--{name}", required=self.default is None and not self.shown, help=help, **options)


def device(name: str) -> str:
    """An argparse type."""
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name} is neither cpu nor cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch finds no GPU")
    return name


SHARED = {
    "data": Flag("a prepared corpus", Path, "DIR"),
    "out": Flag("gets the results, tables and pictures, if any", Path, "DIR"),
    "lengths": Flag("n", number(int, least=16, most=65_536), several=True),
    "learning-rates": Flag("tried for each variant with the first seed", rate, "LR", several=True),
    "seeds": Flag("each a run", number(int, least=0, most=LARGEST_SEED), several=True),
    "updates": Flag("of every run", count),
    "jobs": Flag("runs at a time", count),
    "rounds": Flag("times that a cost is measured", count),
    "device": Flag("that computes", device, "{cpu,cuda}"),
    "threads": Flag("of the CPU", count),
}


def add_variants(parser: argparse.ArgumentParser, names: Sequence[str], usual: Sequence[str]) -> None:
    """Adds what says which variants are compared: one of --only and --variant, and --all.

    Args:
        parser: of a study.
        names: of the variants that it has; where it has none, --variant must be given.
        usual: those of them that are compared unless the user says otherwise.
    """
    what: Any = parser
    if names:
        what = parser.add_mutually_exclusive_group()
        others = [name for name in names if name not in usual]
        shown = f"all but {' and '.join(others)}" if others else "all"
        only = f"those of {', '.join(names)} that are compared (default: {shown})"
        what.add_argument(
            "--only", metavar="NAME", nargs="+", choices=names, action=Distinct, default=[*usual], help=only
        )
    variant = "one that is compared: a name, then Hydra's overrides"
    needed: dict[str, Any] = {"default": []} if names else {"required": True}
    what.add_argument("--variant", metavar="WORD", nargs="+", action="append", help=variant, **needed)
    every = "Hydra's overrides for every variant"
    parser.add_argument("--all", metavar="OVERRIDE", nargs="+", default=[], help=every)


def check_variants(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where a name cannot be one, or is there twice."""
    names = [name for name, *_ in options.variant]
    for name in names:
        if not VARIANT.fullmatch(name):
            allowed = "a name comes first, without = / | in it or a dot in front: --variant NAME OVERRIDE …"
            parser.error(f"--variant {name} is not allowed: {allowed}")
    if len(set(names)) < len(names):
        parser.error(f"--variant: {' '.join(names)} is not allowed: it must name each once")


def chosen_variants(options: argparse.Namespace, known: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What is compared, by name: the overrides of a preset, of all, then its own.

    Args:
        options: that ``add_variants`` added.
        known: the study's own variants.
    """
    own = {name: overrides for name, *overrides in options.variant} or {name: known[name] for name in options.only}
    return {name: with_preset(overrides, options.all) for name, overrides in own.items()}
