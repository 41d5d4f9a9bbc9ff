"""The plots of the benchmark and of the comparison of mechanisms, from their results."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .rows import Row, by

Curve = list[tuple[float, float]]  # updates and perplexity
Cost = dict[str, Any]  # "parameters", and by length "seconds" and "MiB"

# Okabe and Ito's palette, which the colour-blind can tell apart; markers and lines differ for print without colour.
OVERVIEW_STYLES: dict[str, dict[str, Any]] = {
    "linformer": {"label": "Linformer (ours)", "color": "#0072B2", "marker": "o", "linestyle": "-", "linewidth": 2.8},
    "fairseq-example": {"label": "Linformer (fairseq's example)", "color": "#E69F00", "marker": "s", "linestyle": "--"},
    "softmax": {"label": "full attention (ours)", "color": "#009E73", "marker": "^", "linestyle": "-."},
    "fairseq-roberta": {"label": "full attention (fairseq)", "color": "#D55E00", "marker": "D", "linestyle": ":"},
}

# Of variants that have no style of their own.
COLORS = ("#009E73", "#000000", "#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS = "^xosDv*P.<>ph"
LINES = ("-", "--", "-.", ":")


def style_of(number: int) -> dict[str, Any]:
    """How the curve of a variant is drawn, by its number; those that share a colour have other lines."""
    again = number // len(COLORS)
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[(number + again) % len(LINES)],
    }


def draw_overview(rows: Sequence[Row], path: Path) -> None:
    """Time, where it is measured, and memory of a training step on one row against n, readable at 800 pixels."""
    panels = {"seconds": ("Time of a training step", "time (s)", 1)}
    panels |= {"MiB": ("Memory of a training step", "peak memory (GiB)", 1024)}
    panels = {column: panel for column, panel in panels.items() if any(column in row for row in rows)}
    figure = Figure(figsize=(4 * len(panels), 3.9), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    lengths = sorted({row["n"] for row in rows})
    for axis, (column, (title, label, scale)) in zip(axes, panels.items(), strict=True):
        for model, style in OVERVIEW_STYLES.items():
            if own := [row for row in rows if row["model"] == model and column in row]:
                axis.plot([row["n"] for row in own], [row[column] / scale for row in own], **{"linewidth": 2, **style})
        scale_lengths(axis, lengths)
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(title=title, xlabel="sequence length n, one row", ylabel=label)
        axis.grid(color="0.9")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(panels), frameon=False)
    figure.savefig(path, dpi=200)


def draw_figure2(rows: Sequence[Row], path: Path) -> None:
    """Time of a batch of a fixed number of tokens against n, as the paper's figure 2."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for (_, note), own in by("model", "note", [row for row in rows if "seconds" in row]).items():
        microseconds = [1e6 / row["tokens_per_second"] for row in own]
        label = f"Linformer, {note}" if note else "softmax"
        panel.plot([row["n"] for row in own], microseconds, marker=".", label=label)
    save_over_lengths(figure, [panel], sorted({row["n"] for row in rows}), ["microseconds per token, inference"], path)


def draw_growth(rows: Sequence[Row], path: Path) -> None:
    """Time, where it is measured, and memory of one row against n."""
    labels = [what for what in ("seconds", "MiB") if what in rows[0]]
    figure = Figure(figsize=(3 + 4.5 * len(labels), 5), layout="constrained")
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for (model, phase), own in by("model", "phase", rows).items():
        for panel, what in zip(panels, labels, strict=True):
            panel.plot([row["n"] for row in own], [row[what] for row in own], marker=".", label=f"{model}, {phase}")
    save_over_lengths(figure, panels, sorted({row["n"] for row in rows}), labels, path)


