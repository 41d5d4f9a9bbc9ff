"""The pictures of an analysis, from its numbers."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ..attention.adaptive import adaptive_pooling
from ..system.plotting import REFERENCE, legend, picture, scale_lengths, scale_log, style_in_order, style_of
from .low_rank import FORMS, OWN
from .matrices import STATISTICS, Matrix, row_statistics
from .spectrum import SHARES, theorem_1

COLUMNS = 4  # of panels at most
CHOSEN: dict[str, Any] = {"color": "black", "linewidth": 2, "label": "k of the model"}
KINDS: dict[str, dict[str, Any]] = {
    "truncated SVD": style_of(2),
    "segment means": style_of(0),
    "Gaussian": style_of(4),
    OWN: {**style_of(1), "marker": "*", "linestyle": "none", "markersize": 11},
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
LEAST_SPAN = 0.1  # of a scale of shares: a narrower one would make noise of equal values
LEAST_CHANGE = 0.01  # with updates, as a part of a number, that is drawn
MOST_LABELS = 48  # tokens that fit beside a map as text


def draw_spectrum(spectrum: Mapping[str, Any], path: Path) -> None:
    """Curves of each head, a panel for each layer: the paper's figure 1, left."""
    curves = np.array(spectrum["cumulative"])  # (L, h, n)
    index = np.arange(1, curves.shape[2] + 1)
    rising = int((curves < 0.9999).any((0, 1)).sum()) + 1
    last = max(2, rising, *(spectrum["projected_length"] or ()))  # beyond k a Linformer's curves are all at 1
    with _panels(path, len(curves), sharex=True, sharey=True) as (figure, [panels]):
        for layer, (panel, heads) in enumerate(zip(panels, curves, strict=True)):
            for head, curve in enumerate(heads):
                label = f"head {head}" if len(heads) <= 8 else None
                panel.plot(index, curve, linewidth=1.2, label=label, **style_in_order(head, len(heads)))
            panel.plot(index, heads.mean(0), linewidth=2.2, label="mean", color=style_of(1)["color"])
            if spectrum["projected_length"]:
                panel.axvline(spectrum["projected_length"][layer], linestyle=":", **CHOSEN)
            panel.set(title=f"layer {layer}", ylim=(0, 1.02), xlim=(1, min(1.05 * last, len(index))))
        _label(panels, "index of singular value", "normalised cumulative\nsingular value")
        legend(figure, panels)


def draw_spectrum_heat(spectrum: Mapping[str, Any], path: Path) -> None:
    """The share of the largest singular values by layer and head: the paper's figure 1, right."""
    values = np.array(spectrum["heat_map"])  # (L, h)
    least = min(1 - LEAST_SPAN, math.floor(10 * values.min()) / 10)
    with picture(path, 1, 1, 2.4 + 0.62 * values.shape[1], 1.9 + 0.42 * values.shape[0]) as (figure, panels):
        panel = panels[0, 0]
        image = _show(panel, values, Normalize(least, 1))
        for (layer, head), value in np.ndenumerate(values):
            colour = "black" if value > (least + 1) / 2 else "white"
            text = f"{value:.3f}" if value < 0.9995 else "1.00"
            panel.text(head, layer, text, ha="center", va="center", color=colour, fontsize=8)
        panel.set(xticks=range(values.shape[1]), yticks=range(values.shape[0]), xlabel="head", ylabel="layer")
        panel.set_title(f"share of the {spectrum['heat_map_index']} largest singular values")
        figure.colorbar(image, label=f"share of the sum of all {spectrum['n']}", format="%.3g")


def draw_ranks(spectrum: Mapping[str, Any], path: Path) -> None:
    """Effective rank of each layer beside the chosen k and the least k that theorem 1 can ask."""
    n, least = spectrum["n"], theorem_1(spectrum["n"], 2 / 3)
    with picture(path, 1, 1, 6, 4) as (figure, panels):
        panel = panels[0, 0]
        for number, share in enumerate(SHARES):
            heads = np.array(spectrum["effective_rank"][f"{share:g}"])  # (L, h)
            mean = heads.mean(1)
            spread = np.stack([mean - heads.min(1), heads.max(1) - mean])
            label = f"{share:.0%} of the sum (mean, least and most of heads)"
            panel.errorbar(range(len(heads)), mean, yerr=spread, capsize=4, label=label, **style_of(number))
        if spectrum["projected_length"]:
            panel.plot(spectrum["projected_length"], **CHOSEN)
        panel.axhline(least, color=style_of(2)["color"], linestyle="-.", label=f"least k of theorem 1, {least:.0f}")
        panel.axhline(n, label=f"n = {n}", **REFERENCE)
        panel.set(xlabel="layer", ylabel="effective rank", ylim=(0, 1.05 * max(n, least)))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(figure, [panel], columns=2)


