"""The engine of all studies that train: it tunes, trains, measures, times, and writes what was found.

A study is a ``Comparison``: what is compared, what trains it, and what is drawn of it. Each variant is trained with
every learning rate and the first seed, and with the best of them and the other seeds.
"""

import json
import math
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from tqdm import tqdm

from fairseq_linformer.errors import UserError
from fairseq_linformer.model.config import ResolvedConfig
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.training.jobs import job_device

from .measuring import Machine, in_turns, spread
from .small_model import SmallTrainer, configure_model
from .store import Figures, Store, code_digest
from .tables import milliseconds, table, with_deviation


@dataclass(frozen=True)
class Trial:
    """One run of a variant."""

    variant: str
    rate: float
    seed: int

    @property
    def folder(self) -> str:
        """Of the run, among those of an experiment."""
        return f"{self.variant}/lr{self.rate:g}/seed{self.seed}"


@dataclass
class Tuned:
    """A variant at the learning rate that was best for it.

    Attributes:
        variant: its name.
        n: the length of its rows.
        tried: what chose the learning rate, by learning rate, with the first seed; None where that run diverged.
        learning_rate: the best.
        results: with it, figures by seed.
        cost: what was measured once, whatever the seed: the seconds of an update, the median ("seconds") and the
            quartiles ("low", "high"), say.
        by_distance: of all seeds together, by where the answer stands; none where that is not measured.
    """

    variant: str
    n: int
    tried: dict[float, float | None]
    learning_rate: float
    results: dict[int, Figures]
    cost: Figures = field(default_factory=dict)
    by_distance: Figures = field(default_factory=dict)

    def each(self, figure: str) -> list[Any]:
        """A figure of every seed."""
        return [own[figure] for own in self.results.values()]


Columns = dict[str, Callable[[Tuned], str]]  # by title, what a cell says


@dataclass(frozen=True)
class Experiment(ABC):
    """Trains and measures variants with one n.

    Attributes:
        store: of the results.
        n: the length of rows.
        variants: by name, Hydra's overrides.
        best: max or min: of learning rates, the one with that score is chosen.
    """

    store: Store
    n: int
    variants: Mapping[str, Sequence[str]]
    best: ClassVar[Callable[..., Any]] = staticmethod(min)

    @abstractmethod
    def check(self) -> None:
        """Finds what cannot work before anything is trained.

        Raises:
            UserError: an override is not allowed, or a folder holds another run.
            OSError: what is read does not exist.
        """

    @abstractmethod
    def measure(self, trials: Sequence[Trial]) -> dict[Trial, Figures]:
        """The figures of runs; what is not complete is trained.

        Raises:
            OSError: a training failed.
        """

    @abstractmethod
    def score(self, figures: Figures) -> float:
        """What chooses the learning rate; not finite where the run diverged."""

    @abstractmethod
    def step(self, tuned: Tuned) -> Callable[[], None]:
        """One update of a variant's model, to be timed; nothing that is kept changes."""

    @abstractmethod
    def origin(self, names: Sequence[str]) -> dict[str, Any]:
        """What these variants depend on, training aside."""

    def tune(self, rates: Sequence[float], seeds: Sequence[int]) -> list[Tuned]:
        """All variants, each at its best learning rate.

        Raises:
            UserError: with the best learning rate of a variant a run diverged, whose score is not finite.
            OSError: a training failed.
        """
        first, *others = seeds
        tried = self.measure([Trial(name, rate, first) for name in self.variants for rate in rates])
        scores = {name: {rate: self.score(tried[Trial(name, rate, first)]) for rate in rates} for name in self.variants}
        chosen = {name: self.best(rates, key=scores[name].__getitem__) for name in self.variants}
        found = tried | self.measure([Trial(name, rate, seed) for name, rate in chosen.items() for seed in others])
        for trial in (Trial(name, rate, seed) for name, rate in chosen.items() for seed in seeds):
            if not math.isfinite(self.score(found[trial])):
                raise UserError(f"{trial.folder} diverged: --learning-rates must have lower ones")
        return [
            Tuned(name, self.n, _finite(scores[name]), rate, {seed: found[Trial(name, rate, seed)] for seed in seeds})
            for name, rate in chosen.items()
        ]


