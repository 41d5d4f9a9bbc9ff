"""The study ``speed``: suites of groups of cases, each case a model, measured in turns; kept group by group."""

import gc
import json
import math
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from fairseq_linformer.errors import UserError
from fairseq_linformer.system.files import write_whole
from linformer_cli.arguments import number

from .baselines import MODELS, Sizes
from .flags import Flag, count
from .measuring import DTYPES, Case, Machine, flops, in_turns, reason, spread, timed
from .speed_report import Row, write_report
from .store import Store, code_digest
from .suites import COMPARED, SUITES, Group, Plan


class TooSlow(RuntimeError):
    """A case takes longer than the limit, or is expected to."""


class Speed:
    """A plan on a machine, and what was measured of it.

    Args:
        rounds: times that each case runs, after once to warm up; 0 to measure memory alone.
        limit: seconds that a case may take. A case that takes longer, or is expected to, is left out with that reason.
            A group whose rounds have taken as long begins no further round, but runs at least three.
        store: whose settings are those of ``settings_of``.
    """

    def __init__(self, plan: Plan, machine: Machine, rounds: int, limit: float, store: Store):
        self.plan, self.machine, self.rounds, self.limit, self.store = plan, machine, rounds, limit, store
        self._suite: list[Row] = []  # what was measured of the suite that is being measured

    @property
    def rows(self) -> list[Row]:
        """All that was ever measured in the store's folder."""
        return [row for suite in SUITES for rows in self.store.all(suite) for row in rows]

    def run(self, suites: list[str]) -> None:
        """Measures the groups of these suites that have no results yet.

        Raises:
            UserError: a suite has nothing to measure, or the results have other cases in a group of that name.
        """
        groups = []
        for suite in suites:
            for place, group in enumerate(groups_of(suite, self.plan)):
                if self.rounds or group.memory:
                    name, made_of = f"{suite}/{place:02d} {group.name}", {"cases": group.digest()}
                    self.store.refuse_others(name, made_of)
                    groups.append((suite, group, name, made_of))
        self.store.begin()
        bar = tqdm(groups, unit="group", disable=None)
        for suite, group, name, made_of in bar:
            bar.set_description(f"{suite}, {group.name}")
            if self._suite and self._suite[0]["suite"] != suite:
                self._suite = []
            self._suite += self.store.once(name, made_of, partial(self._measure, suite, group))

    def _measure(self, suite: str, group: Group) -> list[Any]:
        """The rows of a group. A case that cannot run has a reason, "skipped", in place of figures."""
        calls: dict[Case, Callable[[], None]] = {}
        rows: dict[Case, Row] = {case: {"suite": suite, "group": group.name, **describe(case)} for case in group.cases}
        for case, row in rows.items():
            try:
                calls[case], row["first_tokens_per_second"] = self._prepare(case)
            except (ImportError, OSError, RuntimeError) as error:  # not installed, no memory, no such kernel, too slow
                row |= {"skipped": reason(error), "too_slow": isinstance(error, TooSlow)}
        if self.rounds:
            self._time(group, calls, rows)
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

    def _time(self, group: Group, calls: dict[Case, Callable[[], None]], rows: Mapping[Case, Row]) -> None:
        """Gives the rows their times, and fractions of the GEMM peak of the same rounds.

        A case for which no memory is left beside the others leaves `calls`, and its row says why.
        """
        timed_calls: dict[Any, Callable[[], None]] = dict(calls)
        operations = 0
        if group.gemm_fraction:
            gemm, operations = self.machine.gemm(group.cases[0].tokens, self.plan.sizes.embed_dim)
            gemm()
            timed_calls["gemm"] = gemm

        def leave_out(case: Case, said: str) -> None:
            rows[case]["skipped"] = said
            del calls[case], timed_calls[case]
            _free_memory()

        seconds = in_turns(timed_calls, self.rounds, self.limit, leave_out)
        for case in calls:
            row = rows[case]
            row |= {"rounds": len(seconds[case]), **spread(seconds[case])}
            row["tokens_per_second"] = case.tokens / row["seconds"]
            if operations:
                peak = operations / spread(seconds["gemm"])["seconds"]
                row["gemm_fraction"] = flops(case) / row["seconds"] / peak

    def _prepare(self, case: Case) -> tuple[Callable[[], None], float]:
        """The case's call, already warm, and the tokens per second of its first run.

        Raises:
            TooSlow: it took longer than the limit, or the shorter lengths show that it would.
        """
        own = describe(case)
        alike = [row for row in self._suite if all(row[name] == own[name] for name in ("model", "note", "phase", "d"))]
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
    """The groups of a suite."""
    groups = list(SUITES[suite](plan))
    if not groups:
        raise UserError(f"the suite {suite} has nothing to measure at lengths up to {max(plan.lengths)}")
    return groups