def draw_low_rank(low_rank: Mapping[str, Any], n: int, path: Path) -> None:
    """Error of P V against k, a panel for each layer and each form that was measured; median and 5 to 95 %."""
    layers = low_rank["layers"]
    forms = [form for form in FORMS if layers[0][form]]
    own = {point["k"] for layer in layers for point in layer["projected"].get(OWN, ())}
    with _panels(path, len(layers), parts=len(forms), width=2.6, height=3.0) as (figure, panels):
        for number, layer in enumerate(layers):
            for form, row in zip(forms, panels, strict=True):
                panel = row[number]
                panel.sharey(row[0])
                panel.sharex(panels[0][0])
                for kind, style in KINDS.items():
                    if kind in layer[form]:
                        _draw_errors(panel, layer[form][kind], style, kind)
                ks = [point["k"] for point in layer["projected"]["segment means"]]
                if form == "projected":
                    _draw_promise(panel, n, ks)
                    panel.set_title(f"layer {number}")
                scale_lengths(panel.xaxis, sorted({*own, *(k for k in ks if not _is_close(k, own))}))
                scale_log(panel.yaxis)
                panel.set(xlabel="k", ylabel=FORM_LABELS[form])
                panel.label_outer(remove_inner_ticks=True)
        best = min(layer["projected"]["truncated SVD"][0]["median"] for layer in layers)
        panels[0][0].set_ylim(bottom=min(1e-3, max(1e-6, best / 3)))  # for a large k it has hardly any error
        legend(figure, panels[0])


def _is_close(k: int, others: Collection[int]) -> bool:
    """Whether the label of k would touch that of another one."""
    return any(2 / 3 < k / other < 3 / 2 for other in others)


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
    with _panels(path, len(groups), height=1.7) as (figure, [panels]):
        for panel, own in zip(panels, groups, strict=True):
            magnitudes = torch.stack([one.values.abs().cpu() for one in own]).mean(0).numpy()
            image = _show(panel, magnitudes / max(magnitudes.max(), np.finfo(np.float32).tiny), PowerNorm(0.5, 0, 1))
            panel.set_title(f"{own[0].letters}, {'all layers' if own[0].layer is None else f'layer {own[0].layer}'}")
        _label(panels, "position", "row")
        figure.colorbar(image, ax=panels, label="|entry| / largest", shrink=0.8)


def draw_rows(matrices: Sequence[Mapping[str, Any]], path: Path) -> None:
    """What the rows look at: quartiles and extremes of each statistic, over the rows of the matrices of each layer."""
    groups = [list(own) for _, own in groupby(matrices, lambda one: (one["letters"], one["layer"]))]
    k, n = matrices[0]["k"], matrices[0]["n"]
    segments = row_statistics(adaptive_pooling(torch.tensor(n), k, n, torch.double))
    gaussian = row_statistics(torch.randn((k, n), generator=torch.Generator().manual_seed(0)))
    with picture(path, 2, 2, max(7.5, 1.6 + 0.6 * len(groups)), 6.8, sharex=True) as (figure, panels):
        for panel, kind in zip(panels.flat, STATISTICS, strict=True):
            rows = [np.concatenate([one["rows"][kind] for one in own]) for own in groups]
            boxes = panel.boxplot(rows, whis=(0, 100), widths=0.5, patch_artist=True)
            for own, box in zip(groups, boxes["boxes"], strict=True):
                box.set(facecolor=style_of(4 if own[0]["letters"] == "F" else 6)["color"])
            for median in boxes["medians"]:
                median.set(color="black", linewidth=2)
            panel.axhline(float(segments[kind].median()), color=style_of(2)["color"], ls="--", label="segment means")
            panel.axhline(float(gaussian[kind].median()), label="Gaussian rows", **REFERENCE)
            if kind != "local":
                scale_log(panel.yaxis)
            panel.set_ylabel(NAMES[kind])
            panel.grid(visible=False, axis="x")
        names = [f"{own[0]['letters']}\n{'all' if own[0]['layer'] is None else own[0]['layer']}" for own in groups]
        for panel in panels[1]:
            panel.set_xticks(range(1, len(groups) + 1), names, fontsize="small")
            panel.set_xlabel("matrix and layer")
        legend(figure, [panels[0, 0]])


