"""Measures suites group by group and saves each group: an interrupted benchmark resumes with the next group."""

import gc
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import fairseq_linformer
from fairseq_linformer.errors import UserError, one_line
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.system.state import read_state

from .measuring import Case, Machine, flops, in_turns, spread, timed
from .rows import Results, Row
from .suites import SUITES, Group, Plan

RESULTS_FILE = "results.json"
# The code that results depend on: what is measured, and what measures it.
CODE = (Path(fairseq_linformer.__file__).parent, Path(__file__).parent)


class TooSlow(RuntimeError):
    """A case takes longer than the limit, or is expected to."""


@dataclass
class Benchmark:
    """A plan on a machine, and its results so far.

    Args:
        rounds: times that each case runs, after once to warm up; 0 to measure memory alone.
        limit: seconds that a case may take. A case that takes longer, or is expected to, is left out with that reason.
            A group whose rounds have taken as long begins no further round, but runs at least three.
        out: folder of results.json.

    Raises:
        UserError: the folder has results of other options, of another machine or of other code, or damaged ones.
    """

    plan: Plan
    machine: Machine
    rounds: int
    limit: float
    out: Path
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        own = {"rounds": self.rounds, "limit": self.limit, **self.plan.describe()}
        self.settings = {"code": code_digest(), **self.machine.describe(), **own}
        file = self.out / RESULTS_FILE
        if file.is_file():
            try:
                earlier: Any = read_state(file, Results)
            except ValueError as error:
                raise UserError(f"{error}: name another --out") from error
            found, self.rows = earlier["settings"], earlier["rows"]
            for name, value in self.settings.items():
                if found.get(name) != value:
                    said = one_line(found.get(name))
                    raise UserError(f"{file} has {name}={said}, not {value}: name another --out")

    def run(self, suites: list[str]) -> None:
        """Measures the groups of these suites that have no results yet.

        Raises:
            UserError: a suite has nothing to measure, or the results have other cases in a group of that name.
        """
        groups = [(suite, group) for suite in suites for group in groups_of(suite, self.plan)]
        groups = [(suite, group) for suite, group in groups if self.rounds or group.memory]
        known = {(row["suite"], row["group"]): row["cases"] for row in self.rows}
        for suite, group in groups:
            if known.get((suite, group.name), group.digest()) != group.digest():
                file = self.out / RESULTS_FILE
                raise UserError(f"{file} has other rows in {suite}, {group.name}: name another --out")
        bar = tqdm(groups, unit="group", disable=None)
        for suite, group in bar:
            bar.set_description(f"{suite}, {group.name}")
            if (suite, group.name) not in known:
                origin = {"suite": suite, "group": group.name, "cases": group.digest()}
                self.rows += [{**origin, **row} for row in self._measure(suite, group)]
                content = {"settings": self.settings, "rows": self.rows}
                write_whole(self.out / RESULTS_FILE, json.dumps(content, indent=1) + "\n")

    def _measure(self, suite: str, group: Group) -> list[Row]:
        """The rows of a group. A case that cannot run has a reason, "skipped", in place of figures."""
        calls: dict[Case, Callable[[], None]] = {}
        rows = {case: describe(case) for case in group.cases}
        for case, row in rows.items():
            try:
                calls[case], row["first_tokens_per_second"] = self._prepare(suite, case)
            except (ImportError, OSError, RuntimeError) as error:  # not installed, no memory, no such kernel, too slow
                row["skipped"] = reason(error)
                row["too_slow"] = isinstance(error, TooSlow)
        if self.rounds:
            seconds, gemm_peak = self._time_those_that_fit(group, calls, rows)
            for case in calls:
                row = rows[case]
                row |= {"rounds": len(seconds[case]), **spread(seconds[case])}
                row["tokens_per_second"] = case.tokens / row["seconds"]
                if gemm_peak:
                    row["gemm_fraction"] = flops(case) / row["seconds"] / gemm_peak
        measured = list(calls)
        if group.memory:
            for case in measured:
                rows[case] |= _figure("MiB", self.machine.peak_memory, calls[case])
        if group.largest_batch:
            calls.clear()  # nothing else holds the models
            _free_memory()
            for case in measured:
                rows[case] |= _figure("largest_batch", self.machine.largest_batch, case, self.limit)
        return list(rows.values())

    def _time_those_that_fit(
        self, group: Group, calls: dict[Case, Callable[[], None]], rows: dict[Case, Row]
    ) -> tuple[dict[Case, list[float]], float]:
        """``_time``. A case for which no memory is left beside the others leaves `calls`, and its row says why."""
        while True:
            try:
                return self._time(group, {case: partial(_named, case, call) for case, call in calls.items()})
            except _NoMemoryLeft as error:
                rows[error.case]["skipped"] = reason(error)
                del calls[error.case]
            _free_memory()

    def _time(self, group: Group, calls: Mapping[Case, Callable[[], None]]) -> tuple[dict[Case, list[float]], float]:
        """Seconds of each call in each round, and the GEMM peak of the same rounds in FLOP/s, 0 if not measured."""
        if not group.gemm_fraction:
            return in_turns(calls, self.rounds, self.limit), 0.0
        gemm, operations = self.machine.gemm(group.cases[0].tokens, self.plan.sizes.embed_dim)
        gemm()
        seconds: dict[Any, list[float]] = in_turns({**calls, "gemm": gemm}, self.rounds, self.limit)
        return seconds, operations / spread(seconds.pop("gemm"))["seconds"]

    def _prepare(self, suite: str, case: Case) -> tuple[Callable[[], None], float]:
        """The case's call, already warm, and the tokens per second of its first run.

        Raises:
            TooSlow: it took longer than the limit, or the shorter lengths show that it would.
        """
        alike = [row for row in self.rows if row["suite"] == suite and _alike(row, case)]
        for shorter in alike:
            if shorter.get("too_slow"):
                raise TooSlow(f"at n={shorter['n']} it {shorter['skipped']}")
        expected = forecast([row for row in alike if "skipped" not in row], case)
        if expected > self.limit:
            raise TooSlow(f"would take about {expected:.0f} s, the limit is {self.limit:g} s")
        work = self.machine.prepare(case)
        if case.compiles:
            work()
        seconds = timed(work)
        if seconds > self.limit:
            raise TooSlow(f"took {seconds:.0f} s, the limit is {self.limit:g} s")
        return work, case.tokens / seconds


