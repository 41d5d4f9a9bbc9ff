#!/usr/bin/env python3
"""Trains every attention mechanism in the same small model at equal updates, and compares what they reach and cost.

    python scripts/compare_attention.py --data data-bin/books --out runs/attention

The model and recipe are configs/pretrain/tiny_512.yaml with d=128, four rows a batch and lr 2e-3, each mechanism at its
default options. One after another is trained; then the cost of one training step is measured for all of them
interleaved, medians of --rounds, at n=512 and at n=4,096 (cost alone), and its peak memory by PyTorch's allocator.
OUT gets results.json, results.md, perplexity.png (against updates and against time, which is updates times the median
step, so that what else the machine did has no part in it) and cost.png. What is complete is not done again; costs are
measured again by other code, on another machine, with other options or another vocabulary (cost.json keeps them all).
"""

import argparse
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

import torch
from benchmarking.baselines import Sizes
from benchmarking.measuring import (
    Case,
    Machine,
    in_turns,
    spread,
)
from benchmarking.report import save_over_lengths
from benchmarking.runner import code_digest
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.config import ARCHITECTURES
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.errors import UserError, one_line_errors
from fairseq_linformer.system.files import check_data_path, write_whole
from fairseq_linformer.training.launch import CONFIGS, override, train

EMBED_DIM = 128
RECIPE = ["dataset.batch_size=4", "optimization.lr=[0.002]", "dataset.max_valid_steps=50"]
LENGTHS = {512: 128, 4096: 256}  # n, and Linformer's k as our configurations have it
TOKENS = 2048  # of a step, at least one row
MACHINE = Machine("cuda" if torch.cuda.is_available() else "cpu", "float32")


