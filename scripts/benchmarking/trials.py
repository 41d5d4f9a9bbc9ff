"""What comparisons of small models share: runs that are kept, tuned learning rates, and the time of an update.

A result lies in a file that is named after a digest of all that it depends on; it is computed once.
"""

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from tqdm import tqdm

from fairseq_linformer.system.files import write_whole
from fairseq_linformer.system.state import read_state

from .measuring import Machine, in_turns, spread

Result = dict[str, float]  # figures by name


class _Kept(TypedDict):
    made_of: dict[str, Any]
    result: Result


@dataclass(frozen=True)
class Runs:
    """The runs of a variant.

    Attributes:
        tried: the figure that chooses, by learning rate, with the first seed.
        learning_rate: the one of the highest.
        results: with it, by seed.
    """

    tried: dict[float, float]
    learning_rate: float
    results: dict[int, Result]


@dataclass(frozen=True)
class Trials:
    """Which runs there are, and what says how good one is.

    Args:
        names: of the variants.
        learning_rates: tried with the first seed, for each variant; the other seeds have the best.
        seeds: one or more.
        train: a run of a name, a learning rate and a seed.
        score: the figure of a result that chooses the learning rate, higher is better.
        describe: a result in words.
    """

    names: Iterable[str]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    train: Callable[[str, float, int], Result]
    score: Callable[[Result], float]
    describe: Callable[[Result], str]

    def run(self, title: str) -> dict[str, Runs]:
        """All runs, by variant; prints a line for each."""
        names = list(self.names)
        total = len(names) * (len(self.learning_rates) + len(self.seeds) - 1)
        with tqdm(total=total, unit="run", disable=None, desc=title) as bar:
            return {name: self._tune(name, bar) for name in names}

    def _tune(self, name: str, bar: "tqdm[Any]") -> Runs:
        first, *others = self.seeds
        tried = {rate: self._train(name, rate, first, bar) for rate in self.learning_rates}
        scores = {rate: self.score(result) for rate, result in tried.items()}
        best = max(scores, key=lambda rate: scores[rate])
        return Runs(scores, best, {first: tried[best], **{seed: self._train(name, best, seed, bar) for seed in others}})

    def _train(self, name: str, rate: float, seed: int, bar: "tqdm[Any]") -> Result:
        result = self.train(name, rate, seed)
        bar.write(f"{name}, lr {rate:g}, seed {seed}: {self.describe(result)}")
        bar.update()
        return result


def mean_score(result: Result) -> float:
    """The mean of all figures."""
    return statistics.mean(result.values())


def once(folder: Path, name: str, made_of: dict[str, Any], result: Callable[[], Result]) -> Result:
    """A result, from the file that is named after what it is made of; if there is none, it is computed and kept.

    Raises:
        UserError: the file is damaged.
        OSError: the folder cannot be made.
    """
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]
    file = folder / f"{name}-{digest}.json"
    if file.is_file():
        return read_state(file, _Kept)["result"]
    folder.mkdir(parents=True, exist_ok=True)  # first: computing may take hours
    kept = _Kept(made_of=made_of, result=result())
    write_whole(file, json.dumps(kept, indent=1) + "\n")
    return kept["result"]


def timed_once(
    folder: Path,
    made_of: dict[str, Any],
    names: Iterable[str],
    steps: Callable[[], Mapping[str, Callable[[], None]]],
    rounds: int,
    device: str,
) -> dict[str, Result]:
    """Seconds of an update by name, measured in turns, unless that was done on this machine.

    Args:
        folder: of the file that keeps them.
        made_of: what they depend on, machine and rounds aside.
        names: of the variants.
        steps: builds them all; an update of each, by name.
        rounds: times that each is measured, after two to warm up.
        device: what they compute on.

    Returns:
        The median ("seconds") and the quartiles ("low", "high") by name.
    """

    machine = Machine(device, "float32")

    def result() -> Result:
        calls = {name: _finished(step, machine) for name, step in steps().items()}
        in_turns(calls, rounds=2)  # to warm up
        seconds = in_turns(calls, rounds)
        return {f"{name} {what}": x for name, own in seconds.items() for what, x in spread(own).items()}

    kept = once(folder, "cost", {**made_of, **machine.describe(), "rounds": rounds}, result)
    return {name: {what: kept[f"{name} {what}"] for what in ("seconds", "low", "high")} for name in names}


def _finished(step: Callable[[], None], machine: Machine) -> Callable[[], None]:
    """An update and the wait for its end."""

    def call() -> None:
        step()
        machine.finish()

    return call
