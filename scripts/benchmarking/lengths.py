"""The same model pretrained on blocks of several lengths n, at equal tokens (scripts/compare_lengths.py)."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.optim import build_optimizer
from fairseq.utils import move_to_cuda
from tqdm import tqdm

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.errors import check
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.system.digests import digest_file
from fairseq_linformer.system.files import check_data_path, write_whole
from fairseq_linformer.training.jobs import job_device

from .lengths_report import Pretrained, draw_lengths, draw_positions, lengths_tables
from .masked_text import BINS, Losses, MaskedText, read_split
from .measuring import Machine
from .presets import BEST, preset_overrides
from .pretraining import planned
from .runner import code_digest
from .trials import once, timed_once
from .variants import CHECKPOINT, EMBED_DIM, Comparison, Tuned, corpus_folder

LENGTHS = [512, 1024, 2048, 4096]
# What is compared unless the user says otherwise.
VARIANTS: dict[str, list[str]] = {
    "softmax": ["model.attention=softmax"],
    "softmax-residual": ["model.attention=softmax", "model.value_residual=true"],
    "control": ["model.projection=mean-pool", "model.projected_length=1"],
    "linformer": ["model.projected_length=128"],
    BEST: [*preset_overrides(BEST), "model.projected_length=128"],
}
OWN = "model.max_positions"  # what is set here, and by no variant
POINTS = 4  # numbers of updates, equally far apart, at which perplexity is measured


@dataclass(frozen=True)
class AtLength(Comparison):
    """Models of one n, compared by their losses at the same masked tokens as those of every other n.

    Args:
        length: n.
        text: what they are measured on.
    """

    length: int
    text: MaskedText

    def check(self) -> None:
        """Composes what the first run of each variant is made of, and its model's configuration.

        Raises:
            UserError: an override is unknown or cannot work, or a folder holds another run.
            FileNotFoundError: the data does not exist.
        """
        for name in self.variants:
            run = (name, self.learning_rates[0], self.seeds[0])
            folder, overrides = self.folder(*run), self.overrides(*run)
            training = planned(self.data.absolute(), folder, self.updates, EMBED_DIM, overrides)
            options = training.provenance.configuration.items()
            model = {option.removeprefix("model."): x for option, x in options if option.startswith("model.")}
            resolve_config(Namespace(**model), self.length)
            training.is_complete()

    def measure(self, run: Path) -> float:
        return self.losses(run, CHECKPOINT, self.length).perplexity

    def losses(self, run: Path, checkpoint: str, rows: int) -> Losses:
        """Of a checkpoint of a run where it is given rows of that many tokens; measured once."""

        def result() -> dict[str, float]:
            roberta = LinformerRobertaModel.from_pretrained(str(run), checkpoint, str(self.corpus))
            return self.text.losses(roberta.to(job_device()), rows).as_figures()

        made_of = {"checkpoint": digest_file(run / checkpoint), "text": self.text.digest, "rows": rows}
        return Losses.of_figures(once(run / "losses", f"rows{rows}", made_of, result))

    def curve(self, run: Path) -> dict[int, float]:
        """Perplexity by the number of updates, of each checkpoint that the run kept."""
        kept = {int(file.stem.rpartition("_")[2]): file.name for file in run.glob("checkpoint_*_*.pt")}
        kept[self.updates] = CHECKPOINT
        return {updates: self.losses(run, name, self.length).perplexity for updates, name in sorted(kept.items())}

    def update(self, variant: Tuned) -> Callable[[], None]:
        """What does one update of a variant's model as its training did, on rows of valid.

        Each call takes a step further from the end of the training; no checkpoint changes.
        """
        run = self.folder(variant.name, variant.learning_rate, self.seeds[0])
        roberta = LinformerRobertaModel.from_pretrained(str(run), CHECKPOINT, str(self.corpus))
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


@dataclass(frozen=True)
class LengthComparison:
    """Variants of the model of ``Comparison``, trained with several n on the same number of tokens per update.

    Args:
        data: a prepared corpus.
        out: folder of the results, and of the runs, ``nN/NAME/lrRATE/seedN``; complete ones are not repeated.
        lengths: n, multiples of ``BINS`` that divide the longest, which is the number of tokens of an update.
        variants: by name, overrides of the model.
        learning_rates, seeds, updates, jobs: as in ``Comparison``.
        rounds: times that an update of each variant is measured with each n, in turns.

    Raises:
        UserError: a length, a path or an override is not allowed.
    """

    data: Path
    out: Path
    lengths: Sequence[int]
    variants: Mapping[str, Sequence[str]]
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    updates: int
    jobs: int
    rounds: int

    def __post_init__(self) -> None:
        check_data_path(self.data.absolute())
        allowed = f"a multiple of {BINS} that divides the longest of --lengths, {self.tokens}"
        for n in self.lengths:
            check("--lengths", n, n % BINS == 0 and self.tokens % n == 0, allowed)
        for overrides in self.variants.values():
            for override in overrides:
                name, mark, value = override.partition("=")
                check(name, value, bool(mark) and name.startswith("model."), "model.OPTION=VALUE")
                check(name, value, name != OWN, "left out: --lengths says what is trained")

    @property
    def tokens(self) -> int:
        """Of an update."""
        return max(self.lengths)

    @cached_property
    def at_lengths(self) -> dict[int, AtLength]:
        """The comparisons by n, shortest first, checked before any of them trains.

        Raises:
            UserError: as ``AtLength.check``, or the corpus is shorter than the longest block.
            OSError: the corpus does not exist.
        """
        corpus = corpus_folder(self.data)
        read_split(corpus, "train", self.tokens)
        text = MaskedText.of_stream(read_split(corpus, "valid", self.tokens))
        shared = (self.learning_rates, self.seeds, self.updates, self.jobs)
        kept = [f"checkpoint.save_interval_updates={max(1, self.updates // POINTS)}"]
        kept.append("checkpoint.keep_interval_updates=-1")
        comparisons = {}
        for n in sorted(self.lengths):
            sizes = [f"{OWN}={n}", f"task.tokens_per_sample={n}", f"dataset.batch_size={self.tokens // n}", *kept]
            variants = {name: [*sizes, *own] for name, own in self.variants.items()}
            comparisons[n] = AtLength(self.data, self.out / f"n{n}", variants, *shared, length=n, text=text)
        for comparison in comparisons.values():
            comparison.check()
        return comparisons

    def run(self) -> list[Pretrained]:
        """Trains and measures what is not complete, shortest n first; the variants of an n stand together."""
        tuned = {n: comparison.run() for n, comparison in self.at_lengths.items()}
        costs = self._costs(tuned)
        bar = tqdm(desc="perplexity", total=len(tuned) * len(self.variants), unit="model", disable=None)
        pretrained = []
        for n, variants in tuned.items():
            for variant in variants:
                pretrained.append(self._measured(n, variant, costs[_label(n, variant.name)]))
                bar.update()
        bar.close()
        return pretrained

    def _measured(self, n: int, variant: Tuned, cost: Mapping[str, float]) -> Pretrained:
        """A variant with its losses in rows of every length up to n, and its perplexities on the way."""
        here = self.at_lengths[n]
        runs = {seed: here.folder(variant.name, variant.learning_rate, seed) for seed in self.seeds}
        contexts = [rows for rows in self.at_lengths if rows <= n]
        losses = {rows: {s: here.losses(run, CHECKPOINT, rows) for s, run in runs.items()} for rows in contexts}
        curves = {seed: here.curve(run) for seed, run in runs.items()}
        return Pretrained(n, variant, losses, curves, cost, self.updates)

    def _costs(self, tuned: Mapping[int, Sequence[Tuned]]) -> dict[str, dict[str, float]]:
        """Seconds of an update by variant and n, unless they were measured on this machine."""
        updates = {_label(n, own.name): (n, own) for n, variants in tuned.items() for own in variants}
        about = {"code": code_digest(), "tokens": self.tokens, "lengths": sorted(self.lengths)}
        about |= {"variants": {name: list(overrides) for name, overrides in self.variants.items()}}

        def steps() -> dict[str, Callable[[], None]]:
            return {label: self.at_lengths[n].update(variant) for label, (n, variant) in updates.items()}

        return timed_once(self.out, about, updates, steps, self.rounds, job_device())


def _label(n: int, name: str) -> str:
    return f"n={n} {name}"


def compare_lengths(comparison: LengthComparison) -> str:
    """Runs a comparison, writes its tables and pictures into its folder, and returns the tables."""
    pretrained = comparison.run()
    tables = lengths_tables(pretrained)
    content: dict[str, Any] = {"updates": comparison.updates, "tokens_per_update": comparison.tokens}
    content["machine"] = Machine(job_device(), "float32").describe()
    content["pretrained"] = [own.as_json() for own in pretrained]
    write_whole(comparison.out / "results.json", json.dumps(content, indent=1) + "\n")
    write_whole(comparison.out / "results.md", tables + "\n")
    draw_lengths(pretrained, comparison.out / "lengths.png")
    draw_positions(pretrained, comparison.out / "positions.png")
    return tables
