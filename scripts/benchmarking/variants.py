"""Variants of one small model at equal updates, over seeds: their perplexities as a table (scripts/compare.py)."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.evaluation import masked_lm_perplexity
from fairseq_linformer.training.launch import side_by_side

from .pretraining import pretrain

EMBED_DIM = 64
RECIPE = ["model.encoder_layers=2", "optimization.lr=[0.005]", "lr_scheduler.warmup_updates=100"]
RECIPE += ["task.mask_prob=0.25", "dataset.num_workers=0", "dataset.disable_validation=true"]
BATCHES = 400  # of valid


def compare_variants(
    data: Path, out: Path, variants: Mapping[str, Sequence[str]], seeds: Sequence[int], updates: int, jobs: int
) -> str:
    """Pretrains every variant with every seed, unless that run is complete, and returns the table of perplexities.

    Args:
        data: a prepared corpus.
        out: folder of the runs, ``NAME/seedN``.
        variants: by name, Hydra's overrides of tiny_512.
        jobs: runs at a time.

    Raises:
        UserError: a path or an override is not allowed, or a folder holds another run.
        OSError: the data does not exist, or a training failed.
    """
    data, out = data.absolute(), out.absolute()
    check_data_path(data)
    runs = {(name, seed): out / name / f"seed{seed}" for seed in seeds for name in variants}
    trainings = [
        partial(pretrain, data, run, updates, EMBED_DIM, [f"common.seed={seed}", *RECIPE, *variants[name]])
        for (name, seed), run in runs.items()
    ]
    for result in side_by_side(trainings, jobs):
        if isinstance(result, Exception):
            raise result
    perplexities = {name: [_perplexity(data, runs[name, seed]) for seed in seeds] for name in variants}
    return as_table(perplexities, updates, seeds)


def _perplexity(data: Path, run: Path) -> float:
    roberta = LinformerRobertaModel.from_pretrained(str(run), "checkpoint_last.pt", str(data), seed=1)
    return masked_lm_perplexity(roberta.model, roberta.task, batches=BATCHES)


def as_table(perplexities: Mapping[str, Sequence[float]], updates: int, seeds: Sequence[int]) -> str:
    """Perplexities by variant and seed in Markdown, with mean and sample standard deviation."""
    title = f"perplexity after {updates} updates, seeds {', '.join(map(str, seeds))}"
    lines = [f"| variant | {title} | mean |", "|---|---|---|"]
    for name, values in perplexities.items():
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        each = ", ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {name} | {each} | {statistics.mean(values):.2f}{deviation} |")
    return "\n".join(lines)
