"""Variants of one small model on masked associative recall: what they bring back, and cost (scripts/recall.py)."""

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import fairseq_linformer
from fairseq_linformer.config import ResolvedConfig
from fairseq_linformer.system.files import write_whole

from . import recall, small_model
from .measuring import Machine
from .recall import Task, Trainer, configure
from .runner import code_digest
from .trials import Result, Trials, mean_score, once, timed_once
from .variants import with_deviation

# What is compared unless the user says otherwise. The windows, blocks and hashes are small because rows are short.
VARIANTS: dict[str, list[str]] = {
    "softmax": ["model.attention=softmax"],
    "none": ["model.attention=none"],
    "control": ["model.projection=mean-pool", "model.projected_length=1"],
    **{
        f"{name}-k{k}": [f"model.projection={projection}", f"model.projected_length={k}"]
        for name, projection in (("learned", "linear"), ("mean-pool", "mean-pool"), ("split-pool", "split-pool"))
        for k in (4, 16, 32)
    },
    "attention-pool-k16": ["model.projection=attention-pool", "model.projected_length=16"],
    "mean-pool-k4-window8": ["model.projection=mean-pool", "model.projected_length=4", "model.linformer_window=8"],
    "softmax-no-conv": ["model.attention=softmax", "model.local_conv=0"],
    "mean-pool-k16-no-conv": ["model.projection=mean-pool", "model.projected_length=16", "model.local_conv=0"],
    **{name: [f"model.attention={name}"] for name in ("efficient", "linear", "performer", "rfa")},
    "revisited-k16": ["model.attention=revisited-linformer", "model.projected_length=16"],
    "nystrom-16": ["model.attention=nystrom", "model.nystrom_landmarks=16"],
    "longformer-8": ["model.attention=longformer", "model.longformer_window=8"],
    "bigbird-8": ["model.attention=bigbird", "model.bigbird_block=8", "model.bigbird_random_blocks=1"],
    "long-short-8-4": ["model.attention=long-short", "model.long_short_window=8", "model.long_short_rank=4"],
    "sparse": ["model.attention=sparse"],
    "reformer-8": ["model.attention=reformer", "model.reformer_chunk_length=8"],
}
CODE = (Path(fairseq_linformer.__file__).parent, Path(recall.__file__), Path(small_model.__file__))  # of a run


@dataclass(frozen=True)
class Recalled:
    """A variant at the learning rate that was best for it.

    Attributes:
        tried: the mean share over all D, by learning rate, with the first seed.
        learning_rate: the one of the highest.
        shares: with it, of the values brought back, by seed and D.
        cost: seconds of an update, the median ("seconds") and the quartiles ("low", "high").
    """

    name: str
    tried: Mapping[float, float]
    learning_rate: float
    shares: Mapping[int, Mapping[int, float]]
    cost: Mapping[str, float]

    def of_pairs(self, pairs: int) -> list[float]:
        """The share of every seed with D = `pairs`."""
        return [own[pairs] for own in self.shares.values()]

    @property
    def means(self) -> list[float]:
        """The mean over all D of every seed."""
        return [statistics.mean(own.values()) for own in self.shares.values()]

    @property
    def mean(self) -> float:
        """Over all D and seeds."""
        return statistics.mean(self.means)


@dataclass(frozen=True)
class RecallComparison:
    """Variants that are trained on one task.

    Args:
        task: its n and D.
        out: folder of the runs, ``NAME/lrRATE/seedN-DIGEST.json``; complete ones are not repeated. The digest is that
            of all that a run depends on.
        variants: by name, overrides of the model as ``recall.configure`` takes them.
        learning_rates: tried with the first seed, for each variant; the other seeds have the best.
        seeds: one or more.
        updates: of every run.
        rounds: times that an update of each variant is measured, in turns.
        device: what trains them, "cpu" or "cuda".

    Raises:
        UserError: an override is not allowed.
    """

    task: Task
    out: Path
    variants: Mapping[str, Sequence[str]]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    updates: int
    rounds: int
    device: str = "cpu"

    @cached_property
    def configs(self) -> dict[str, ResolvedConfig]:
        """The models, by variant."""
        return {name: configure(overrides, self.task.length) for name, overrides in self.variants.items()}

    def run(self) -> list[Recalled]:
        """Trains and measures what is not complete; prints a line for each run."""
        names = list(self.configs)
        trials = Trials(names, self.learning_rates, self.seeds, self._train, mean_score, _in_words)
        trained = trials.run(f"n={self.task.length}")
        costs = timed_once(self.out, self._origin(names), names, self._steps, self.rounds, self.device)
        return [
            Recalled(name, runs.tried, runs.learning_rate, _by_pairs(runs.results), costs[name])
            for name, runs in trained.items()
        ]

    def _train(self, name: str, rate: float, seed: int) -> Result:
        """The shares of one run by D."""

        def result() -> Result:
            trainer = Trainer(self.task, self.configs[name], rate, seed, self.updates, self.device)
            trainer.train()
            return {str(pairs): share for pairs, share in trainer.recall().items()}

        made_of = {**self._origin([name]), "learning_rate": rate, "seed": seed, "updates": self.updates}
        return once(self.out / name / f"lr{rate:g}", f"seed{seed}", made_of, result)

    def _steps(self) -> dict[str, Callable[[], None]]:
        device = self.device
        return {name: Trainer(self.task, own, 1e-4, 1, 10**6, device).step for name, own in self.configs.items()}

    def _origin(self, names: Sequence[str]) -> dict[str, Any]:
        """What runs of these variants depend on, training aside."""
        models = {name: asdict(self.configs[name]) for name in names}  # with what belongs to the recipe: dropout
        about = {"code": code_digest(CODE), "torch": torch.__version__, "device": self.device}
        return {**about, "task": asdict(self.task), "models": models}


