#!/usr/bin/env python3
"""Pretrains variants of one small model at equal updates, over seeds, and prints their perplexities as a table.

    python scripts/compare.py --data data-bin/books --out runs/compare \\
        --variant linformer model.attention=linformer --variant softmax model.attention=softmax

A variant is a name and what it changes of configs/pretrain/tiny_512.yaml, here with two layers of d=64, 2,048 tokens an
update and a quarter of them masked. What --all changes, it changes for every variant. The perplexity is that of the
same masked tokens of valid for every variant and seed, at most 400 batches of 8 rows. Complete runs are not run again.
"""

import argparse
import logging
import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.evaluation import masked_lm_perplexity
from fairseq_linformer.training.launch import override, side_by_side, train

MODEL = ["model.encoder_layers=2", "model.encoder_embed_dim=64", "model.encoder_ffn_embed_dim=256"]
RECIPE = ["dataset.batch_size=4", "optimization.lr=[0.005]", "lr_scheduler.warmup_updates=100", "task.mask_prob=0.25"]
RECIPE += ["dataset.num_workers=0", "dataset.disable_validation=true"]
BATCHES = 400


def pretrain(data: Path, out: Path, overrides: list[str], seed: int, updates: int) -> None:
    settings = [override("task.data", data), f"common.seed={seed}", *MODEL, *RECIPE, *overrides]
    train("pretrain/tiny_512", settings, out, updates)


def perplexity(data: Path, run: Path) -> float:
    roberta = LinformerRobertaModel.from_pretrained(str(run), "checkpoint_last.pt", str(data), seed=1)
    return masked_lm_perplexity(roberta.model, roberta.task, batches=BATCHES)


def compare(data: Path, out: Path, variants: dict[str, list[str]], seeds: list[int], updates: int, jobs: int) -> None:
    data, out = data.absolute(), out.absolute()
    check_data_path(data)
    runs = {(name, seed): out / name / f"seed{seed}" for seed in seeds for name in variants}
    trainings = [partial(pretrain, data, run, variants[name], seed, updates) for (name, seed), run in runs.items()]
    for result in side_by_side(trainings, jobs):
        if isinstance(result, Exception):
            raise result
    print(
        f"\n| variant | perplexity after {updates} updates, seeds {', '.join(map(str, seeds))} | mean |\n|---|---|---|"
    )
    for name in variants:
        values = [perplexity(data, runs[name, seed]) for seed in seeds]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"| {name} | {', '.join(f'{value:.2f}' for value in values)} | {statistics.mean(values):.2f}{spread} |")


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be a number from 1 on")
    return int(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    add("--variant", metavar="WORD", nargs="+", action="append", required=True, help="a name, then Hydra's overrides")
    add("--all", metavar="OVERRIDE", nargs="+", default=[], help="Hydra's overrides for every variant")
    add("--seeds", metavar="N", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    add("--updates", metavar="N", type=positive, default=1500, help="default: 1500")
    add("--jobs", metavar="N", type=positive, default=2, help="runs side by side (default 2)")
    arguments = vars(parser.parse_args())
    common = arguments.pop("all")
    names = [name for name, *_ in arguments["variant"]]
    for option, values in (("--variant", names), ("--seeds", arguments["seeds"])):
        if len(set(values)) < len(values):
            parser.error(f"{option}: each must be there once, not {', '.join(map(str, values))}")
    variants = {name: [*common, *overrides] for name, *overrides in arguments.pop("variant")}
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets it to DEBUG, for every library
    with one_line_errors():
        compare(variants=variants, **arguments)
