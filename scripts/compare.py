#!/usr/bin/env python3
"""Pretrains variants of one small model at equal updates, over seeds, and prints their perplexities as a table.

    python scripts/compare.py --data data-bin/books --out runs/compare \\
        --variant linear model.attention=linformer --variant softmax model.attention=softmax

A variant is a name and what it changes of configs/pretrain/tiny_512.yaml, here with two layers of d=64. Blocks grow
from 16 to 64 to 512 tokens: without a convolution beside the attention such a model, whatever its attention, leaves the
unigram loss in minutes only where it begins with short blocks. Runs that are complete are not run again.
"""

import argparse
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.running import train

MODEL = ["model.encoder_layers=2", "model.encoder_embed_dim=64", "model.encoder_ffn_embed_dim=256"]
RECIPE = [
    "task.mask_prob=0.25",
    "dataset.num_workers=0",
    "dataset.max_valid_steps=40",
    "lr_scheduler.warmup_updates=50",
]
PHASES = (  # tokens a row, rows, learning rate, share of the updates
    (16, 128, 0.005, 0.64),
    (64, 32, 0.002, 0.18),
    (512, 4, 0.002, 0.18),
)


def pretrain(data: Path, out: Path, overrides: list[str], seed: int, updates: int) -> float:
    """Perplexity of one variant with one seed, at masked tokens of the first 320 blocks of valid."""
    checkpoint: Path | None = None
    for length, rows, lr, share in PHASES:
        folder = out / f"n{length}"
        settings = [f"task.data={data}", f"checkpoint.save_dir={folder}", f"common.seed={seed}"]
        settings += [f"task.tokens_per_sample={length}", f"dataset.batch_size={rows}", f"optimization.lr=[{lr}]"]
        settings += [f"checkpoint.finetune_from_model={checkpoint or 'null'}"]
        settings += [*MODEL, *RECIPE, *overrides]
        log = train("pretrain/tiny_512", settings, folder / "train.log", round(share * updates))
        checkpoint = folder / "checkpoint_last.pt"
    return next(row["valid_ppl"] for row in reversed(log) if "valid_ppl" in row)


def compare(data: Path, out: Path, variants: dict[str, list[str]], seeds: list[int], updates: int, jobs: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    data, out = data.absolute(), out.absolute()
    with ThreadPoolExecutor(jobs) as pool:
        runs = {
            (name, seed): pool.submit(pretrain, data, out / name / f"seed{seed}", overrides, seed, updates)
            for seed in seeds
            for name, overrides in variants.items()
        }
        perplexities = {name: [runs[name, seed].result() for seed in seeds] for name in variants}
    print(
        f"\n| variant | perplexity after {updates} updates, seeds {', '.join(map(str, seeds))} | mean |\n|---|---|---|"
    )
    for name, values in perplexities.items():
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"| {name} | {', '.join(f'{value:.2f}' for value in values)} | {statistics.mean(values):.2f}{spread} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    parser.add_argument(
        "--variant", metavar="WORD", nargs="+", action="append", required=True, help="a name, then Hydra's overrides"
    )
    parser.add_argument("--seeds", metavar="N", nargs="+", type=int, default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--updates", metavar="N", type=int, default=2800, help="of 2,048 tokens (default 2800)")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="runs side by side (default 2)")
    arguments = vars(parser.parse_args())
    with one_line_errors():
        variants = arguments.pop("variant")
        compare(variants={name: overrides for name, *overrides in variants}, **arguments)
