"""The pictures of all studies, in the style of the package's own."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from fairseq_linformer.system.plotting import (
    COLORS,
    REFERENCE,
    legend,
    picture,
    scale_lengths,
    scale_log,
    style_in_order,
    style_of,
)

Curve = Mapping[Any, Sequence[float]]  # by x, one value or several, of seeds say


@dataclass(frozen=True)
class Panel:
    """Curves over one axis.

    Attributes:
        curves: by name; the mean of several values is drawn, with a bar from the lowest to the highest.
        title, x, y: what is written at it.
        scale: of x: "lengths", which are marked at those measured, "log", "linear" or "logit".
        log: whether y is logarithmic.
        beside: by name, levels that depend on no x; one with the name of a curve has its colour.
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
    """How the curve of each name is drawn: no two have one colour."""
    different = list(dict.fromkeys(names))
    many = len(different) > len(COLORS)
    return {
        name: {**style_of(number), **(style_in_order(number, len(different)) if many else {})}
        for number, name in enumerate(different)
    }


def draw(panels: Sequence[Sequence[Panel]], path: Path, title: str = "") -> None:
    """Saves a figure of panels, line by line, with one legend; in a line, y axes of one name are one."""
    looks = styles(name for line in panels for panel in line for name in (*panel.curves, *panel.beside))
    rows, columns = len(panels), len(panels[0])
    width = 1.6 + 3.6 * columns
    # Labels in a line of the legend, each with its mark, in inches
    across = max(1, min(1 + 2 * columns, int(width / (0.6 + 0.075 * max(map(len, looks))))))
    height = 0.9 + 3.0 * rows + 0.2 * (len(looks) // across)
    with picture(path, rows, columns, width, height) as (figure, axes):
        for line, drawn in zip(axes, panels, strict=True):
            for axis, panel in zip(line, drawn, strict=True):
                if axis is not line[0] and panel.y == drawn[0].y:
                    axis.sharey(line[0])
                _fill(axis, panel, looks)
            for axis, panel in zip(line, drawn, strict=True):  # once all curves of a shared axis are there
                _scale(axis, panel)
        legend(figure, [*axes.flat], across)
        figure.suptitle(title)


@dataclass(frozen=True)
class Dots:
    """Values of things that have names, a line for each.

    Attributes:
        series: by name, and by that of the thing, one value or several; the mean is drawn, with a bar.
        x: what is written below.
    """

    series: Mapping[str, Curve]
    x: str


def draw_dots(panels: Sequence[Dots], path: Path) -> None:
    """Saves a line of panels with the same things from the top down, those of the first series of the first panel."""
    names = [*next(iter(panels[0].series.values()))]
    with picture(path, 1, len(panels), 1.6 + 3.6 * len(panels), 1.2 + 0.21 * len(names), sharey=True) as (figure, axes):
        for axis, panel in zip(axes[0], panels, strict=True):
            for number, (label, own) in enumerate(panel.series.items()):
                things, means, bars = _means(own)
                lines, look = [names.index(thing) for thing in things], {**style_of(number), "linestyle": ""}
                axis.errorbar(means, lines, xerr=bars, capsize=3, label=label, **look)
            axis.set(xlabel=panel.x)
            scale_log(axis.xaxis)
        axes[0][0].set_yticks(range(len(names)), names)
        axes[0][0].invert_yaxis()
        legend(figure, [*axes.flat])


def _means(curve: Curve) -> tuple[list[Any], list[float], list[list[float]] | None]:
    """Where something was measured, its mean there, and what a bar has below and above it, if values differ."""
    known = {x: values for x, values in curve.items() if len(values)}
    means = [statistics.mean(values) for values in known.values()]
    down = [mean - min(values) for mean, values in zip(means, known.values(), strict=True)]
    up = [max(values) - mean for mean, values in zip(means, known.values(), strict=True)]
    return [*known], means, [down, up] if any(down + up) else None


def _fill(axis: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> None:
    for name, curve in panel.curves.items():
        places, means, bars = _means(dict(sorted(curve.items())))
        axis.errorbar(places, means, yerr=bars, capsize=3, label=name, **looks[name])
    for name, level in panel.beside.items():
        label = None if name in panel.curves else name
        axis.axhline(level, label=label, **{**REFERENCE, **looks[name], "marker": None})
    axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)


def _scale(axis: Axes, panel: Panel) -> None:
    if panel.log:
        scale_log(axis.yaxis)
    axis.set_ylim(*panel.limits)
    if panel.scale == "lengths":
        scale_lengths(axis.xaxis, sorted({int(n) for curve in panel.curves.values() for n in curve}))
    elif panel.scale == "log":
        scale_log(axis.xaxis)
    elif panel.scale == "logit":
        axis.set_xscale("logit")
        axis.set_xticks([0.01, 0.1, 0.5, 0.9, 0.99], ["0.01", "0.1", "0.5", "0.9", "0.99"])
        axis.xaxis.set_minor_locator(NullLocator())