def pretrain(attention: str, data: Path, out: Path, updates: int) -> list[dict[str, Any]]:
    """Trains one mechanism, validating ten times; the rows of fairseq's log."""
    interval = max(1, updates // 10)
    schedule = [f"lr_scheduler.warmup_updates={updates // 10}", f"dataset.validate_interval_updates={interval}"]
    schedule += [f"checkpoint.save_interval_updates={interval}"]
    sizes = [f"model.encoder_embed_dim={EMBED_DIM}", f"model.encoder_ffn_embed_dim={4 * EMBED_DIM}"]
    settings = [override("task.data", data), f"model.attention={attention}", *sizes, *RECIPE, *schedule]
    return train("pretrain/tiny_512", settings, out / attention, updates)


def tiny_sizes(vocabulary: int) -> Sizes:
    """The model of configs/pretrain/tiny_512, but for n and k."""
    tiny = OmegaConf.load(CONFIGS / "model" / "tiny_512.yaml")
    architecture = ARCHITECTURES[tiny._name]
    return Sizes(
        layers=architecture["encoder_layers"],
        embed_dim=EMBED_DIM,
        heads=architecture["encoder_attention_heads"],
        vocabulary=vocabulary,
        dropout=OmegaConf.load(CONFIGS / "pretrain/recipe/tiny.yaml").model.dropout,
        sharing=tiny.sharing,
        options=tuple((name, tiny[name]) for name in ("local_conv", "encoder_normalize_before")),
    )


def measure_cost(attentions: list[str], data: Path, out: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """By mechanism: parameters, and by length seconds and MiB of a training step.

    OUT/cost.json keeps what was measured, beside what measured it.

    Raises:
        ValueError: that file is of another kind.
    """
    file = out / "cost.json"
    sizes = tiny_sizes(len(load_dictionary(data / DICTIONARY_FILE)) + 1)  # the task adds <mask>
    about = {"code": code_digest(), **MACHINE.describe(), "rounds": rounds, "sizes": repr(sizes)}
    about |= {"attentions": sorted(attentions), "lengths": repr(LENGTHS), "tokens": TOKENS}
    try:
        measured = json.loads(file.read_text()) if file.is_file() else []
        known = [entry["cost"] for entry in measured if entry["about"] == about]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} holds no costs of attentions: move it away") from None
    if known:
        return known[0]
    cost = _measure_cost(attentions, sizes, rounds)
    write_whole(file, json.dumps([*measured, {"about": about, "cost": cost}], indent=1))
    return cost


def _measure_cost(attentions: list[str], sizes: Sizes, rounds: int) -> dict[str, dict[str, Any]]:
    cost: dict[str, dict[str, Any]] = {attention: {"seconds": {}, "MiB": {}} for attention in attentions}
    for n, k in tqdm(LENGTHS.items(), desc="cost", unit="length", disable=None):
        own, batches = replace(sizes, length=n, projected_length=k), ((n,) * max(1, TOKENS // n),)
        steps = {attention: Case(attention, own, "training", batches) for attention in attentions}
        calls = {attention: MACHINE.prepare(step) for attention, step in steps.items()}
        in_turns(calls, rounds=1)  # to warm up
        for attention, seconds in in_turns(calls, rounds).items():
            cost[attention]["seconds"][str(n)] = spread(seconds)["seconds"]
            cost[attention]["MiB"][str(n)] = MACHINE.peak_memory(calls[attention])
        if n == min(LENGTHS):
            for attention, step in steps.items():
                cost[attention]["parameters"] = sum(parameter.numel() for parameter in step.build().parameters())
    return cost


def as_table(curves: dict[str, list[tuple[float, float]]], cost: dict[str, dict[str, Any]]) -> str:
    """The mechanisms in Markdown, best perplexity first."""
    long = [f"{name}, n={n}" for n in LENGTHS for name in ("tokens/s", "MiB")]
    lines = [f"| attention | perplexity | parameters | {' | '.join(long)} |", "|---" * (3 + len(long)) + "|"]
    for attention, curve in sorted(curves.items(), key=lambda item: item[1][-1][1]):
        own = cost[attention]
        cells = [f"`{attention}`", f"{curve[-1][1]:.1f}", f"{own['parameters'] / 1e6:.2f} M"]
        for n in LENGTHS:
            tokens = max(1, TOKENS // n) * n
            cells += [f"{tokens / own['seconds'][str(n)]:,.0f}", f"{own['MiB'][str(n)]:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(curves: dict[str, list[tuple[float, float]]], cost: dict[str, dict[str, Any]], out: Path) -> None:
    """perplexity.png and cost.png."""
    styles = [{"color": f"C{i % 10}", "linestyle": ("-", "--")[i // 10], "marker": "."} for i in range(len(curves))]
    figure = Figure(figsize=(12, 5), layout="constrained")
    by_updates, by_time = figure.subplots(1, 2, sharey=True)
    for (attention, curve), style in zip(curves.items(), styles, strict=True):
        updates, perplexities = zip(*curve, strict=True)
        seconds = cost[attention]["seconds"][str(min(LENGTHS))]
        by_updates.plot(updates, perplexities, label=attention, **style)
        by_time.plot([update * seconds / 60 for update in updates], perplexities, **style)
    by_updates.set(xlabel="updates", ylabel="masked-LM perplexity, validation")
    by_time.set(xlabel="minutes (updates x median training step)")
    by_updates.set_yscale("log", base=2)
    by_time.set_xscale("log", base=2)
    for axis in (by_updates.yaxis, by_time.xaxis):
        axis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(out / "perplexity.png", dpi=120)
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, what in zip(panels, ("seconds", "MiB"), strict=True):
        for (attention, own), style in zip(cost.items(), styles, strict=True):
            panel.plot([*LENGTHS], [own[what][str(n)] for n in LENGTHS], label=attention, **style)
    labels = ["seconds of a training step", "MiB of a training step"]
    save_over_lengths(figure, panels, [*LENGTHS], labels, out / "cost.png")


def compare(data: Path, out: Path, attentions: list[str], updates: int, rounds: int) -> None:
    data, out = data.absolute(), out.absolute()
    check_data_path(data)
    out.mkdir(parents=True, exist_ok=True)
    curves = {}
    for attention in attentions:
        rows = pretrain(attention, data, out, updates)
        points = {row["valid_num_updates"]: row["valid_ppl"] for row in rows if "valid_ppl" in row}
        curves[attention] = sorted(points.items())
    cost = measure_cost(attentions, data, out, rounds)
    table = as_table(curves, cost)
    content = {"updates": updates, "machine": MACHINE.describe(), "perplexity": curves, "cost": cost}
    write_whole(out / "results.json", json.dumps(content, indent=1))
    write_whole(out / "results.md", table)
    draw(curves, cost, out)
    about = ", ".join(f"{name} {value}" for name, value in MACHINE.describe().items())
    print(f"\n{table}\n{about}\nresults.json, results.md, perplexity.png, cost.png: {out}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", metavar="DIR", type=Path, required=True, help="a corpus of scripts/prepare_corpus.py")
    add("--out", metavar="DIR", type=Path, default=Path("runs/attention"), help="default: runs/attention")
    add("--attentions", metavar="A", nargs="+", choices=sorted(ATTENTIONS), default=sorted(ATTENTIONS))
    add("--updates", metavar="N", type=int, default=2000, help="default: 2000")
    add("--rounds", metavar="N", type=int, default=7, help="of steps that are timed (default 7)")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_arguments()
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets it to DEBUG, for every library
    with one_line_errors():
        compare(**vars(arguments))
