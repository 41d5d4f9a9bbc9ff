#!/usr/bin/env python3
"""Compare variants of one pretraining at equal updates: perplexity, also by copy distance, and query-key products.

examples:
  python scripts/compare.py --data data-bin/python --out runs/mechanisms
  python scripts/compare.py --data data-bin/python --out runs/two --seeds 1 2 3 --learning-rates 0.005 \\
      --all model.value_residual=true --variant softmax model.attention=softmax --variant distant +preset=distant

A variant is a name and Hydra overrides. A YAML of scripts/comparisons has the configuration, the overrides of all
variants and the variants; --variant replaces the latter. Each variant is trained with every learning rate and the first
seed, then with the best rate and the other seeds. Perplexity is measured at the same masked tokens of valid for all,
and compared with the first variant seed by seed. The time of an update is measured for all variants in turns.

OUT gets the runs (NAME/lrRATE/seedN), results.json after every run, and in the end results.md, perplexity.png and
distance.png. The same command again continues an interrupted comparison.
"""

import argparse
import itertools
import json
import math
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from benchmark import interleave, quartiles
from copy_distance import LIMITS, ClassLosses, MaskedText, token_stream
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.optim import build_optimizer
from fairseq.utils import move_to_cuda
from query_key_products import share_of_products
from torch import Tensor

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.analysis import attentions_of, record_inputs
from fairseq_linformer.checkpoint_files import LAST
from fairseq_linformer.cli.program import program
from fairseq_linformer.digests import digest_file
from fairseq_linformer.errors import UserError, check
from fairseq_linformer.files import check_data_path, write_whole
from fairseq_linformer.plotting import legend, picture, scale_lengths, scale_log, style_of
from fairseq_linformer.training.launch import Training, job_device, override, side_by_side
from fairseq_linformer.training.updates import DIVERGED

COMPARISONS = Path(__file__).with_name("comparisons")
CURVE_POINTS = 20
SELECTION_BATCHES = 4  # first batches of valid; the selection of keys is measured on the first sequence of each
SELECTION_QUERIES = 512  # queries of a sequence, evenly spaced, on which the selection is measured
LAST_CLASS = f"beyond {LIMITS[-1]}"
SET_BY_FLAGS = ("task.data", "checkpoint.save_dir", "common.seed", "optimization.lr", "optimization.max_update")


@dataclass(frozen=True)
class Trial:
    """One run of a variant."""

    variant: str
    learning_rate: float
    seed: int

    @property
    def folder(self) -> str:
        """Folder of the run within OUT."""
        return f"{self.variant}/lr{self.learning_rate:g}/seed{self.seed}"


@dataclass(frozen=True)
class Result:
    """Measurements of a run; if the training diverged, perplexity is infinite and there is nothing else."""

    perplexity: float  # of all masked tokens
    losses: ClassLosses | None = None  # by sequence and copy distance
    curve: Mapping[int, float] = field(default_factory=dict)  # training perplexity by update
    share: float | None = None  # share of full attention's query-key products
    selection: list[list[float]] | None = None  # ``selection_quality`` of each layer


