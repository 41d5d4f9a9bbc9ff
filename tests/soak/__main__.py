"""Strikes every command at random moments, feeds mutated input to every reader, and counts what that breaks.

    python -m tests.soak --kills 100 --inputs 20000 --minutes 30
    python -m tests.soak --repeat checkpoints 4711 --seed 1

The table has a row for each command and each kind of input: how many attempts, and in how many something was lost,
ended in a traceback, or did not end. All should be zero: otherwise the status is 1, and OUT/findings.jsonl says how to
see each again. A kill depends on the machine's speed, and need not show again; an input always does.
"""

import argparse
import itertools
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tqdm import tqdm

from .commands import contents, undisturbed_commands
from .files import Archives, corpora, dictionaries, glue_tables, sentencepiece_models, state_files
from .kills import IN_A_ROW, Cycle
from .models import Checkpoints, HandMade, Options, Overrides, Tokens
from .readers import Kinds, difference, feed, make_kinds, soak_inputs
from .report import LOST, Finding, Report
from .tables import ArrowTables, text_tables

KINDS: Kinds = {
    "checkpoints": Checkpoints,
    "hand-made checkpoints": HandMade,
    "corpora": corpora,
    "tables of GLUE": glue_tables,
    "archives": Archives,
    "tables": text_tables,
    "Parquet and datasets": ArrowTables,
    "state files": state_files,
    "dictionaries": dictionaries,
    "sentencepiece models": sentencepiece_models,
    "options": Options,
    "tokens": Tokens,
    "overrides": Overrides,
}
SIDE_BY_SIDE = 2  # commands that are struck at a time


def soak_kills(kills: int, seed: int, folder: Path, report: Report, deadline: float) -> Iterator[int]:
    """Strikes commands in turn; yields how many strikes are done."""
    known = list(undisturbed_commands(folder))
    made = contents(folder / "inputs") | contents(folder / "undisturbed")

    def cycle(number: int) -> int:
        """A cycle, or several where the command ends before it is struck often enough."""
        command, like = known[number % len(known)]
        left, pace = min(IN_A_ROW, kills - IN_A_ROW * number), 1.0
        while left > 0 and time.monotonic() < deadline:
            began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"{number}-", dir=folder))
            cycle = Cycle(command, like, place / "here", random.Random(f"{seed} {number} {left} {pace}"), pace)
            cycle.run(left)
            found, struck = cycle.findings, max(len(cycle.strikes), len(cycle.findings[:1]))
            where = {"seed": seed, "number": number, "folder": str(place)}
            report.add(command.name, found, time.monotonic() - began, struck, **where)
            if not found:
                shutil.rmtree(place, ignore_errors=True)
            left -= struck
            pace *= 1.0 if struck else 0.8  # it ended before it was struck
        return min(IN_A_ROW, kills - IN_A_ROW * number) - left

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield from itertools.accumulate(pool.map(cycle, range(math.ceil(kills / IN_A_ROW))))
    if lost := difference(made, contents(folder / "inputs") | contents(folder / "undisturbed"), "what was read"):
        report.add("what the commands read", [Finding(LOST, lost)], 0, tried=0, seed=seed)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--kills", metavar="N", type=int, default=100, help="default: 100")
    add("--inputs", metavar="N", type=int, default=20_000, help="mutated inputs (default 20000)")
    add("--minutes", metavar="M", type=float, default=30.0, help="begin nothing new after so many (default 30)")
    add("--only", metavar="KIND", nargs="+", choices=KINDS, default=[*KINDS], help="of mutated inputs (default: all)")
    add("--seed", metavar="N", type=int, default=1, help="default: 1")
    add("--out", metavar="DIR", type=Path, default=Path("runs/soak"), help="findings and table (default runs/soak)")
    add("--repeat", nargs=2, metavar=("KIND", "NUMBER"), help=f"one input again: {', '.join(KINDS)}")
    return parser.parse_args()


def repeat(kind: str, seed: int, number: int) -> int:
    """Feeds one input again, in this process; the status is 1 where something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        finding = feed(make_kinds({kind: KINDS[kind]}, Path(folder)), Path(folder), (kind, seed, number))
    print("as it should be" if finding is None else f"{finding.failure}: {finding.what}")
    return int(finding is not None)


def soak(kills: int, inputs: int, minutes: float, only: Sequence[str], seed: int, out: Path) -> int:
    """Inputs first, which take the same time whatever happens, then kills; the number of failures."""
    began = time.monotonic()
    deadline = began + 60 * minutes
    out.mkdir(parents=True, exist_ok=True)
    (out / "findings.jsonl").unlink(missing_ok=True)
    report = Report(out.absolute())
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    kinds = {name: KINDS[name] for name in only}
    try:
        for total, what, steps in (
            (inputs, "input", soak_inputs(kinds, inputs, seed, folder / "inputs-read", report, deadline)),
            (kills, "kill", soak_kills(kills, seed, folder, report, deadline)),
        ):
            with tqdm(total=total, unit=what, mininterval=5) as bar:
                for done in steps if total else ():
                    bar.update(done - bar.n)
                    bar.set_postfix(failures=report.failures, refresh=False)
    finally:
        if not report.failures:
            shutil.rmtree(folder, ignore_errors=True)
    about = f"--kills {kills} --inputs {inputs} --minutes {minutes:g} --seed {seed}"
    text = f"{report.table()}\n{about}: {time.monotonic() - began:.0f} s on {os.cpu_count()} cores\n"
    (out / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}{out / 'findings.jsonl' if report.failures else 'nothing'} was found")
    return report.failures


def main(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    if arguments.repeat:
        kind, number = arguments.repeat
        return repeat(kind, arguments.seed, int(number))
    options = {name: value for name, value in vars(arguments).items() if name != "repeat"}
    return int(soak(**options) > 0)


if __name__ == "__main__":
    sys.exit(main(parse_arguments()))
