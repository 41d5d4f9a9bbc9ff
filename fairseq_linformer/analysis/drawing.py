"""The pictures of an analysis, from its numbers. Nothing else in this package imports matplotlib.

Colours are of viridis and of Okabe and Ito's palette, which the colour-blind can tell apart; lines and markers differ
for print without colour.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from ..attention.adaptive import adaptive_pooling
from .low_rank import FORMS, OWN
from .matrices import STATISTICS, Matrix, row_statistics
from .spectrum import SHARES, theorem_1

LINES = ("-", "--", "-.", ":")
WIDTH = 3.2  # of a panel, in inches
COLUMNS = 4  # of panels at most
KINDS: dict[str, dict[str, Any]] = {
    "truncated SVD": {"color": "#009E73", "marker": "^", "linestyle": "-."},
    "segment means": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "Gaussian": {"color": "#E69F00", "marker": "s", "linestyle": "--"},
    OWN: {"color": "#D55E00", "marker": "*", "linestyle": "none", "markersize": 11},
}
NAMES = {
    "local": "share in the own segment",
    "width": "effective width (positions)",
    "uniform": "share along the constant row",
    "periodic": "share of the strongest frequency",
}
FORM_LABELS = {
    "projected": "P replaced by rank k\nrelative error of P w",
    "linformer": "softmax(Q (E K)ᵀ) F w\nrelative error",
}
MOST_LABELS = 48  # tokens that fit beside a map as text


def draw_spectrum(spectrum: Mapping[str, Any], path: Path) -> None:
    """Curves of each head, a panel for each layer: the paper's figure 1, left."""
    curves = np.array(spectrum["cumulative"])  # (L, h, n)
    figure, panels = _grid(len(curves), share=True)
    index = np.arange(1, curves.shape[2] + 1)
    colour = _by_number(curves.shape[1])
    for layer, (panel, heads) in enumerate(zip(panels, curves, strict=True)):
        for head, curve in enumerate(heads):
            label = f"head {head}" if len(heads) <= 8 else None
            panel.plot(index, curve, color=colour(head), linestyle=LINES[head % len(LINES)], linewidth=1.2, label=label)
        panel.plot(index, heads.mean(0), color="black", linewidth=2.2, label="mean")
        _mark_rank(panel, spectrum["projected_length"], layer)
        panel.set(title=f"layer {layer}", ylim=(0, 1.02), xlim=(1, curves.shape[2]))
        panel.grid(color="0.9")
    _label(panels, "index of singular value", "normalised cumulative\nsingular value")
    _legend(figure, panels[0])
    figure.savefig(path, dpi=130)


def draw_spectrum_heat(spectrum: Mapping[str, Any], path: Path) -> None:
    """The cumulative value at one index by layer and head: the paper's figure 1, right."""
    values = np.array(spectrum["heat_map"])  # (L, h)
    figure = Figure(figsize=(2.4 + 0.62 * values.shape[1], 1.9 + 0.42 * values.shape[0]), layout="constrained")
    panel = figure.subplots()
    least = min(0.9, math.floor(10 * values.min()) / 10)  # a scale of its own would make noise of equal values
    image = panel.imshow(values, cmap="viridis", aspect="auto", vmin=least, vmax=1)
    for (layer, head), value in np.ndenumerate(values):
        text = f"{value:.3f}" if value < 0.9995 else "1.00"
        panel.text(
            head,
            layer,
            text,
            ha="center",
            va="center",
            color="black" if value > (least + 1) / 2 else "white",
            fontsize=8,
        )
    panel.set_xticks(range(values.shape[1]))
    panel.set_yticks(range(values.shape[0]))
    index, n = spectrum["heat_map_index"], spectrum["n"]
    panel.set(xlabel="head", ylabel="layer", title=f"value at index {index} of {n}")
    figure.colorbar(image, label="cumulative value", format="%.3g")
    figure.savefig(path, dpi=130)