@dataclass(frozen=True)
class Pretraining:
    """Training and measurement of single runs.

    Attributes:
        data: prepared corpus.
        out: folder of the runs.
        config: a YAML of configs/, ``pretrain/tiny_512``.
        variants: Hydra overrides by name.
        updates: updates of every run.
    """

    data: Path
    out: Path
    config: str
    variants: Mapping[str, Sequence[str]]
    updates: int

    def measure(self, trial: Trial) -> Result:
        """Train a model unless its run is complete, and measure it.

        Raises:
            OSError: the training failed.
        """
        folder = self.out.absolute() / trial.folder
        settings = [override("task.data", self.data.absolute()), f"common.seed={trial.seed}"]
        settings += [f"optimization.lr=[{trial.learning_rate}]"]
        try:
            overrides = [*self.variants[trial.variant], *settings]
            log = Training(self.config, overrides, folder, self.updates).run()
        except OSError as error:
            if DIVERGED not in str(error):
                raise
            return Result(math.inf)
        file = folder / "copy_distance.json"
        origin = {"checkpoint": digest_file(folder / LAST), "text": self.text.digest}
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if content.get("origin") != origin:
            content = {"origin": origin, **self.evaluate(folder)}
            write_whole(file, json.dumps(content) + "\n")
        curve = training_curve(log, self.updates)
        losses = ClassLosses.of_json(content["losses"])
        return Result(content["perplexity"], losses, curve, content["share"], content.get("selection"))

    def evaluate(self, folder: Path) -> dict[str, Any]:
        """Measure a run's last checkpoint: perplexity, losses by copy distance, query-key products and selection."""
        roberta = self.load(folder).to(job_device())
        length = roberta.cfg.task.tokens_per_sample
        losses = self.text.token_losses(roberta, length)
        classes = self.text.class_losses(losses, length).as_json()
        results = {"perplexity": float(losses.double().mean().exp()), "losses": classes}
        results["share"] = share_of_products(roberta.model.args, length)
        return {**results, "selection": self.selection(roberta, length)}

    def selection(self, roberta: Any, length: int) -> list[list[float]] | None:
        """Return ``selection_quality`` of each layer, the mean over sequences; None if a layer does not select keys."""
        encoder = roberta.model.encoder.sentence_encoder
        attentions = attentions_of(encoder)
        if not all(hasattr(attention, "selected_keys") for attention in attentions):
            return None
        rows = []
        for indices in itertools.islice(self.text.sequences(length), SELECTION_BATCHES):
            ids = self.text.masked_inputs(roberta.task, indices)[0]
            layers = zip(attentions, record_inputs(encoder, ids), strict=True)
            rows.append([selection_quality(attention, inputs[0]) for attention, inputs in layers])
        return np.mean(rows, axis=0).tolist()

    def load(self, folder: Path) -> Any:
        """Return the last checkpoint of a run as fairseq's hub interface."""
        return LinformerRobertaModel.from_pretrained(str(folder), LAST, str(self.data.absolute()))

    @cached_property
    def text(self) -> MaskedText:
        """Masked text that all models predict."""
        return MaskedText.of_stream(token_stream(self.data, "valid"))

    def update(self, trial: Trial) -> Callable[[], None]:
        """Return a function that makes an update as in training, always on the same batch of valid."""
        roberta = self.load(self.out / trial.folder)
        model, task, cfg = roberta.model.to(job_device()), roberta.task, roberta.cfg
        task.load_dataset("valid")
        dataset = task.dataset("valid")
        batch = dataset.collater([dataset[index] for index in range(min(len(dataset), cfg.dataset.batch_size))])
        batch = move_to_cuda(batch) if job_device() != "cpu" else batch
        criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
        optimizer = build_optimizer(cfg.optimizer, list(model.parameters()))

        def step() -> None:
            task.train_step(batch, model, criterion, optimizer, 0)
            optimizer.clip_grad_norm(cfg.optimization.clip_norm)
            optimizer.step()
            optimizer.zero_grad()

        return step


@torch.no_grad()
def selection_quality(attention: Any, x: Tensor) -> tuple[float, float]:
    """Compare the selected keys of each query with its best ones: as many keys with the highest scores.

    Local keys are left out.

    Args:
        attention: a layer with ``selected_keys``.
        x: inputs of the layer, (B, n, d).

    Returns:
        The share of the best keys that are selected, and the attention weight of the selected keys divided by that of
        the best keys. Weights are those of full attention.
    """
    queries = attention.split_heads(attention.q_proj(x))  # (B, h, n, d_h)
    lengths = torch.full((x.size(0),), x.size(1), device=x.device)
    sample = slice(None, None, math.ceil(x.size(1) / SELECTION_QUERIES))
    scores = attention.scores(queries, lengths)[:, :, sample]
    distant = ~attention.local_keys(x.size(1), x.device)[sample]
    selected = attention.selected_keys(queries, lengths)[:, :, sample] & distant
    ranks = scores.masked_fill(~distant, -math.inf).argsort(-1, descending=True).argsort(-1)
    best = (ranks < selected.sum(-1, keepdim=True)) & distant
    weights = scores.softmax(-1)
    overlap = (selected & best).sum() / best.sum()
    return float(overlap), float((weights * selected).sum() / (weights * best).sum())