def _finite(scores: Mapping[float, float]) -> dict[float, float | None]:
    """The scores as JSON has them, by learning rate."""
    return {rate: score if math.isfinite(score) else None for rate, score in scores.items()}


@dataclass(frozen=True)
class InProcess(Experiment):
    """Trains small models one after another in this process; a result belongs to all that made it.

    Args:
        folder: of the results, in that of the store.
        updates: of every run.
        device: "cpu" or "cuda".
    """

    folder: str
    updates: int
    device: str
    base: ClassVar[Sequence[str]]  # options of the model, before a variant's own
    code: ClassVar[Sequence[Path]]  # that a run depends on
    best = staticmethod(max)

    def config(self, variant: str) -> ResolvedConfig:
        """A variant's model.

        Raises:
            UserError: an override is not allowed.
        """
        return configure_model(self.base, self.variants[variant], self.n)

    @abstractmethod
    def trainer(self, variant: str, rate: float, seed: int, updates: int) -> SmallTrainer:
        """What trains it, before its first update."""

    @abstractmethod
    def test(self, trainer: SmallTrainer) -> Figures:
        """The figures of a trained model."""

    def check(self) -> None:
        for name in self.variants:
            self.config(name)

    def measure(self, trials: Sequence[Trial]) -> dict[Trial, Figures]:
        bar = tqdm(trials, unit="run", disable=None, desc=f"n={self.n}")
        found = {}
        for trial in bar:
            found[trial] = self._once(trial)
            numbers = {name: value for name, value in found[trial].items() if isinstance(value, int | float)}
            said = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
            bar.write(f"{trial.variant}, n {self.n}, lr {trial.rate:g}, seed {trial.seed}: {said}")
        return found

    def _once(self, trial: Trial) -> Figures:
        def train() -> Figures:
            trainer = self.trainer(trial.variant, trial.rate, trial.seed, self.updates)
            trainer.train()
            return self.test(trainer)

        own = {"learning_rate": trial.rate, "seed": trial.seed, "updates": self.updates}
        return self.store.once(f"{self.folder}/{trial.folder}", {**self.origin([trial.variant]), **own}, train)

    def step(self, tuned: Tuned) -> Callable[[], None]:
        return self.trainer(tuned.variant, 1e-4, 1, 10**6).step

    @abstractmethod
    def rows(self) -> dict[str, Any]:
        """What the rows depend on that are trained and tested on."""

    def origin(self, names: Sequence[str]) -> dict[str, Any]:
        about = {"code": code_digest(self.code), "torch": torch.__version__, "device": self.device, **self.rows()}
        return {**about, "models": {name: asdict(self.config(name)) for name in names}}  # with dropout, say


