"""The command line of all studies: ``linformer study NAME [options]``, or ``python scripts/study.py NAME …``."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fairseq_linformer.cli.program import program
from fairseq_linformer.training.jobs import job_device
from linformer_cli.arguments import make_parser

from .engine import Comparison
from .flags import SHARED, add_variants, check_variants
from .registry import STUDIES
from .variants import read_studies, variants_of


def main(words: Sequence[str]) -> None:
    """Runs a study.

    Args:
        words: its name, and its options.
    """
    parser = make_parser(overview())
    parser.prog = _program()
    parser.add_argument("study", metavar="NAME", choices=STUDIES, help=f"one of {', '.join(STUDIES)}")
    study = parser.parse_args(words[:1]).study
    options = parse(study, words[1:])
    with program():
        if "threads" in options:
            torch.set_num_threads(options.threads)
        run = STUDIES[study].run
        print(f"\n{run.run(study, options) if isinstance(run, Comparison) else run(options)}")


def overview() -> str:
    """What --help says of all studies: the first line of each."""
    lines = [f"  {name:16}{read_studies()[name]['about'].splitlines()[0]}" for name in STUDIES]
    head = ["Measures and compares models: a study by its name.\n", "    linformer study recall --help\n"]
    return "\n".join([*head, *lines])


def parse(name: str, words: Sequence[str]) -> argparse.Namespace:
    """The options of a study; ends the program where they cannot be."""
    study, said = STUDIES[name], read_studies()[name]
    parser = make_parser(said["about"])
    parser.prog = f"{_program()} {name}"
    machine = {"device": job_device, "threads": torch.get_num_threads}
    for flag, default in said["defaults"].items():
        replace(SHARED[flag], default=machine[flag]() if flag in machine else default).add_to(parser, flag)
    for flag, own in study.flags.items():
        own.add_to(parser, flag)
    if isinstance(study.run, Comparison):
        names = list(variants_of(name, n=512))
        add_variants(parser, names, [name for name in names if name not in said.get("left_out", ())])
    options = parser.parse_args(words)
    if getattr(options, "quick", False):
        parser.set_defaults(**study.quick)
        options = parser.parse_args(words)
    if isinstance(study.run, Comparison):
        check_variants(parser, options)
    return options


def _program() -> str:
    """How this program is typed."""
    return "study.py" if Path(sys.argv[0]).name == "study.py" else "linformer study"
