#!/usr/bin/env python3
"""Trains every attention mechanism in the same small model at equal updates, and compares what they reach and cost.

    python scripts/compare_attention.py --data data-bin/books --out runs/attention

The model and recipe are configs/pretrain/tiny_512.yaml with d=128, four rows a batch and lr 2e-3, each mechanism at its
default options. One after another is trained; then the cost of one training step is measured for all of them
interleaved, medians of --rounds, at n=512 and at n=4,096 (cost alone), and its peak memory in a process of its own.
OUT gets results.json, results.md, perplexity.png (against updates and against time, which is updates times the median
step, so that what else the machine did has no part in it) and cost.png. What is complete is not done again.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel
from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.data.staging import write_whole
from fairseq_linformer.data.tokenizer import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.errors import one_line_errors
from fairseq_linformer.model import LinformerRobertaEncoder, LinformerRobertaModel
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.running import CONFIGS, override, train

SIZES = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 512}
RECIPE = ["dataset.batch_size=4", "optimization.lr=[0.002]", "dataset.max_valid_steps=50"]
LENGTHS = {512: 128, 4096: 256}  # n, and Linformer's k as our configurations have it
TOKENS = 2048  # of a step, at least one row


def pretrain(attention: str, data: Path, out: Path, updates: int) -> list[dict[str, Any]]:
    """Trains one mechanism, validating ten times; the rows of fairseq's log."""
    interval = max(1, updates // 10)
    schedule = [f"lr_scheduler.warmup_updates={updates // 10}", f"dataset.validate_interval_updates={interval}"]
    schedule += [f"checkpoint.save_interval_updates={interval}"]
    sizes = [f"model.{name}={value}" for name, value in SIZES.items()]
    settings = [override("task.data", data), f"model.attention={attention}", *sizes, *RECIPE, *schedule]
    return train("pretrain/tiny_512", settings, out / attention, updates)


def build(attention: str, dictionary: Dictionary, length: int, k: int) -> RobertaModel:
    """The model of configs/pretrain/tiny_512 with a mechanism, for sequences of a length."""
    tiny = (
        OmegaConf.load(CONFIGS / "model" / "tiny_512.yaml"),
        OmegaConf.load(CONFIGS / "pretrain/recipe/tiny.yaml").model,
    )
    own = {"attention": attention, "max_positions": length, "projected_length": k, **SIZES}
    options = OmegaConf.merge(*tiny, own)
    del options["defaults"]
    config = resolve_config(options, length)
    torch.manual_seed(1)
    return LinformerRobertaModel(config, LinformerRobertaEncoder(config, dictionary))


def step(model: RobertaModel, tokens: torch.Tensor, masked: torch.Tensor) -> None:
    """Forward and backward of masked language modelling."""
    logits, _ = model(tokens, masked_tokens=masked)
    torch.nn.functional.cross_entropy(logits.float(), tokens[masked]).backward()
    model.zero_grad()
    if tokens.is_cuda:
        torch.cuda.synchronize()


def batch(dictionary: Dictionary, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens, (rows, n), and which 15 % of them are masked."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(1)
    shape = (max(1, TOKENS // length), length)
    tokens = torch.randint(dictionary.nspecial, len(dictionary), shape, generator=generator)
    return tokens.to(device), (torch.rand(shape, generator=generator) < 0.15).to(device)


def measure_times(attentions: list[str], dictionary: Dictionary, length: int, k: int, rounds: int) -> dict[str, float]:
    """Seconds of a training step, the median of `rounds`, the mechanisms interleaved; the first round warms up."""
    tokens, masked = batch(dictionary, length)
    models = {attention: build(attention, dictionary, length, k).to(tokens.device) for attention in attentions}
    seconds: dict[str, list[float]] = {attention: [] for attention in attentions}
    for number in tqdm(range(rounds + 1), desc=f"n={length}", unit="round", disable=None):
        for attention, model in models.items():
            start = time.perf_counter()
            step(model, tokens, masked)
            if number > 0:
                seconds[attention].append(time.perf_counter() - start)
    return {attention: statistics.median(values) for attention, values in seconds.items()}


def peak_memory(attention: str, data: Path, length: int, k: int) -> float:
    """MiB that a training step adds to what a process with its model holds: of the GPU, or resident (Linux)."""
    dictionary = load(data)
    tokens, masked = batch(dictionary, length)
    model = build(attention, dictionary, length, k).to(tokens.device)
    if tokens.is_cuda:
        before = torch.cuda.memory_allocated()
        step(model, tokens, masked)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here; importing torch had one of its own
    before = resident("VmRSS")
    step(model, tokens, masked)
    return resident("VmHWM") - before


def resident(name: str) -> float:
    """MiB of this process's memory: VmRSS now, VmHWM at its peak (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) / 1024


def load(data: Path) -> Dictionary:
    """The dictionary of a corpus as the task has it."""
    dictionary = load_dictionary(data / DICTIONARY_FILE)
    dictionary.add_symbol("<mask>")
    return dictionary


def measure_cost(attentions: list[str], data: Path, out: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """By mechanism: parameters, and by length seconds and MiB of a training step; kept in OUT/cost.json."""
    file = out / "cost.json"
    if file.is_file() and (known := json.loads(file.read_text())).keys() == set(attentions):
        return known
    dictionary = load(data)
    cost: dict[str, dict[str, Any]] = {attention: {"seconds": {}, "MiB": {}} for attention in attentions}
    for length, k in LENGTHS.items():
        for attention, seconds in measure_times(attentions, dictionary, length, k, rounds).items():
            cost[attention]["seconds"][str(length)] = seconds
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:  # whose peak is its own
                cost[attention]["MiB"][str(length)] = process.submit(peak_memory, attention, data, length, k).result()
    length, k = next(iter(LENGTHS.items()))
    for attention in attentions:
        cost[attention]["parameters"] = sum(p.numel() for p in build(attention, dictionary, length, k).parameters())
    write_whole(file, json.dumps(cost, indent=1))
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
    figure, (by_updates, by_time) = plt.subplots(1, 2, figsize=(12, 5), sharey=True)
    for (attention, curve), style in zip(curves.items(), styles, strict=True):
        updates, perplexities = zip(*curve, strict=True)
        seconds = cost[attention]["seconds"][str(next(iter(LENGTHS)))]
        by_updates.plot(updates, perplexities, label=attention, **style)
        by_time.plot([update * seconds / 60 for update in updates], perplexities, **style)
    by_updates.set(xlabel="updates", ylabel="masked-LM perplexity, validation", yscale="log")
    by_time.set(xlabel="minutes (updates x median training step)")
    by_updates.legend(fontsize="small")
    save(figure, out / "perplexity.png")
    figure, panels = plt.subplots(1, 2, figsize=(12, 5))
    for panel, what in zip(panels, ("seconds", "MiB"), strict=True):
        for (attention, own), style in zip(cost.items(), styles, strict=True):
            panel.plot([*LENGTHS], [own[what][str(n)] for n in LENGTHS], label=attention, **style)
        panel.set(xlabel="n", ylabel=f"{what} of a training step", xscale="log", yscale="log", xticks=[*LENGTHS])
        panel.set_xticklabels(map(str, LENGTHS))
        panel.minorticks_off()
    panels[0].legend(fontsize="small")
    save(figure, out / "cost.png")


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def compare(data: Path, out: Path, attentions: list[str], updates: int, rounds: int) -> None:
    data, out = data.absolute(), out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    curves = {}
    for attention in attentions:
        rows = pretrain(attention, data, out, updates)
        points = {row["valid_num_updates"]: row["valid_ppl"] for row in rows if "valid_ppl" in row}
        curves[attention] = sorted(points.items())
    cost = measure_cost(attentions, data, out, rounds)
    table = as_table(curves, cost)
    content = {"updates": updates, "machine": machine(), "perplexity": curves, "cost": cost}
    write_whole(out / "results.json", json.dumps(content, indent=1))
    write_whole(out / "results.md", table)
    draw(curves, cost, out)
    print(f"\n{table}\n{machine()}\nresults.json, results.md, perplexity.png, cost.png: {out}")


def machine() -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return f"{device}, torch {torch.__version__}"


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
