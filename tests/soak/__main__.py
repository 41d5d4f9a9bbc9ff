"""Strikes every command at random moments, feeds mutated input to every reader, and counts what that breaks.

    python -m tests.soak --kills 100 --inputs 20000 --minutes 30
    python -m tests.soak --repeat checkpoints 4711 --seed 1

The table has a row for each command and each kind of input: how many attempts, and in how many something was lost,
ended in a traceback, or did not end. All should be zero: otherwise the status is 1, and OUT/findings.jsonl says how to
see each again. A kill depends on the machine's speed, and need not show again; an input always does.
"""

import argparse
import itertools
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
from .inputs import Archives, Corpora, Dictionaries, GlueTables, Rows, SentencePieceModels
from .kills import IN_A_ROW, Command, Cycle, Undisturbed
from .model_inputs import Checkpoints, HandMade, Options, Overrides, Tokens
from .mutations import Kinds, input_of, judge, soak_inputs
from .report import LOST, Finding, Report
from .state_inputs import StateFiles
from .table_inputs import ArrowTables, TextTables

KINDS: Kinds = {
    "checkpoints": Checkpoints,
    "hand-made checkpoints": HandMade,
    "corpora": Corpora,
    "tables of GLUE": GlueTables,
    "archives": Archives,
    "rows to predict": Rows,
    "tables": TextTables,
    "Parquet and datasets": ArrowTables,
    "state files": StateFiles,
    "dictionaries": Dictionaries,
    "sentencepiece models": SentencePieceModels,
    "options": Options,
    "tokens": Tokens,
    "overrides": Overrides,
}
SIDE_BY_SIDE = 2  # commands that are struck at a time


def soak_kills(kills: int, seed: int, folder: Path, report: Report, deadline: float) -> Iterator[int]:
    """Strikes commands in turn; yields how many strikes are done."""
    known = list(undisturbed_commands(folder))
    made = contents(folder / "inputs") | contents(folder / "undisturbed")
    numbers = itertools.count()
    strikes = [min(IN_A_ROW, kills - done) for done in range(0, kills, IN_A_ROW)]
    done = 0

    def cycle(left: int) -> int:
        number = next(numbers)
        struck, pace = 0, 1.0
        while struck < left and time.monotonic() < deadline:
            chance = random.Random(f"{seed} {number} {struck} {pace}")
            done = _run_cycle(*known[number % len(known)], left - struck, chance, pace, report, folder, number, seed)
            struck += done
            pace *= 1.0 if done else 0.8  # it ended before it was struck
        return struck

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for struck in pool.map(cycle, strikes):
            done += struck
            yield done
    changed = made.items() ^ (contents(folder / "inputs") | contents(folder / "undisturbed")).items()
    if changed:
        finding = Finding(LOST, f"inputs, or earlier results, are others: {sorted({name for name, _ in changed})}")
        report.add("what the commands read", [finding], 0, tried=0, seed=seed)


def _run_cycle(
    command: Command,
    like: Undisturbed,
    strikes: int,
    chance: random.Random,
    pace: float,
    report: Report,
    folder: Path,
    number: int,
    seed: int,
) -> int:
    began = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=folder))
    cycle = Cycle(command, like, place / "here", chance, pace)
    cycle.run(strikes)
    struck = max(1, len(cycle.strikes)) if cycle.findings else len(cycle.strikes)
    where = str(place) if cycle.findings else "removed"
    report.add(command.name, cycle.findings, time.monotonic() - began, struck, seed=seed, number=number, folder=where)
    if not cycle.findings:
        shutil.rmtree(place, ignore_errors=True)
    return struck


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
        finding = judge(KINDS[kind](Path(folder)), input_of(kind, seed, number))
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
