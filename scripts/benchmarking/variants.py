"""Variants of one small model at equal updates, each at its best learning rate (scripts/compare.py and others)."""

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from fairseq.utils import split_paths

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.data.shards import data_paths
from fairseq_linformer.errors import check
from fairseq_linformer.system.digests import digest_file
from fairseq_linformer.system.files import check_data_path, write_whole
from fairseq_linformer.system.state import read_state
from fairseq_linformer.training.jobs import job_device, side_by_side
from fairseq_linformer.training.perplexity import masked_lm_perplexity

from .pretraining import pretrain

EMBED_DIM, LAYERS = 64, 2
# Of every evaluation, whatever a variant was trained with: all are <mask>, as some are trained with nothing else.
MASKS: dict[str, Any] = {
    "mask_prob": 0.25,
    "mask_prob_end": None,
    "leave_unmasked_prob": 0.0,
    "random_token_prob": 0.0,
    "mask_whole_words": False,
}
RECIPE = [f"model.encoder_layers={LAYERS}", "lr_scheduler.warmup_updates=100", "task.mask_prob=0.25"]
RECIPE += ["dataset.num_workers=0", "dataset.disable_validation=true"]
LEARNING_RATE = 0.005
BATCHES = 400  # of valid
CHECKPOINT = "checkpoint_last.pt"
PERPLEXITY_FILE = "perplexity.json"  # in a run's folder, so that it is measured once


class _Measured(TypedDict):
    checkpoint: str  # its digest
    perplexity: float


@dataclass(frozen=True)
class Tuned:
    """A variant at the learning rate that was best for it.

    Attributes:
        tried: perplexity by learning rate, with the first seed.
        learning_rate: the one of the lowest.
        perplexities: with it, by seed.
    """

    name: str
    tried: Mapping[float, float]
    learning_rate: float
    perplexities: Mapping[int, float]


@dataclass(frozen=True)
class Comparison:
    """Variants of the model of configs/pretrain/tiny_512, with two layers of d=64.

    Args:
        data: a prepared corpus, in shards or not.
        out: folder of the runs, ``NAME/lrRATE/seedN``; complete ones are not repeated.
        variants: by name, Hydra's overrides.
        learning_rates: tried with the first seed, for each variant; the other seeds have the best.
        seeds: one or more.
        updates: of every run.
        jobs: runs at a time.

    Raises:
        UserError: a path or an override is not allowed.
    """

    data: Path
    out: Path
    variants: Mapping[str, Sequence[str]]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    updates: int
    jobs: int

    def __post_init__(self) -> None:
        for override in itertools.chain(*self.variants.values()):
            name, _, value = override.partition("=")
            check(name, value, name != "optimization.lr", "left out: --learning-rates says what is tried")
        check_data_path(self.data.absolute())

    def run(self) -> list[Tuned]:
        """Trains and evaluates what is not complete.

        Raises:
            UserError: an override is not allowed, or a folder holds another run.
            OSError: the data does not exist, or a training failed.
        """
        first, *others = self.seeds
        tried = self._perplexities([(name, rate, first) for name in self.variants for rate in self.learning_rates])
        best = {name: min(self.learning_rates, key=lambda rate: tried[name, rate, first]) for name in self.variants}
        known = tried | self._perplexities([(name, rate, seed) for name, rate in best.items() for seed in others])
        return [
            Tuned(
                name,
                {rate: tried[name, rate, first] for rate in self.learning_rates},
                best[name],
                {seed: known[name, best[name], seed] for seed in self.seeds},
            )
            for name in self.variants
        ]

    def training(self, name: str, rate: float, seed: int) -> Callable[[], list[dict[str, Any]]]:
        """What trains a variant, unless its run is complete, and returns what fairseq logged."""
        overrides = self.overrides(name, rate, seed)
        return partial(
            pretrain, self.data.absolute(), self.folder(name, rate, seed), self.updates, EMBED_DIM, overrides
        )

    def overrides(self, name: str, rate: float, seed: int) -> list[str]:
        """What a run changes in the configuration, sizes aside."""
        return [f"common.seed={seed}", *RECIPE, f"optimization.lr=[{rate}]", *self.variants[name]]

    def folder(self, name: str, rate: float, seed: int) -> Path:
        """Of a run, as an absolute path."""
        return self.out.absolute() / name / f"lr{rate:g}" / f"seed{seed}"

    @property
    def corpus(self) -> Path:
        """What is read beside the trainings, as ``corpus_folder`` says."""
        return corpus_folder(self.data)

    def measure(self, run: Path) -> float:
        """The perplexity of the complete run in a folder."""
        return perplexity(self.corpus, run)

    def _perplexities(self, runs: Sequence[tuple[str, float, int]]) -> dict[tuple[str, float, int], float]:
        for result in side_by_side([self.training(*run) for run in runs], self.jobs):
            if isinstance(result, Exception):
                raise result
        return {run: self.measure(self.folder(*run)) for run in runs}


def corpus_folder(data: Path) -> Path:
    """A corpus's folder with its dictionary and valid, as an absolute path: of shards the first.

    Raises:
        UserError: some shards are not prepared yet.
    """
    return Path(split_paths(data_paths(str(data.absolute())))[0])


def perplexity(data: Path, run: Path) -> float:
    """Of a run's last checkpoint, at the same masked tokens of valid for every run on the same data."""
    file, digest = run / PERPLEXITY_FILE, digest_file(run / CHECKPOINT)
    if file.is_file() and (measured := read_state(file, _Measured))["checkpoint"] == digest:
        return measured["perplexity"]
    roberta = LinformerRobertaModel.from_pretrained(str(run), CHECKPOINT, str(data), seed=1, **MASKS)
    value = masked_lm_perplexity(roberta.model.to(job_device()), roberta.task, batches=BATCHES)
    write_whole(file, json.dumps(_Measured(checkpoint=digest, perplexity=value)))
    return value


def as_table(variants: Sequence[Tuned], reference: Tuned, updates: int) -> str:
    """Perplexities by variant and seed in Markdown, and how far each is behind one of them; then what was tried."""
    seeds = list(reference.perplexities)
    title = f"perplexity after {updates} updates, seeds {', '.join(map(str, seeds))}"
    lines = [f"| variant | lr | {title} | mean | behind {reference.name} |", "|---" * 5 + "|"]
    for variant in variants:
        values = [variant.perplexities[seed] for seed in seeds]
        each = ", ".join(f"{value:.2f}" for value in values)
        behind = [100 * (variant.perplexities[seed] / reference.perplexities[seed] - 1) for seed in seeds]
        last = "" if variant is reference else f"{with_deviation(behind, '+.1f')} %"
        lines.append(
            f"| {variant.name} | {variant.learning_rate:g} | {each} | {with_deviation(values, '.2f')} | {last} |"
        )
    rates = list(reference.tried)
    if len(rates) > 1:
        columns = " | ".join(f"lr {rate:g}" for rate in rates)
        lines += ["", f"| perplexity with seed {seeds[0]} | {columns} |", "|---" * (1 + len(rates)) + "|"]
        for variant in variants:
            lines.append(f"| {variant.name} | {' | '.join(f'{variant.tried[rate]:.2f}' for rate in rates)} |")
    return "\n".join(lines)


def with_deviation(values: Sequence[float], form: str) -> str:
    """Mean and, of several values, their sample standard deviation."""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else mean