def describe(case: Case) -> Row:
    """The columns of a row that say which case it is."""
    rows = len(case.batches[0]) if len(case.batches) == 1 else None
    sizes = {"n": case.sizes.length, "d": case.sizes.embed_dim, "k": case.sizes.projected_length}
    return {"model": case.model, "note": case.note, "phase": case.phase, **sizes, "rows": rows}


def forecast(rows: list[Row], case: Case) -> float:
    """Seconds that a case is expected to take, from the growth between the last two lengths; 0 if unknown."""
    if len(rows) < 2 or rows[-2]["n"] == rows[-1]["n"]:
        return 0.0
    first, last = rows[-2:]
    rates = first["first_tokens_per_second"], last["first_tokens_per_second"]
    exponent = math.log(rates[0] / rates[1]) / math.log(last["n"] / first["n"])
    return float(case.tokens / rates[1] * (case.sizes.length / last["n"]) ** max(0.0, exponent))


def settings_of(plan: Plan, machine: Machine, rounds: int, limit: float) -> dict[str, Any]:
    """What all results of a folder share: they are of the same code, machine and options."""
    own = {"rounds": rounds, "limit": limit, **plan.describe()}
    return {"study": "speed", "code": code_digest(), **machine.describe(), **own}


def measure_speed(options: Namespace) -> str:
    """Measures what is missing and writes the report, results.json and pictures.

    Raises:
        UserError: an option is not allowed, or the folder holds other results.
        OSError: the reviews cannot be read.
    """
    sizes = Sizes(
        layers=options.layers,
        embed_dim=options.embed_dim,
        heads=options.heads,
        vocabulary=options.vocab_size,
        dropout=options.dropout,
    )
    lengths = tuple(sorted(options.lengths))
    plan = Plan(sizes, options.tokens, lengths, options.device, tuple(options.models), options.reviews)
    plan.validate()
    suites = options.suites or [suite for suite in SUITES if suite != "lengths" or options.reviews]
    machine = Machine(options.device, options.dtype)
    limits = options.rounds, options.limit
    store = Store(options.out, settings_of(plan, machine, *limits))
    speed = Speed(plan, machine, *limits, store)
    speed.run(suites)
    rows = speed.rows
    write_whole(options.out / "results.json", json.dumps({"settings": store.settings, "rows": rows}, indent=1) + "\n")
    return f"{write_report(options.out, store.settings, rows)}\nfiles: {options.out}"


FLAGS = {
    "lengths": Flag("n", count, several=True, default=[2**power for power in range(9, 17)]),
    "suites": Flag("that are measured", metavar="S", several=True, choices=[*SUITES], shown="all that can be"),
    "models": Flag("what the suite models compares", metavar="M", several=True, choices=[*MODELS], default=[*COMPARED]),
    "dtype": Flag("of weights and activations", metavar=None, choices=[*DTYPES], default="float32"),
    "layers": Flag("of a model", count, "L", default=2),
    "embed-dim": Flag("d", count, "D", default=768),
    "heads": Flag("per layer", count, "H", default=12),
    "vocab-size": Flag("pieces", count, "V", default=8000),
    "dropout": Flag("of hidden layers and attention weights", float, "P", default=0.1),
    "tokens": Flag("per batch, at least one row", count, default=4096),
    "rounds": Flag("times that a case runs, three if it is slow; 0: memory alone", number(int, least=0), default=7),
    "limit": Flag("seconds that a case may take", number(float, above=0), "S", default=60.0),
    "reviews": Flag("IMDB as prepared, for the suite lengths", Path, "DIR", shown="none"),
    "quick": Flag("a small model, n to 2,048, two minutes; other options can change it", switch=True),
}
QUICK: dict[str, Any] = {
    "layers": 1,
    "embed_dim": 256,
    "heads": 4,
    "vocab_size": 2000,
    "tokens": 1024,
    "rounds": 3,
    "limit": 5.0,
}
QUICK |= {
    "lengths": [512, 1024, 2048],
    "suites": [name for name in SUITES if name not in ("efficiency", "long", "lengths")],
}