def draw_use(layers: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Attention onto the rows of each layer, the most used first."""
    with picture(path, 1, 1, 6.4, 4) as (figure, panels):
        panel = panels[0, 0]
        for number, layer in enumerate(layers):
            use = np.maximum(np.sort(np.array(layer["use"]))[::-1], 1e-6)
            share = "" if round(layer["share"], 2) == 1 else f", {layer['share']:.0%} of attention"
            style = style_in_order(number, len(layers))
            panel.plot(np.arange(1, len(use) + 1), use, label=f"layer {number}{share}", **style)
        panel.axhline(1, label="mean row", **REFERENCE)
        scale_log(panel.yaxis)
        panel.set(xlabel="row, the most used first", ylabel="attention onto the row (mean row: 1)")
        legend(figure, [panel], columns=2 if len(layers) > 6 else 3)


def draw_training(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """What changes with updates: a panel for each number, a line for each layer, or one for all.

    A number that hardly changes in any layer has no panel, such as the shape of a projection that is not trained.
    """
    updates = [point["updates"] for point in points]
    values = {name: np.array([point[name] for point in points]) for name in points[0] if name != "updates"}
    names = [name for name, own in values.items() if (np.ptp(own, axis=0) > LEAST_CHANGE * own.max(axis=0)).any()]
    if not names:
        return
    layers = max(values[name].shape[1] for name in names)
    with _panels(path, len(names), columns=3) as (figure, [panels]):
        for panel, name in zip(panels, names, strict=True):
            lines = values[name].T
            for number, line in enumerate(lines):
                style = style_in_order(number, len(lines))
                panel.plot(updates, line, marker="os^D"[number % 4], label=f"layer {number}", **style)
            panel.set_title(NAMES.get(name, name) + (", all layers" if len(lines) < layers else ""))
            panel.ticklabel_format(useOffset=False)
            panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _label(panels, "updates", "", columns=3)
        legend(figure, panels)


def draw_looks(looks: Mapping[str, Any], path: Path) -> None:
    """Maps of the shown tokens, mean over heads, a panel for each model and layer."""
    models, tokens = looks["models"], looks["tokens"]
    maps = [[np.mean(layer, axis=0) * looks["unit"] for layer in model["maps"]] for model in models]
    every = np.stack([own for model in maps for own in model])
    with _panels(path, len(maps[0]), parts=len(models), width=3.6, height=3.8) as (figure, panels):
        for row, model, own_maps in zip(panels, models, maps, strict=True):
            for layer, (panel, own) in enumerate(zip(row, own_maps, strict=True)):
                image = _show(panel, np.maximum(own, 0), PowerNorm(0.5, 0, float(every.max())), aspect="equal")
                panel.set_title(f"{model['attention']}, layer {layer}")
                _name_tokens(panel, tokens, with_text=layer % COLUMNS == 0)
        figure.supxlabel("token that is looked at")
        figure.supylabel("token that looks")
        label = "weight, mean over heads" + (" (negative ones as 0)" if (every < 0).any() else "")
        figure.colorbar(image, ax=[panel for row in panels for panel in row], label=label, shrink=0.8, aspect=40)


def draw_first_token(looks: Mapping[str, Any], path: Path) -> None:
    """What the first token takes of each token in each layer, mean over heads; a panel for each model, of one scale."""
    models, tokens = looks["models"], looks["tokens"]
    first = [[np.mean(layer, axis=0)[0] for layer in model["maps"]] for model in models]
    weights = np.maximum(np.array(first) * looks["unit"], 0)  # (models, L, T)
    scale = PowerNorm(0.5, 0, float(weights.max()))
    layers = len(models[0]["maps"])
    width, height = max(6.0, 1.8 + 0.24 * min(len(tokens), MOST_LABELS)), 1.2 + (0.9 + 0.34 * layers) * len(models)
    with picture(path, len(models), 1, width, height) as (figure, panels):
        for panel, model, own in zip(panels[:, 0], models, weights, strict=True):
            image = _show(panel, own, scale)
            panel.set(title=_no_formula(f"{model['name']} ({model['attention']})"), ylabel="layer")
            panel.set_yticks(range(layers))
            if len(tokens) <= MOST_LABELS:
                panel.set_xticks(range(len(tokens)), [_printable(token) for token in tokens], rotation=90, fontsize=8)
        figure.colorbar(image, ax=[*panels[:, 0]], label="weight")


def _show(panel: Axes, values: np.ndarray, scale: Normalize, aspect: str = "auto") -> AxesImage:
    panel.grid(visible=False)
    return panel.imshow(values, norm=scale, aspect=aspect)  # type: ignore[arg-type]  # one of its literals


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


@contextmanager
def _panels(
    path: Path,
    count: int,
    parts: int = 1,
    columns: int = COLUMNS,
    width: float = 3.2,
    height: float = 2.6,
    **options: Any,
) -> Iterator[tuple[Figure, list[list[Axes]]]]:
    """A picture of panels [part][number]: the parts of a number below each other, `columns` numbers abreast."""
    across = min(columns, count)
    down = parts * math.ceil(count / across)
    with picture(path, down, across, 1 + width * max(2, across), 1 + height * down, **options) as (figure, grid):
        shown = [[grid[n // across * parts + part][n % across] for n in range(count)] for part in range(parts)]
        for panel in grid.flat:
            panel.set_visible(any(panel in row for row in shown))
        yield figure, shown


def _label(panels: Sequence[Axes], across: str, up: str, columns: int = COLUMNS) -> None:
    """Names the axes at the lower and left ends of a grid; a label of the figure would lie on its legend."""
    for number, panel in enumerate(panels):
        if number + columns >= len(panels):
            panel.set_xlabel(across)
        if number % columns == 0:
            panel.set_ylabel(up)