def training_curve(log: Sequence[Mapping[str, Any]], updates: int) -> dict[int, float]:
    """Return the training perplexity in each of ``CURVE_POINTS`` parts of a run, by the last update of the part."""
    losses: dict[int, list[float]] = {}
    for row in log:
        if "loss" in row:
            part = math.ceil(CURVE_POINTS * row["num_updates"] / updates)
            losses.setdefault(part * updates // CURVE_POINTS, []).append(row["loss"])
    return {update: 2 ** min(1000.0, statistics.mean(bits)) for update, bits in losses.items()}


class Comparison:
    """All trials of the variants.

    Args:
        pretraining: trains and measures single trials.
        learning_rates: rates to try for each variant, with the first seed.
        seeds: seeds of the trials; those after the first are trained with the best rate only.
    """

    def __init__(self, pretraining: Pretraining, learning_rates: Sequence[float], seeds: Sequence[int]):
        self.pretraining, self.learning_rates, self.seeds = pretraining, learning_rates, seeds
        self.results: dict[Trial, Result] = {}
        self.lock = threading.Lock()  # trials run side by side

    def run(self, jobs: int, rounds: int) -> list[dict[str, Any]]:
        """Train and measure the incomplete trials.

        Returns:
            The rows of results.json.

        Raises:
            UserError: a variant diverges with its best learning rate.
            OSError: a training failed.
        """
        names, rates = self.pretraining.variants, self.learning_rates
        seeds = self.seeds if len(rates) == 1 else self.seeds[:1]
        self.measure([Trial(name, rate, seed) for name in names for rate in rates for seed in seeds], jobs)
        best = {name: self.best_trials(name) for name in names}
        self.measure([trial for trials in best.values() for trial in trials if trial not in self.results], jobs)
        for trial in (trial for trials in best.values() for trial in trials):
            if self.results[trial].losses is None:
                raise UserError(f"{trial.folder} diverged: give lower rates by --learning-rates")
        updates = {name: self.pretraining.update(trials[0]) for name, trials in best.items()}
        seconds, _ = interleave(updates, rounds, warm_ups=2, device=job_device())
        return self.write({name: quartiles(values) for name, values in seconds.items()})

    def measure(self, trials: Sequence[Trial], jobs: int) -> None:
        """Run trials, several at a time; results.json is written after each."""

        def measure_one(trial: Trial) -> None:
            result = self.pretraining.measure(trial)
            with self.lock:
                self.results[trial] = result
                self.write({})

        for error in side_by_side([partial(measure_one, trial) for trial in trials], jobs):
            if error is not None:
                raise error

    def rate_perplexities(self, variant: str) -> dict[float, float]:
        """Return the perplexity with each learning rate that has been tried, with the first seed."""
        trials = (Trial(variant, rate, self.seeds[0]) for rate in self.learning_rates)
        return {trial.learning_rate: self.results[trial].perplexity for trial in trials if trial in self.results}

    def best_trials(self, variant: str) -> list[Trial]:
        """Return the trials with the best learning rate, one for each seed; none if no rate has been tried."""
        perplexities = self.rate_perplexities(variant)
        if not perplexities:
            return []
        best_rate = min(perplexities, key=perplexities.__getitem__)
        return [Trial(variant, best_rate, seed) for seed in self.seeds]

    def write(self, times: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
        """Write results.json, a row for each variant with its measurements so far, and return the rows.

        Args:
            times: seconds of an update by variant.
        """
        rows: list[dict[str, Any]] = []
        reference: ClassLosses | None = None
        for name, overrides in self.pretraining.variants.items():
            trials = [trial for trial in self.best_trials(name) if trial in self.results]
            results = {trial.seed: self.results[trial] for trial in trials}
            losses = {seed: result.losses for seed, result in results.items() if result.losses is not None}
            if not losses:
                continue
            row: dict[str, Any] = {"variant": name, "overrides": [*overrides], "updates": self.pretraining.updates}
            row |= {"learning_rate": trials[0].learning_rate, "share": results[next(iter(losses))].share}
            row["selection"] = results[next(iter(losses))].selection
            row["tried"] = {rate: finite(perplexity) for rate, perplexity in self.rate_perplexities(name).items()}
            row["perplexities"] = {seed: results[seed].perplexity for seed in losses}
            row["curves"] = {seed: results[seed].curve for seed in losses}
            sum_of_seeds = reduce(add, losses.values())
            rows.append({**row, **distance_columns(sum_of_seeds, reference), "update": times.get(name)})
            reference = reference or sum_of_seeds
        content = json.dumps({"data": str(self.pretraining.data), "variants": rows}, indent=1)
        write_whole(self.pretraining.out / "results.json", f"{content}\n")
        return rows


def distance_columns(losses: ClassLosses, reference: ClassLosses | None) -> dict[str, Any]:
    """Return the perplexity of each class of copy distances, and beyond the last limit also its ratio to a reference.

    Args:
        losses: sum of the losses of all seeds.
        reference: the same of the first variant; None for the first variant.
    """
    columns: dict[str, Any] = {"classes": describe_classes(losses)}
    if LIMITS[-1] in losses.limits[:-1]:
        merged = losses.merge_beyond(LIMITS[-1])
        columns["beyond"] = {**describe_classes(merged)[-1], "name": LAST_CLASS}
        if reference is not None and reference.limits == losses.limits:
            merged_reference = reference.merge_beyond(LIMITS[-1])
            ratio = merged.perplexities()[-1] / merged_reference.perplexities()[-1]
            figures = [ratio, *merged.intervals(merged_reference)[:, -1]]
            columns["ratio"] = dict(zip(("perplexity", "low", "high"), map(finite, figures), strict=True))
    return columns


def describe_classes(losses: ClassLosses) -> list[dict[str, Any]]:
    """Return name, share of the tokens, perplexity and its interval of each class; a figure without tokens is None."""
    shares = losses.counts.sum(0) / max(1, losses.counts.sum())
    columns = zip(losses.names(), shares, losses.perplexities(), *losses.intervals(), strict=True)
    names = ("share", "perplexity", "low", "high")
    return [{"name": name, **dict(zip(names, map(finite, figures), strict=True))} for name, *figures in columns]


def finite(number: float) -> float | None:
    """Return a number, or None if it is infinite or undefined, which JSON cannot express."""
    return float(number) if math.isfinite(number) else None


# --- report ---


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a line for each variant."""
    first = rows[0]
    classes = [[*row["classes"][: len(LIMITS) + 1], *([row["beyond"]] if "beyond" in row else [])] for row in rows]
    seeds = ", ".join(map(str, first["perplexities"]))
    head = ["variant", "lr", "query-key products", f"perplexity (seed {seeds})", f"behind `{first['variant']}`"]
    head += [f"{figure['name']} ({100 * (figure['share'] or 0):.0f} %)" for figure in classes[0]]
    head += [f"{LAST_CLASS}, ratio", "ms per update"]
    has_selection = any(row.get("selection") for row in rows)
    head += ["selected keys by layer: overlap with the best, share of their weight"] * has_selection
    lines = [head]
    for row, columns in zip(rows, classes, strict=True):
        pairs = [(x, first["perplexities"].get(seed)) for seed, x in row["perplexities"].items()]
        increases = [100 * (x / reference - 1) for x, reference in pairs if reference]
        line = [f"`{row['variant']}`", f"{row['learning_rate']:g}"]
        line += ["unknown" if row["share"] is None else f"{100 * row['share']:.3g} %"]
        line += [with_deviation([*row["perplexities"].values()], ".2f")]
        line += [with_deviation(increases, "+.1f") + " %" if increases and row is not first else ""]
        line += [with_interval(figure) for figure in columns]
        times = row["update"] and {name: 1000 * x for name, x in row["update"].items()}
        line += [with_interval(row.get("ratio")), with_interval(times, "seconds")]
        if has_selection:
            line += ["; ".join(f"{overlap:.2f}, {weight:.2f}" for overlap, weight in row["selection"] or ())]
        lines.append(line)
    header, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([header, "|---" * len(head) + "|", *body])


def with_deviation(values: Sequence[float], form: str) -> str:
    """Return the mean, and the standard deviation of several values."""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else mean


def with_interval(figures: Mapping[str, float | None] | None, name: str = "perplexity") -> str:
    """Return a figure with its bounds."""
    numbers = [figures[key] for key in (name, "low", "high")] if figures else [None]
    if None in numbers:
        return ""
    middle, low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in numbers if x is not None)
    return f"{middle} ({low} to {high})"


def plot_curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the perplexity in training against updates and minutes.

    A line is the mean over seeds, its band goes from the lowest to the highest of them. Minutes are updates times the
    median time of an update.
    """
    with picture(path, 1, 2, 9, 4.2, sharey=True) as (figure, panels):
        for number, row in enumerate(rows):
            curves = [{int(update): x for update, x in curve.items()} for curve in row["curves"].values()]
            updates = [update for update in curves[0] if all(update in curve for curve in curves)]
            values = [[curve[update] for curve in curves] for update in updates]
            minutes = row["update"]["seconds"] / 60 if row["update"] else math.nan
            style = {**style_of(number), "marker": None, "label": row["variant"]}
            for panel, scale in zip(panels[0], (1.0, minutes), strict=True):
                x = [scale * update for update in updates]
                panel.plot(x, [statistics.mean(perplexities) for perplexities in values], **style)
                panel.fill_between(x, [*map(min, values)], [*map(max, values)], alpha=0.2)
        for panel, label in zip(panels[0], ("updates", "minutes"), strict=True):
            panel.set(xlabel=label, ylabel="masked-LM perplexity in training")
        if any(curve for row in rows for curve in row["curves"].values()):  # otherwise no loss was logged
            scale_log(panels[0, 0].yaxis)
        legend(figure, [*panels.flat])


def plot_distances(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw perplexity against copy distance; horizontal lines are tokens without a copy."""
    with picture(path, 1, 1, 6.5, 4.5) as (figure, [[panel]]):
        limits: set[int] = set()
        for number, row in enumerate(rows):
            no_copy, *classes = row["classes"]
            points = {int(group["name"].split()[-1]): group["perplexity"] for group in classes if group["perplexity"]}
            panel.plot([*points], [*points.values()], **style_of(number), label=row["variant"])
            if no_copy["perplexity"]:
                panel.axhline(no_copy["perplexity"], **{**style_of(number), "marker": None, "linewidth": 0.8})
            limits |= points.keys()
        panel.set(title="horizontal lines: no copy", xlabel="largest copy distance", ylabel="perplexity")
        if limits:  # a short text has none: each of its tokens is frequent
            scale_lengths(panel.xaxis, sorted(limits))
            scale_log(panel.yaxis)
        legend(figure, [panel])


# --- command line ---


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    files = ", ".join(sorted(path.stem for path in COMPARISONS.glob("*.yaml")))
    add("--comparison", metavar="NAME", default="mechanisms", help=f"{files}, or a YAML file (default: mechanisms)")
    add("--data", metavar="DIR", type=Path, required=True, help="prepared corpus")
    add("--out", metavar="DIR", type=Path, required=True, help="folder of the runs and results")
    add("--only", metavar="NAME", nargs="+", help="variants to compare (default: all of the comparison)")
    add("--variant", metavar="WORD", nargs="+", action="append", default=[], help="a name and Hydra overrides")
    add("--all", metavar="OVERRIDE", nargs="+", default=[], help="Hydra overrides of all variants")
    add("--learning-rates", metavar="LR", nargs="+", type=float, help="default: those of the comparison")
    add("--seeds", metavar="N", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    add("--updates", metavar="N", type=int, help="updates of every run (default: those of the comparison)")
    add("--jobs", metavar="N", type=int, default=2, help="runs at a time (default: 2)")
    add("--rounds", metavar="N", type=int, default=7, help="times that an update is timed (default: 7)")
    return parser.parse_args(words)


def read_comparison(options: argparse.Namespace) -> Comparison:
    """Return the comparison that the options describe.

    Raises:
        UserError: an override or a variant is not allowed.
        OSError: there is no such comparison.
    """
    file = COMPARISONS / f"{options.comparison}.yaml"
    check_data_path(options.data.absolute())
    content = yaml.safe_load((file if file.is_file() else Path(options.comparison)).read_text(encoding="utf-8"))
    variants = {name: overrides for name, *overrides in options.variant}
    variants = variants or {name: words.split() for name, words in content["variants"].items()}
    for name in options.only or ():
        check("only", name, name in variants, f"one of {', '.join(variants)}")
    shared = [*content["overrides"], *options.all]
    selected = {name: [*shared, *words] for name, words in variants.items() if name in (options.only or variants)}
    for word in (word for words in selected.values() for word in words):
        if word.lstrip("+~").partition("=")[0] in SET_BY_FLAGS:
            raise UserError(f"{word} is not allowed: it is set by a flag of this program")
    updates = options.updates or content["updates"]
    pretraining = Pretraining(options.data, options.out, content["config"], selected, updates)
    return Comparison(pretraining, options.learning_rates or content["learning_rates"], options.seeds)


def main(words: Sequence[str] | None = None) -> None:
    options = parse_arguments(words)
    with program():
        comparison = read_comparison(options)
        options.out.mkdir(parents=True, exist_ok=True)
        rows = comparison.run(options.jobs, options.rounds)
        table = markdown(rows)
        write_whole(options.out / "results.md", f"{table}\n")
        plot_curves(rows, options.out / "perplexity.png")
        plot_distances(rows, options.out / "distance.png")
        print(table)


if __name__ == "__main__":
    main()
