"""The small pretraining of the studies ``perplexity`` and ``mechanisms``.

It is configs/pretrain/tiny_512 with two layers of d=64, four rows per update and a quarter of the tokens masked.
"""

import itertools
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.optim import build_optimizer
from fairseq.utils import move_to_cuda, split_paths

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoints.files import LAST
from fairseq_linformer.data.shards import data_paths
from fairseq_linformer.finetune.overrides import SET_BY, check_override
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.system.digests import digest_file
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.active_run import DIVERGED
from fairseq_linformer.training.commands import override
from fairseq_linformer.training.jobs import job_device, side_by_side
from fairseq_linformer.training.launch import Training
from fairseq_linformer.training.provenance import digest_data

from .engine import COST, Columns, Experiment, Trial, Tuned, values_column
from .losses_by_distance import LossesByDistance
from .masked_text import COMMONEST, WINDOW, MaskedText, perplexity, read_split
from .store import Figures, Store
from .tables import with_deviation

SIZES = ["model.encoder_embed_dim=64", "model.encoder_ffn_embed_dim=256"]
RECIPE = ["model.encoder_layers=2", "lr_scheduler.warmup_updates=100", "task.mask_prob=0.25"]
RECIPE += ["dataset.num_workers=0", "dataset.disable_validation=true"]
SET_BY_STUDY = {**SET_BY, "optimization.max_update": "--updates", "optimization.max_epoch": "--updates"}
POINTS = 20  # of a curve: each is the mean of many updates, whose losses differ