def draw_mechanisms(curves: Mapping[str, Curve], cost: Mapping[str, Cost], out: Path) -> None:
    """perplexity.png, against updates and, for what has a cost, against time; and cost.png, against n."""
    styles = {name: {"markersize": 5, **style_of(number)} for number, name in enumerate(sorted(curves))}
    lengths = [int(n) for n in next(iter(cost.values()))["seconds"]]
    figure = Figure(figsize=(12, 5), layout="constrained")
    by_updates, by_time = figure.subplots(1, 2, sharey=True)
    for name, curve in curves.items():
        updates, perplexities = zip(*curve, strict=True)
        by_updates.plot(updates, perplexities, label=name, **styles[name])
        if name in cost:
            seconds = cost[name]["seconds"][str(min(lengths))]
            by_time.plot([update * seconds / 60 for update in updates], perplexities, **styles[name])
    by_updates.set(xlabel="updates", ylabel="masked-LM perplexity, validation")
    by_time.set(xlabel="minutes (updates x median forward + backward)")
    by_updates.set_yscale("log", base=2)
    by_time.set_xscale("log", base=2)
    for axis in (by_updates.yaxis, by_time.xaxis):
        axis.set_major_formatter("{x:g}")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(out / "perplexity.png", dpi=120)
    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, what in zip(panels, ("seconds", "MiB"), strict=True):
        for attention, own in cost.items():
            panel.plot(lengths, [own[what][str(n)] for n in lengths], label=attention, **styles[attention])
    labels = ["seconds, forward + backward", "MiB, forward + backward"]
    save_over_lengths(figure, panels, lengths, labels, out / "cost.png")


def draw_variants(perplexities: Mapping[str, Sequence[float]], updates: int, path: Path) -> None:
    """Perplexity by variant: a dot per seed, and a line at the mean."""
    figure = Figure(figsize=(6.4, 1.2 + 0.4 * len(perplexities)), layout="constrained")
    panel = figure.subplots()
    for place, values in enumerate(perplexities.values()):
        panel.plot(values, [place] * len(values), "o", color="#0072B2", alpha=0.5)
        panel.vlines(statistics.mean(values), place - 0.3, place + 0.3, color="#D55E00", linewidth=2)
    panel.set_yticks(range(len(perplexities)), [*perplexities])
    panel.invert_yaxis()
    panel.set_xlabel(f"perplexity after {updates:,} updates: a dot per seed, a line at the mean")
    panel.grid(axis="x", color="0.9")
    figure.savefig(path, dpi=150)


def draw_multipliers(
    curves: Mapping[int, Mapping[float, Sequence[float]]],
    beside: Mapping[int, Mapping[str, Sequence[float]]],
    path: Path,
) -> None:
    """Perplexity against c, a panel for each n: the mean over seeds and each seed; lines for what has no c.

    Args:
        curves: perplexities of every seed by n and c.
        beside: perplexities of every seed by n and name.
        path: of the PNG.
    """
    figure = Figure(figsize=(4 * len(curves), 4), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (n, own) in zip(panels, curves.items(), strict=True):
        multipliers = sorted(own)
        means = [statistics.mean(own[c]) for c in multipliers]
        panel.plot(multipliers, means, color="#0072B2", marker="o", label="learned matrix, E = c W")
        for c, values in own.items():
            panel.plot([c] * len(values), values, ".", color="#0072B2", alpha=0.4)
        for (name, values), line in zip(beside[n].items(), ("--", ":"), strict=True):
            panel.axhline(statistics.mean(values), color="#D55E00", linestyle=line, label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set(title=f"n = {n}", xlabel="c", ylabel="perplexity at masked tokens")
        panel.grid(color="0.9")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)


def save_over_lengths(
    figure: Figure, panels: Sequence[Axes], lengths: Sequence[int], labels: Sequence[str], path: Path
) -> None:
    """Saves a figure whose panels have curves over n, both axes logarithmic, with one label per panel."""
    for panel, label in zip(panels, labels, strict=True):
        scale_lengths(panel, lengths)
        panel.set_yscale("log", base=2)
        panel.set(xlabel="n", ylabel=label)
        panel.yaxis.set_major_formatter("{x:g}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)


def scale_lengths(panel: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic axis of lengths, marked at those measured: 512, 1k, 2k."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
