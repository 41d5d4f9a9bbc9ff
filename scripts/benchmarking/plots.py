"""The pictures of all studies, in one style.

Colours are those of Okabe and Ito, which the colour-blind can tell apart, as long as they suffice; no two curves of a
legend share one. Markers and lines differ as well, for print without colour.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

COLORS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
MARKERS, LINES = "o^sDvPX*<>ph", ("-", "--", "-.", ":")
# What a logarithmic axis may be marked at: the first of these that has three marks or more between its ends.
MARKS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
FINEST, FEWEST, MOST = 4, 3, 8  # marks: about so many where none of these is enough; at least; at most

Curve = Mapping[Any, Sequence[float]]  # by x, one value or several, of seeds say


@dataclass(frozen=True)
class Panel:
    """Curves over one axis.

    Attributes:
        curves: by name; the mean of several values is drawn, with a bar from the lowest to the highest.
        title, x, y: what is written at it.
        scale: of x: "lengths", which are marked at those measured, "log", "linear" or "logit".
        log: whether y is logarithmic.
        beside: by name, levels that depend on no x.
        limits: of y.
    """

    curves: Mapping[str, Curve]
    title: str = ""
    x: str = "sequence length n"
    y: str = ""
    scale: str = "lengths"
    log: bool = True
    beside: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float | None, float | None] = (None, None)


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the curve of each name is drawn."""
    different = list(dict.fromkeys(names))
    colors: Sequence[Any] = COLORS
    if len(different) > len(COLORS):
        colors = [*colormaps["turbo"](np.linspace(0.02, 0.98, len(different)))]
    looks = zip(colors, itertools.cycle(MARKERS), itertools.cycle(LINES), strict=False)
    return {
        name: {"color": color, "marker": marker, "linestyle": line}
        for name, (color, marker, line) in zip(different, looks, strict=False)
    }


def draw(panels: Sequence[Sequence[Panel]], path: Path, title: str = "") -> None:
    """Saves a figure of panels, line by line, with one legend; in a line, y axes of one name are one."""
    rows, columns = len(panels), len(panels[0])
    figure = Figure(figsize=(1.6 + 3.6 * columns, 0.9 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    flat = [panel for line in panels for panel in line]
    looks = styles(name for panel in flat for name in (*panel.curves, *panel.beside))
    for line, drawn in zip(axes, panels, strict=True):
        for axis, panel in zip(line, drawn, strict=True):
            if axis is not line[0] and panel.y == drawn[0].y:
                axis.sharey(line[0])
            _fill(axis, panel, looks)
        for axis, panel in zip(line, drawn, strict=True):  # once all curves of a shared axis are there
            _scale(axis, panel)
    labelled = [axis.get_legend_handles_labels() for axis in axes.flat]
    known = {name: look for looks, names in labelled for look, name in zip(looks, names, strict=True)}
    names = [name for name in looks if name in known]
    figure.legend([known[name] for name in names], names, loc="outside right upper", frameon=False, fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)


def _fill(axis: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for name, curve in panel.curves.items():
        known = {x: values for x, values in sorted(curve.items()) if len(values)}
        means = [statistics.mean(values) for values in known.values()]
        down = [mean - min(values) for mean, values in zip(means, known.values(), strict=True)]
        up = [max(values) - mean for mean, values in zip(means, known.values(), strict=True)]
        bars = [down, up] if any(down + up) else None
        axis.errorbar([*known], means, yerr=bars, capsize=3, markersize=4, label=name, **looks[name])
    for name, level in panel.beside.items():
        axis.axhline(level, label=name, **{**looks[name], "marker": None})
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axis.grid(color="0.9")


def _scale(axis: Axes, panel: Panel) -> None:
    if panel.log:
        axis.set_yscale("log")
        mark(axis.yaxis)
    axis.set_ylim(*panel.limits)
    if panel.scale == "lengths":
        lengths = sorted({int(n) for curve in panel.curves.values() for n in curve})
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths])
        axis.xaxis.set_minor_locator(NullLocator())
    elif panel.scale == "log":
        axis.set_xscale("log")
        mark(axis.xaxis)
    elif panel.scale == "logit":
        axis.set_xscale("logit")
        axis.set_xticks([0.01, 0.1, 0.5, 0.9, 0.99], ["0.01", "0.1", "0.5", "0.9", "0.99"])
        axis.xaxis.set_minor_locator(NullLocator())


def mark(axis: Axis) -> None:
    """Marks a logarithmic axis so that it can be read, however little of it is shown."""
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(marks(*sorted(axis.get_view_interval())))
    axis.set_major_formatter("{x:,g}")


def marks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, both above zero, at which a logarithmic axis is marked."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in MARKS:
        found = [float(f"{digit}e{power}") for power in powers for digit in digits]
        found = [x for x in found if low <= x <= high]
        if len(found) >= FEWEST:
            return found[:: -(-len(found) // MOST)]
    return [float(x) for x in MaxNLocator(FINEST).tick_values(low, high) if low <= x <= high]


def draw_dots(values: Mapping[str, Sequence[float]], label: str, path: Path) -> None:
    """A dot for each seed of a variant, and a line at their mean."""
    figure = Figure(figsize=(6.4, 1.2 + 0.4 * len(values)), layout="constrained")
    panel = figure.subplots()
    for place, own in enumerate(values.values()):
        panel.plot(own, [place] * len(own), "o", color=COLORS[0], alpha=0.5)
        panel.vlines(statistics.mean(own), place - 0.3, place + 0.3, color=COLORS[1], linewidth=2)
    panel.set_yticks(range(len(values)), [*values])
    panel.invert_yaxis()
    panel.set_xlabel(f"{label}: a dot per seed, a line at the mean")
    panel.grid(axis="x", color="0.9")
    figure.savefig(path, dpi=140)


def draw_map(values: Mapping[str, Mapping[str, float]], title: str, path: Path) -> None:
    """Percentages by row and column as a map with its numbers."""
    columns = list(next(iter(values.values())))
    figure = Figure(figsize=(2.6 + 0.7 * len(columns), 1.2 + 0.3 * len(values)), layout="constrained")
    panel = figure.subplots()
    numbers = [[*own.values()] for own in values.values()]
    panel.imshow(numbers, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, own in enumerate(numbers):
        for column, value in enumerate(own):
            color = "black" if value > 60 else "white"
            panel.text(column, row, f"{value:.0f}", ha="center", va="center", color=color, fontsize="small")
    panel.set_xticks(range(len(columns)), columns)
    panel.set_yticks(range(len(values)), [*values], fontsize="small")
    panel.set_title(title, fontsize="medium")
    figure.savefig(path, dpi=140)


def draw_frontier(points: Mapping[str, tuple[float, float]], x: str, y: str, path: Path) -> None:
    """Cost and gain of each name, and a line through those that no other beats."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    best = frontier(points)
    panel.plot(*zip(*(points[name] for name in best), strict=True), color="0.5", linewidth=1.5, zorder=1)
    for name, look in styles(points).items():
        panel.plot(*points[name], **{**look, "linestyle": ""}, markersize=8, label=name)
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    panel.set(xlabel=x, ylabel=y, title="on the line: nothing cheaper reaches as much")
    panel.set_xlim(0, None)
    panel.grid(color="0.9")
    figure.savefig(path, dpi=140)


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names of the points, cost and gain, that no other beats: none costs less and reaches as much, or more.

    They are in the order of their costs.
    """
    best: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not best or points[name][1] > points[best[-1]][1]:
            best.append(name)
    return best
