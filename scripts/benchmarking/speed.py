"""The study ``speed``: suites of groups of cases, each case a model, measured in turns; kept group by group."""

import gc
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from fairseq_linformer.errors import UserError
from fairseq_linformer.system.files import write_whole
from linformer_cli.arguments import number

from .baselines import MODELS, Sizes, check_sizes
from .flags import Flag, count
from .measuring import DTYPES, Case, Machine, flops, in_turns, reason, spread, timed
from .speed_report import Row, write_report
from .store import Store, code_digest, digest
from .suites import COMPARED, SUITES, Group, Plan


class TooSlow(RuntimeError):
    """A case takes longer than the limit, or did so with a smaller n."""


@dataclass(frozen=True)
class Runner:
    """Measures groups on a machine.

    Args:
        rounds: times that each case runs, after once to warm up; 0 to measure memory alone.
        limit: seconds that a case may take. One that takes longer is left out with that reason, and so is it at larger
            n. A group whose rounds have taken as long begins no further round, but runs at least three.
    """

    machine: Machine
    rounds: int
    limit: float

    def measure(self, group: Group, about: Row, before: Sequence[Row]) -> list[Row]:
        """The rows of a group. A case that cannot run has a reason, "skipped", in place of figures.

        Args:
            group: what is measured.
            about: what its rows begin with.
            before: the rows of the suite's groups before it.
        """
        rows: dict[Case, Row] = {case: {**about, **describe(case)} for case in group.cases}
        calls: dict[Case, Callable[[], None]] = {}
        for case, row in rows.items():
            try:
                calls[case] = self._prepare(case, row, before)
            except (ImportError, OSError, RuntimeError) as error:  # not installed, no memory, no such kernel, too slow
                row |= {"skipped": reason(error), "too_slow": isinstance(error, TooSlow)}
        if self.rounds:
            self._time(group, calls, rows)
        for case, call in calls.items():
            if group.memory:
                try:
                    rows[case]["MiB"] = self.machine.peak_memory(call)
                except RuntimeError as error:
                    rows[case]["memory_skipped"] = reason(error)
        return list(rows.values())

    def _prepare(self, case: Case, row: Row, before: Sequence[Row]) -> Callable[[], None]:
        """The case's call, already warm.

        Raises:
            TooSlow: it took longer than the limit, or did so at a smaller n.
        """
        for other in before:
            if other.get("too_slow") and all(other[name] == row[name] for name in ("model", "note", "phase", "d")):
                raise TooSlow(f"at n={other['n']} it {other['skipped']}")
        work = self.machine.prepare(case)
        if case.compiles:
            work()
        seconds = timed(work)
        if seconds > self.limit:
            raise TooSlow(f"took {seconds:.0f} s, the limit is {self.limit:g} s")
        return work

    def _time(self, group: Group, calls: dict[Case, Callable[[], None]], rows: dict[Case, Row]) -> None:
        """Gives the rows their times, and fractions of the GEMM peak of the same rounds.

        A case for which no memory is left beside the others leaves `calls`, and its row says why.
        """
        timed_calls: dict[Any, Callable[[], None]] = dict(calls)
        operations = 0
        if group.gemm_fraction:
            gemm, operations = self.machine.gemm(group.cases[0].tokens, group.cases[0].sizes.embed_dim)
            gemm()
            timed_calls["gemm"] = gemm

        def leave_out(case: Case, said: str) -> None:
            rows[case]["skipped"] = said
            del calls[case], timed_calls[case]
            gc.collect()
            torch.cuda.empty_cache()

        seconds = in_turns(timed_calls, self.rounds, self.limit, leave_out)
        for case in calls:
            row = rows[case]
            row |= {"rounds": len(seconds[case]), **spread(seconds[case])}
            row["tokens_per_second"] = case.tokens / row["seconds"]
            if operations:
                peak = operations / spread(seconds["gemm"])["seconds"]
                row["gemm_fraction"] = flops(case) / row["seconds"] / peak


def describe(case: Case) -> Row:
    """The columns of a row that say which case it is."""
    sizes = {"n": case.sizes.length, "d": case.sizes.embed_dim, "k": case.sizes.projected_length}
    return {"model": case.model, "note": case.note, "phase": case.phase, **sizes, "rows": case.rows}


def measure_suites(suites: Sequence[str], plan: Plan, runner: Runner, store: Store) -> list[Row]:
    """Measures the groups of these suites that have no results yet, and returns all that the store's folder has.

    Raises:
        UserError: a suite has nothing to measure, or a model cannot have its sizes; nothing is written.
    """
    groups = []
    for suite in suites:
        own = list(SUITES[suite](plan))
        if not own:
            raise UserError(f"the suite {suite} has nothing to measure at lengths up to {max(plan.lengths)}")
        for place, group in enumerate(own):
            if runner.rounds or group.memory:
                groups.append((suite, group, f"{suite}/{place:02d} {group.name}"))
    for model, sizes in dict.fromkeys((case.model, case.sizes) for _, group, _ in groups for case in group.cases):
        check_sizes(model, sizes)
    store.begin()
    bar = tqdm(groups, unit="group", disable=None)
    before: dict[str, list[Row]] = {suite: [] for suite in suites}
    for suite, group, name in bar:
        bar.set_description(f"{suite}, {group.name}")
        about, made_of = {"suite": suite, "group": group.name}, {"cases": digest(repr(group.cases))}
        before[suite] += store.once(name, made_of, partial(runner.measure, group, about, before[suite]))
    return [row for suite in SUITES for rows in store.all(suite) for row in rows]


def settings_of(plan: Plan, runner: Runner) -> dict[str, Any]:
    """What all results of a folder share: they are of the same code, machine and options."""
    own = {"rounds": runner.rounds, "limit": runner.limit, **plan.describe()}
    return {"study": "speed", "code": code_digest(), **runner.machine.describe(), **own}


def measure_speed(options: Namespace) -> str:
    """Measures what is missing and writes the report, results.json and pictures.

    Raises:
        UserError: an option is not allowed, or the folder holds other results.
    """
    own = ("layers", "embed_dim", "heads", "dropout")
    sizes = Sizes(vocabulary=options.vocab_size, **{name: getattr(options, name) for name in own})
    plan = Plan(sizes, options.tokens, tuple(sorted(options.lengths)), options.device, tuple(options.models))
    plan.validate()
    runner = Runner(Machine(options.device, options.dtype), options.rounds, options.limit)
    store = Store(options.out, settings_of(plan, runner))
    rows = measure_suites(options.suites, plan, runner, store)
    write_whole(options.out / "results.json", json.dumps({"settings": store.settings, "rows": rows}, indent=1) + "\n")
    return f"{write_report(options.out, store.settings, rows)}\nfiles: {options.out}"


FLAGS = {
    "lengths": Flag("n", count, several=True, default=[2**power for power in range(9, 17)]),
    "suites": Flag("that are measured", metavar="S", several=True, choices=[*SUITES], default=[*SUITES]),
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
    "quick": Flag("a small model, n to 2,048, two minutes; other options can change it", switch=True),
}
QUICK: dict[str, Any] = {"layers": 1, "embed_dim": 256, "heads": 4, "vocab_size": 2000, "tokens": 1024, "rounds": 3}
QUICK |= {"limit": 5.0, "lengths": [512, 1024, 2048]}
QUICK["suites"] = [name for name in SUITES if name not in ("efficiency", "long")]