@dataclass(frozen=True)
class Pretraining(Experiment):
    """Variants that fairseq pretrains, in folders ``NAME/lrRATE/seedN``; complete runs are not repeated.

    Args:
        data: a prepared corpus, in shards or not.
        updates: of every run.
        seeds: the first of them tries the learning rates.
        jobs: runs at a time.

    Raises:
        UserError: a path or an override is not allowed.
    """

    data: Path
    updates: int
    seeds: Sequence[int]
    rates: Sequence[float]
    jobs: int

    @classmethod
    def of(cls, options: Namespace, store: Store, n: int, variants: Mapping[str, Sequence[str]]) -> "Pretraining":
        """With the options of a study."""
        asked = {name: getattr(options, name) for name in ("data", "updates", "seeds", "jobs")}
        return cls(store, n, variants, rates=options.learning_rates, **asked)

    def __post_init__(self) -> None:
        for word in itertools.chain(*self.variants.values()):
            check_override(word, SET_BY_STUDY)
        check_data_path(self.data.absolute())

    def check(self) -> None:
        """Composes what the first run of each variant is made of, and its model's configuration; reads valid."""
        for name in self.variants:
            training = self.training(Trial(name, self.rates[0], self.seeds[0]))
            options = training.provenance.configuration
            model = {option.removeprefix("model."): x for option, x in options.items() if option.startswith("model.")}
            resolve_config(Namespace(**model), options["task.tokens_per_sample"])
            training.is_complete()
        read_split(self.corpus, "valid", 1)

    def training(self, trial: Trial) -> Training:
        """A run, begun or not."""
        own = [f"common.seed={trial.seed}", *RECIPE, f"optimization.lr=[{trial.rate}]", *self.variants[trial.variant]]
        words = [override("task.data", self.data.absolute()), *SIZES, "dataset.batch_size=4", *own]
        return Training("pretrain/tiny_512", tuple(words), self.run_folder(trial), self.updates)

    def run_folder(self, trial: Trial) -> Path:
        """Where a run is, as an absolute path."""
        return self.store.folder.absolute() / trial.folder

    @property
    def corpus(self) -> Path:
        """The corpus's folder with its dictionary and valid, as an absolute path: of shards the first.

        Raises:
            UserError: some shards are not prepared yet.
        """
        return Path(split_paths(data_paths(str(self.data.absolute())))[0])

    @cached_property
    def text(self) -> MaskedText:
        """The first tokens of valid, some of them masked: the same for every variant and seed."""
        return MaskedText.of_stream(read_split(self.corpus, "valid", 1))

    def measure(self, trials: Sequence[Trial]) -> dict[Trial, Figures]:
        """The perplexity on valid, and that of the training by its updates: "curve"."""
        found = side_by_side([partial(self._train_and_measure, trial) for trial in trials], self.jobs)
        for figures in found:
            if isinstance(figures, Exception):
                raise figures
        return dict(zip(trials, cast(list[Figures], found), strict=True))

    def _train_and_measure(self, trial: Trial) -> Figures:
        try:
            log = self.training(trial).run()
        except OSError as error:
            if DIVERGED not in str(error):
                raise
            return {"perplexity": math.inf, "curve": {}}
        return {"perplexity": self.losses(trial)["perplexity"], "curve": self.curve(log)}

    def curve(self, log: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """Training perplexity in each of ``POINTS`` parts of a run, by the last update of the part."""
        losses: dict[int, list[float]] = {}
        for row in log:
            if "loss" in row:
                part = math.ceil(POINTS * row["num_updates"] / self.updates)
                losses.setdefault(part * self.updates // POINTS, []).append(row["loss"])
        bits = {update: torch.tensor(own, dtype=torch.double) for update, own in losses.items()}  # as fairseq logs them
        return {update: float(own.mean().exp2()) for update, own in bits.items()}

    def score(self, figures: Figures) -> float:
        perplexity = float(figures["perplexity"])
        return perplexity if perplexity < math.inf else math.inf  # nor is NaN the best

    def losses(self, trial: Trial) -> Figures:
        """Of a run's last checkpoint, in rows as long as those of its training.

        The perplexity of all masked tokens, and what ``LossesByDistance`` has: "limits", "sums" and "counts". It is
        measured once, and belongs to the checkpoint and the text.
        """

        def compute() -> Figures:
            roberta = self.load(trial)
            n = roberta.cfg.task.tokens_per_sample
            losses = self.text.token_losses(roberta.to(job_device()), n)
            found = self.text.by_distance(losses, n)
            sums = {"limits": found.limits, "sums": found.sums.tolist(), "counts": found.counts.tolist()}
            return {"perplexity": perplexity(losses), **sums}

        about = {"text": self.text.digest, "window": WINDOW, "commonest": COMMONEST}
        about["checkpoint"] = digest_file(self.run_folder(trial) / LAST)
        return cast(Figures, self.store.once(f"{trial.folder}/losses", about, compute))

    def by_distance(self, trial: Trial) -> LossesByDistance:
        """The losses of a run by where the answer stands."""
        kept = self.losses(trial)
        cells = (np.array(kept[what]).reshape(-1, len(kept["limits"]) + 1) for what in ("sums", "counts"))
        return LossesByDistance(tuple(kept["limits"]), *cells)

    def load(self, trial: Trial) -> Any:
        """A run's last checkpoint as fairseq's hub interface, with its task."""
        return LinformerRobertaModel.from_pretrained(str(self.run_folder(trial)), LAST, str(self.corpus))

    def step(self, tuned: Tuned) -> Callable[[], None]:
        """An update as the training did, on rows of valid, each a step further from the end of the training."""
        roberta = self.load(Trial(tuned.variant, tuned.learning_rate, self.seeds[0]))
        model, task, cfg = roberta.model.to(job_device()), roberta.task, roberta.cfg
        task.load_dataset("valid")
        dataset = task.dataset("valid")
        batch = dataset.collater([dataset[row] for row in range(cfg.dataset.batch_size)])
        batch = move_to_cuda(batch) if job_device() != "cpu" else batch
        criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
        optimizer = build_optimizer(cfg.optimizer, list(model.parameters()))

        def call() -> None:
            task.train_step(batch, model, criterion, optimizer, 0)
            optimizer.clip_grad_norm(cfg.optimization.clip_norm)
            optimizer.step()
            optimizer.zero_grad()

        return call

    def origin(self, names: Sequence[str]) -> dict[str, Any]:
        return {"data": digest_data(str(self.data.absolute())), **{name: list(self.variants[name]) for name in names}}


def perplexity_columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """Perplexity of every seed, its mean, how far it is behind that of the first variant, and time."""
    first = tuned[0]

    def behind(own: Tuned) -> str:
        pairs = zip(own.each("perplexity"), first.each("perplexity"), strict=True)
        others = [100 * (own / reference - 1) for own, reference in pairs]
        return "" if own is first else f"{with_deviation(others, '+.1f')} %"

    seeds = ", ".join(map(str, options.seeds))
    title = f"perplexity after {options.updates} updates, seeds {seeds}"
    each: Columns = {title: lambda own: ", ".join(f"{value:.2f}" for value in own.each("perplexity"))}
    mean = values_column("mean", lambda own: own.each("perplexity"), ".2f")
    return {**each, **mean, f"behind {first.variant}": behind, **COST}