def code_digest(places: Sequence[Path] = ()) -> str:
    """A hash of the code in these folders and files; by default of the package's and of the benchmark's."""
    digest = hashlib.sha256()
    for place in places or CODE:
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(str(file.relative_to(place)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class _NoMemoryLeft(RuntimeError):
    def __init__(self, case: Case, said: str):
        super().__init__(said)
        self.case = case


def _named(case: Case, call: Callable[[], None]) -> None:
    """Calls it; an error for lack of memory names the case."""
    try:
        call()
    except torch.OutOfMemoryError as error:
        raise _NoMemoryLeft(case, reason(error)) from None


def _free_memory() -> None:
    """Gives back what models held that are gone."""
    gc.collect()
    torch.cuda.empty_cache()


def _figure(name: str, measure: Callable[..., float], *arguments: Any) -> Row:
    """A figure of memory, or the reason why there is none."""
    try:
        return {name: measure(*arguments)}
    except (RuntimeError, OSError) as error:
        return {"memory_skipped": reason(error)}


def groups_of(suite: str, plan: Plan) -> list[Group]:
    """The groups of a suite.

    Raises:
        UserError: it has none.
    """
    groups = list(SUITES[suite](plan))
    if not groups:
        raise UserError(f"the suite {suite} has nothing to measure at lengths up to {max(plan.lengths)}")
    return groups


def reason(error: Exception) -> str:
    """The first line of an error."""
    return (str(error) or type(error).__name__).splitlines()[0]


def describe(case: Case) -> Row:
    """The columns of a row that say which case it is."""
    rows = len(case.batches[0]) if len(case.batches) == 1 else None
    k = case.sizes.projected_length
    sizes = {"n": case.sizes.length, "d": case.sizes.embed_dim, "k": k}
    return {"model": case.model, "note": case.note, "phase": case.phase, **sizes, "rows": rows}


def forecast(rows: list[Row], case: Case) -> float:
    """Seconds that a case is expected to take, from the growth between the last two lengths; 0 if unknown."""
    if len(rows) < 2 or rows[-2]["n"] == rows[-1]["n"]:
        return 0.0
    first, last = rows[-2:]
    rates = first["first_tokens_per_second"], last["first_tokens_per_second"]
    exponent = math.log(rates[0] / rates[1]) / math.log(last["n"] / first["n"])
    return float(case.tokens / rates[1] * (case.sizes.length / last["n"]) ** max(0.0, exponent))


def _alike(row: Row, case: Case) -> bool:
    """Whether they differ in length only."""
    own = describe(case)
    return all(row[name] == own[name] for name in ("model", "note", "phase", "d"))