def draw_ranks(spectrum: Mapping[str, Any], path: Path) -> None:
    """Effective rank of each layer beside the chosen k and the least k that theorem 1 can ask."""
    n, ranks = spectrum["n"], spectrum["effective_rank"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    styles: tuple[dict[str, Any], ...] = (
        {"color": "#0072B2", "marker": "o", "linestyle": "-"},
        {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    )
    for share, style in zip(SHARES, styles, strict=True):
        heads = np.array(ranks[f"{share:g}"])  # (L, h)
        mean = heads.mean(1)
        spread = np.stack([mean - heads.min(1), heads.max(1) - mean])
        label = f"{share:.0%} of the sum (mean, least and most of heads)"
        panel.errorbar(range(len(heads)), mean, yerr=spread, capsize=4, label=label, **style)
    if spectrum["projected_length"]:
        panel.plot(spectrum["projected_length"], color="black", linewidth=2, label="k of the model")
    least = theorem_1(n, 2 / 3)
    panel.axhline(least, color="0.4", linestyle=":", label=f"least k of theorem 1, {math.ceil(least)}")
    panel.axhline(n, color="0.4", linestyle="-.", label=f"n = {n}")
    panel.set(xlabel="layer", ylabel="effective rank", ylim=(0, 1.05 * max(n, least)))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(color="0.9")
    figure.legend(
        *panel.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small", frameon=False
    )
    figure.savefig(path, dpi=130)


def draw_low_rank(low_rank: Mapping[str, Any], n: int, path: Path) -> None:
    """Error of P V against k, a panel for each form and layer; median and 5 to 95 %."""
    layers = low_rank["layers"]
    figure, panels = _by_layer(len(FORMS), len(layers), width=2.6, height=3.0)
    for number, layer in enumerate(layers):
        for form, row in zip(FORMS, panels, strict=True):
            panel = row[number]
            panel.sharey(row[0])
            panel.sharex(panels[0][0])
            for kind, style in KINDS.items():
                if kind in layer[form]:
                    _draw_errors(panel, layer[form][kind], style, kind)
            if form == "projected":
                _draw_promise(panel, n, [point["k"] for point in layer[form]["segment means"]])
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.xaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_major_formatter("{x:g}")
            panel.grid(color="0.9")
            panel.set(title=f"layer {number}" if form == "projected" else "", xlabel="k", ylabel=FORM_LABELS[form])
            panel.label_outer(remove_inner_ticks=True)
    panels[0][0].set_ylim(bottom=1e-3)  # the best matrix of a large k has hardly any error
    _legend(figure, panels[0][0])
    figure.savefig(path, dpi=110)


def _draw_errors(panel: Axes, points: Sequence[Mapping[str, float]], style: Mapping[str, Any], kind: str) -> None:
    ks = [point["k"] for point in points]
    panel.plot(ks, [point["median"] for point in points], label=kind, zorder=3, **style)
    low, high = ([point[name] for point in points] for name in ("p5", "p95"))
    if len(ks) == 1:
        panel.vlines(ks, low, high, color=style["color"])
    else:
        panel.fill_between(ks, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _draw_promise(panel: Axes, n: int, ks: Sequence[int]) -> None:
    """The error that theorem 1 promises for each k that it can ask: no less than at e = 2 / 3."""
    epsilons = np.linspace(2 / 3, 0.02, 200)
    asked = np.array([theorem_1(n, epsilon) for epsilon in epsilons])
    inside = asked <= 2 * max(ks)
    if inside.any():
        panel.plot(asked[inside], epsilons[inside], color="black", linewidth=2, label="promised by theorem 1")


def draw_matrices(matrices: Sequence[Matrix], path: Path) -> None:
    """Heat maps of E and F: magnitudes of the entries, mean over heads, as a part of the largest of each matrix."""
    groups = [list(own) for _, own in groupby(matrices, lambda one: (one.letters, one.layer))]
    figure, panels = _grid(len(groups), height=1.7)
    for panel, own in zip(panels, groups, strict=True):
        magnitudes = torch.stack([one.values.abs().cpu() for one in own]).mean(0).numpy()
        magnitudes = magnitudes / max(magnitudes.max(), np.finfo(np.float32).tiny)
        scale = PowerNorm(0.5, 0, 1)
        panel.imshow(magnitudes, cmap="cividis", aspect="auto", norm=scale)
        layer = "all layers" if own[0].layer is None else f"layer {own[0].layer}"
        panel.set_title(f"{own[0].letters}, {layer}", fontsize="medium")
    _label(panels, "position", "row")
    figure.colorbar(panels[0].images[0], ax=panels, label="|entry| / largest", shrink=0.8)
    figure.savefig(path, dpi=100)


def draw_rows(matrices: Sequence[Mapping[str, Any]], path: Path) -> None:
    """What the rows look at: quartiles and extremes of each statistic, over the rows of the matrices of each layer."""
    groups = [list(own) for _, own in groupby(matrices, lambda one: (one["letters"], one["layer"]))]
    figure = Figure(figsize=(max(7.5, 1.6 + 0.6 * len(groups)), 6.8), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).flatten()
    k, n = matrices[0]["k"], matrices[0]["n"]
    references = {
        "segment means": ("#009E73", "--", row_statistics(adaptive_pooling(torch.tensor(n), k, n, torch.double))),
        "Gaussian rows": ("0.4", ":", row_statistics(torch.randn((k, n), generator=torch.Generator().manual_seed(0)))),
    }
    for panel, kind in zip(panels, STATISTICS, strict=True):
        rows = [np.concatenate([one["rows"][kind] for one in own]) for own in groups]
        boxes = panel.boxplot(rows, whis=(0, 100), widths=0.5, patch_artist=True)
        for own, box in zip(groups, boxes["boxes"], strict=True):
            box.set(facecolor="#F0E442" if own[0]["letters"] == "F" else "#56B4E9")
        for median in boxes["medians"]:
            median.set(color="black", linewidth=2)
        for name, (colour, line, statistics) in references.items():
            panel.axhline(float(statistics[kind].median()), color=colour, linestyle=line, linewidth=1.8, label=name)
        if kind != "local":
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.yaxis.set_major_formatter("{x:g}")
        panel.set_ylabel(NAMES[kind])
        panel.grid(color="0.9", axis="y")
    names = [f"{own[0]['letters']}\n{'all' if own[0]['layer'] is None else own[0]['layer']}" for own in groups]
    for panel in panels[2:]:
        panel.set_xticks(range(1, len(groups) + 1), names, fontsize="small")
        panel.set_xlabel("matrix and layer")
    _legend(figure, panels[0])
    figure.savefig(path, dpi=110)


def draw_use(layers: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Attention onto the rows of each layer, the most used first."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    panel = figure.subplots()
    colour = _by_number(len(layers))
    for number, layer in enumerate(layers):
        use = np.sort(np.array(layer["use"]))[::-1]
        share = "" if round(layer["share"], 2) == 1 else f", {layer['share']:.0%} of attention"
        style = {"color": colour(number), "linestyle": LINES[number % len(LINES)]}
        panel.plot(
            np.arange(1, len(use) + 1), np.maximum(use, 1e-6), label=f"layer {number}{share}", linewidth=1.8, **style
        )
    panel.axhline(1, color="0.6", linewidth=1)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.set(xlabel="row, the most used first", ylabel="attention onto the row (mean row: 1)")
    panel.grid(color="0.9")
    _legend(figure, panel, columns=2)
    figure.savefig(path, dpi=130)


def draw_training(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """What changes with updates: a panel for each number, a line for each layer, or one for all."""
    names = [name for name in points[-1] if name != "updates"]
    figure, panels = _grid(len(names), columns=3)
    updates = [point["updates"] for point in points]
    layers = max(len(points[-1][name]) for name in names)
    colour = _by_number(layers)
    for panel, name in zip(panels, names, strict=True):
        lines = list(zip(*(point[name] for point in points), strict=True))
        for number, values in enumerate(lines):
            style: dict[str, Any] = {"linestyle": LINES[number % 4], "marker": "os^D"[number % 4], "markersize": 4}
            panel.plot(updates, values, color=colour(number), label=f"layer {number}", **style)
        if name == "unused rows":
            panel.set_ylim(bottom=0, top=max(1.0, panel.get_ylim()[1]))
        shared = ", all layers" if len(lines) < layers else ""
        panel.set_title(NAMES.get(name, name) + shared, fontsize="medium")
        panel.grid(color="0.9")
        panel.ticklabel_format(useOffset=False)
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _label(panels, "updates", "", columns=3)
    _legend(figure, max(panels, key=lambda panel: len(panel.get_lines())))
    figure.savefig(path, dpi=110)


def draw_looks(looks: Mapping[str, Any], path: Path) -> None:
    """Maps of the shown tokens, mean over heads, a panel for each model and layer."""
    models, tokens = looks["models"], looks["tokens"]
    layers = len(models[0]["maps"])
    figure, panels = _by_layer(len(models), layers, width=3.6, height=3.8)
    maps = [[np.mean(layer, axis=0) * looks["unit"] for layer in model["maps"]] for model in models]
    most = max(float(own.max()) for model in maps for own in model)
    for row, model, own_maps in zip(panels, models, maps, strict=True):
        for layer, (panel, own) in enumerate(zip(row, own_maps, strict=True)):
            panel.imshow(np.maximum(own, 0), cmap="viridis", norm=PowerNorm(0.5, 0, most))
            panel.set_title(f"{model['attention']}, layer {layer}", fontsize="medium")
            _name_tokens(panel, tokens, with_text=layer % COLUMNS == 0)
    figure.supxlabel("token that is looked at")
    figure.supylabel("token that looks")
    label = "weight, mean over heads" + (
        " (negative ones as 0)" if any(np.min(own) < 0 for m in maps for own in m) else ""
    )
    figure.colorbar(
        panels[0][0].images[0], ax=[panel for row in panels for panel in row], label=label, shrink=0.8, aspect=40
    )
    figure.savefig(path, dpi=110)


def draw_first_token(looks: Mapping[str, Any], path: Path) -> None:
    """What the first token takes of each token in each layer, mean over heads; a panel for each model."""
    models, tokens = looks["models"], looks["tokens"]
    layers = len(models[0]["maps"])
    size = (max(6.0, 1.8 + 0.24 * min(len(tokens), MOST_LABELS)), 1.2 + (0.9 + 0.34 * layers) * len(models))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(models), squeeze=False)[:, 0]
    for panel, model in zip(panels, models, strict=True):
        weights = np.array([np.mean(layer, axis=0)[0] for layer in model["maps"]]) * looks["unit"]  # (L, T)
        image = panel.imshow(np.maximum(weights, 0), cmap="viridis", aspect="auto", norm=PowerNorm(0.5, 0))
        panel.set(title=_no_formula(f"{model['name']} ({model['attention']})"), ylabel="layer")
        panel.set_yticks(range(layers))
        if len(tokens) <= MOST_LABELS:
            panel.set_xticks(range(len(tokens)), [_printable(token) for token in tokens], rotation=90, fontsize=8)
        figure.colorbar(image, ax=panel, label="weight")
    figure.savefig(path, dpi=120)


def _name_tokens(panel: Axes, tokens: Sequence[str], with_text: bool) -> None:
    if len(tokens) > MOST_LABELS:
        return
    names = [_printable(token) for token in tokens]
    size = min(8.0, 200 / len(tokens))
    panel.set_xticks(range(len(tokens)), names, rotation=90, fontsize=size)
    panel.set_yticks(range(len(tokens)), names if with_text else [""] * len(tokens), fontsize=size)


def _printable(token: str) -> str:
    """A token as a short label."""
    return _no_formula((token.strip() or "␣").replace("\n", "⏎")[:12])


def _no_formula(text: str) -> str:
    """As matplotlib writes it as it is."""
    return text.replace("$", r"\$")


def _grid(count: int, columns: int = COLUMNS, height: float = 2.6, share: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows."""
    across = min(columns, count)
    down = math.ceil(count / across)
    figure = Figure(figsize=(0.8 + WIDTH * across, 1.3 + height * down), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False, sharex=share, sharey=share).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def _by_layer(parts: int, layers: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Panels [part][layer] of a new figure: the parts of a layer below each other, COLUMNS layers abreast."""
    across = min(COLUMNS, layers)
    down = parts * math.ceil(layers / across)
    figure = Figure(figsize=(1.2 + width * max(2, across), 0.6 + height * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    panels = [
        [grid[layer // across * parts + part][layer % across] for layer in range(layers)] for part in range(parts)
    ]
    for panel in grid.flat:
        panel.set_visible(any(panel in row for row in panels))
    return figure, panels


def _label(panels: Sequence[Axes], across: str, up: str, columns: int = COLUMNS) -> None:
    """Names the axes at the lower and left ends of a grid; a label of the figure would lie on its legend."""
    for number, panel in enumerate(panels):
        if number + columns >= len(panels):
            panel.set_xlabel(across)
        if number % columns == 0:
            panel.set_ylabel(up)


def _legend(figure: Figure, panel: Axes, columns: int = 6) -> None:
    handles, labels = panel.get_legend_handles_labels()
    columns = min(columns, len(labels))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")


def _by_number(count: int) -> Any:
    """Colours from dark to bright, the brightest left out, which print badly."""
    scale = Normalize(0, max(1, count - 1) / 0.85)
    return lambda number: colormaps["viridis"](scale(number))


def _mark_rank(panel: Axes, chosen: Sequence[int] | None, layer: int) -> None:
    if chosen is not None:
        panel.axvline(chosen[layer], color="#D55E00", linestyle=":", linewidth=2, label="k of the model")