def _by_pairs(results: Mapping[int, Result]) -> dict[int, dict[int, float]]:
    """The shares by seed and D."""
    return {seed: {int(pairs): share for pairs, share in own.items()} for seed, own in results.items()}


def _in_words(shares: Result) -> str:
    return ", ".join(f"{100 * share:.0f} % of D={pairs}" for pairs, share in shares.items())


def compare_recall(comparison: RecallComparison) -> str:
    """Runs a comparison, writes results.json, results.md and recall.png into its folder, and returns the tables."""
    recalled = comparison.run()
    tables = as_table(recalled, comparison.updates)
    content: dict[str, Any] = {"task": asdict(comparison.task), "updates": comparison.updates}
    content["machine"] = Machine(comparison.device, "float32").describe()
    content["variants"] = [asdict(own) for own in recalled]
    write_whole(comparison.out / "results.json", json.dumps(content, indent=1) + "\n")
    write_whole(comparison.out / "results.md", tables + "\n")
    draw_recall(recalled, comparison.out / "recall.png")
    return tables


def as_table(recalled: Sequence[Recalled], updates: int) -> str:
    """The shares by variant and D in Markdown, with the deviation over seeds, and the cost; then what was tried."""
    first = recalled[0]
    seeds, pairs = list(first.shares), list(first.shares[next(iter(first.shares))])
    columns = " | ".join(f"D = {D}" for D in pairs)
    lines = [
        f"| % of values after {updates} updates, {len(seeds)} seeds | lr | {columns} | mean of D | ms per update |"
    ]
    lines.append("|---" * (4 + len(pairs)) + "|")
    for own in recalled:
        cells = [with_deviation([100 * x for x in own.of_pairs(D)], ".1f") for D in pairs]
        cells.append(with_deviation([100 * x for x in own.means], ".1f"))
        low, middle, high = (f"{1000 * own.cost[what]:.0f}" for what in ("low", "seconds", "high"))
        lines.append(f"| {own.name} | {own.learning_rate:g} | {' | '.join(cells)} | {middle} ({low} to {high}) |")
    rates = list(first.tried)
    lines += ["", f"| mean of D, seed {seeds[0]} | {' | '.join(f'lr {rate:g}' for rate in rates)} |"]
    lines.append("|---" * (1 + len(rates)) + "|")
    for own in recalled:
        lines.append(f"| {own.name} | {' | '.join(f'{100 * own.tried[rate]:.1f}' for rate in rates)} |")
    return "\n".join(lines)


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points, cost and share, that no other beats: none costs less and brings back as much, or more.

    They are in the order of their costs.
    """
    best: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not best or points[name][1] > points[best[-1]][1]:
            best.append(name)
    return best


def draw_recall(recalled: Sequence[Recalled], path: Path) -> None:
    """The shares by variant and D as a map with its numbers; and the frontier of their mean against cost."""
    ordered = sorted(recalled, key=lambda own: -own.mean)
    figure = Figure(figsize=(12, 1.6 + 0.33 * len(ordered)), layout="constrained")
    shares, costs = figure.subplots(1, 2, width_ratios=(2, 3))
    pairs = list(next(iter(ordered[0].shares.values())))
    means = [[100 * statistics.mean(own.of_pairs(D)) for D in pairs] for own in ordered]
    shares.imshow(means, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            color = "black" if value > 60 else "white"
            shares.text(column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize="small")
    shares.set_xticks(range(len(pairs)), [str(D) for D in pairs])
    shares.set_yticks(range(len(ordered)), [own.name for own in ordered], fontsize="small")
    shares.set(title="values brought back, %, mean over seeds", xlabel="pairs per row, D")
    points = {own.name: (1000 * own.cost["seconds"], 100 * own.mean) for own in ordered}
    best = frontier(points)
    costs.plot(*zip(*(points[name] for name in best), strict=True), color="#D55E00", linewidth=1.5, zorder=1)
    for (name, (x, y)), marker in zip(points.items(), itertools.cycle("o^sDvP*X<>ph"), strict=False):
        color = "#D55E00" if name in best else "#0072B2"
        costs.plot(x, y, marker=marker, color=color, linestyle="", markersize=8, alpha=0.8, label=name)
    costs.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    costs.set(xlabel="ms per update (median)", ylabel="mean of all D, %")
    costs.set(title="on the line: nothing cheaper brings back as much", ylim=(0, 108))
    costs.set_xlim(0, 1.25 * max(x for x, _ in points.values()))
    costs.grid(color="0.9")
    figure.savefig(path, dpi=110)