@dataclass(frozen=True)
class Comparison:
    """A study that trains variants: all that it has of its own, beside what studies.yaml says.

    Attributes:
        experiments: one for each n.
        quantity: what chooses the learning rate, in words.
        form: its values in tables.
        columns: of its table, beside variant, n and learning rate.
        pictures: by file, what draws it.
        measures: what is measured of all variants beside their results: their costs, say.
        order: of the tables' rows and of what is drawn, instead of that of the variants.
        notes: paragraphs and further tables below.
    """

    experiments: Callable[[Namespace, Store], Sequence[Experiment]]
    quantity: str
    form: Callable[[float], str]
    columns: Callable[[Namespace, Sequence[Tuned]], Columns]
    pictures: Mapping[str, Callable[[Namespace, Sequence[Tuned], Path], None]]
    measures: Sequence[Callable[[Namespace, Sequence[Experiment], Sequence[Tuned]], None]]
    order: Callable[[Tuned], float] | None = None
    notes: Callable[[Namespace, Sequence[Tuned]], Sequence[str]] = lambda options, tuned: ()

    def run(self, name: str, options: Namespace) -> str:
        """Trains and measures what is not complete, and writes results.json, results.md and pictures.

        Returns:
            The tables.

        Raises:
            UserError: an option is not allowed, or the folder is that of another study or run.
            OSError: what is read does not exist, or a training failed.
        """
        store = Store(options.out, {"study": name})
        experiments = self.experiments(options, store)
        for experiment in experiments:
            experiment.check()
        store.begin()
        tuned = [own for experiment in experiments for own in experiment.tune(options.learning_rates, options.seeds)]
        for measure in self.measures:
            measure(options, experiments, tuned)
        text = self.tables(options, tuned)
        content = {
            "options": vars(options),
            "machine": Machine(device_of(options), "float32").describe(),
            "made_of": origins(experiments),
            "variants": [asdict(own) for own in tuned],
        }
        write_whole(options.out / "results.json", json.dumps(content, indent=1, default=str) + "\n")
        write_whole(options.out / "results.md", f"{text}\n")
        for file, draw in self.pictures.items():
            draw(options, self.in_order(tuned), options.out / file)
        return f"{text}\n\nresults.json, results.md, {', '.join(self.pictures)}: {options.out}"

    def in_order(self, tuned: Sequence[Tuned]) -> list[Tuned]:
        """As in tables and pictures."""
        names = list(dict.fromkeys(own.variant for own in tuned))
        return sorted(tuned, key=self.order or (lambda own: names.index(own.variant)))

    def tables(self, options: Namespace, tuned: Sequence[Tuned]) -> str:
        """What was found, in Markdown; then what was tried, and notes."""
        rows = self.in_order(tuned)
        lengths: Columns = {"n": lambda own: f"{own.n:,}"} if len({own.n for own in tuned}) > 1 else {}
        own_columns = {"lr": lambda own: f"{own.learning_rate:g}", **self.columns(options, tuned)}
        parts = [table({"variant": lambda own: own.variant, **lengths, **own_columns}, rows)]
        if len(options.learning_rates) > 1:
            rates = {f"lr {rate:g}": partial(self._score, rate=rate) for rate in options.learning_rates}
            title = f"{self.quantity}, seed {options.seeds[0]}"
            parts.append(table({title: lambda own: own.variant, **lengths, **rates}, rows))
        return "\n\n".join([*parts, *self.notes(options, rows)])

    def _score(self, own: Tuned, rate: float) -> str:
        score = own.tried[rate]
        return "diverged" if score is None else self.form(score)


def values_column(title: str, values: Callable[[Tuned], Sequence[float]], form: str) -> Columns:
    """A column of means over seeds, with their deviation."""
    return {title: lambda own: with_deviation(values(own), form)}


def over_lengths(
    tuned: Sequence[Tuned], values: Callable[[Tuned], Sequence[float]]
) -> dict[str, dict[float, Sequence[float]]]:
    """A curve for each variant: values by n, as panels take them."""
    curves: dict[str, dict[float, Sequence[float]]] = {}
    for own in tuned:
        curves.setdefault(own.variant, {})[own.n] = values(own)
    return curves


COST: Columns = {"ms per update": lambda own: milliseconds(own.cost)}  # the time of one


def time_updates(options: Namespace, experiments: Sequence[Experiment], tuned: Sequence[Tuned]) -> None:
    """Gives each variant the seconds of an update: of all in turns, unless that was done with this machine and code."""
    machine, store = Machine(device_of(options), "float32"), experiments[0].store
    by_length = {experiment.n: experiment for experiment in experiments}

    def measure() -> dict[str, float]:
        steps = {f"n={own.n} {own.variant}": by_length[own.n].step(own) for own in tuned}
        calls = {name: partial(_finished, step, machine) for name, step in steps.items()}
        in_turns(calls, rounds=2)  # to warm up
        found = in_turns(calls, options.rounds)
        return {f"{name} {what}": x for name, own in found.items() for what, x in spread(own).items()}

    about = {"code": code_digest(), **machine.describe(), "rounds": options.rounds, **origins(experiments)}
    kept = store.once("cost", about, measure)
    for own in tuned:
        own.cost = {what: kept[f"n={own.n} {own.variant} {what}"] for what in ("seconds", "low", "high")}


def origins(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """What all variants depend on, by n."""
    return {f"n={experiment.n}": experiment.origin([*experiment.variants]) for experiment in experiments}


def _finished(step: Callable[[], None], machine: Machine) -> None:
    """An update and the wait for its end."""
    step()
    machine.finish()


def device_of(options: Namespace) -> str:
    """That a study computes on."""
    return str(getattr(options, "device", job_device()))
