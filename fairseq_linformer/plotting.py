"""The style of all pictures: sizes, fonts, grid, colours, and axes whose ticks can be read. It needs matplotlib.

Two of the first `COLORS` never look alike, also to the colour-blind: Okabe and Ito's palette, then those of Paul Tol's
"muted" that are in no other's way. Markers and lines differ too, for print without colour.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, Locator, LogLocator, MaxNLocator, NullLocator

STYLE: Any = {  # matplotlib knows its keys as literals
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": "medium",
    "font.size": 10,
    "grid.color": "0.9",
    "image.cmap": "viridis",
    "legend.fontsize": "small",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.dpi": 130,
}
COLORS: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#000000", "#56B4E9", "#999999")
COLORS += ("#882255", "#999933", "#332288", "#F0E442", "#661100", "#AA4499", "#117733", "#DDCC77")
MARKERS = "os^DvX*P<>phd"
LINES = ("-", "--", "-.", ":")
REFERENCE: dict[str, Any] = {"color": "0.4", "linestyle": ":", "linewidth": 1.2}  # of what no variant gave, as n
MOST_TICKS = 8  # of an axis of lengths


@contextmanager
def picture(
    path: Path, rows: int, columns: int, width: float, height: float, **options: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure of panels in this style; it is saved when the block ends.

    Args:
        path: of the PNG.
        rows, columns: of panels.
        width, height: of the whole figure, in inches.
        options: as ``Figure.subplots`` takes them: sharex, sharey.

    Yields:
        The figure and its panels, (rows, columns).
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)
        figure.savefig(path)


def style_of(number: int) -> dict[str, Any]:
    """Colour, marker and line of a curve by its number in the legend, from 0: no two alike among the first 208.

    The first 16 differ in colour.
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
    }


def style_in_order(number: int, count: int) -> dict[str, Any]:
    """Colour and line of one of `count` curves that have an order, as layers do: from dark to bright.

    The brightest colours of the scale are left out, as they print badly.
    """
    return {"color": colormaps["viridis"](0.85 * number / max(1, count - 1)), "linestyle": LINES[number % len(LINES)]}


class ReadableLogLocator(Locator):
    """Ticks of a logarithmic axis that has labels however narrow its range is.

    A range of less than a factor of 8 is marked as a linear axis is, one of up to 300 at 1, 2 and 5 of each decade, one
    beyond that at powers of ten.
    """

    def __call__(self) -> Sequence[float]:
        assert self.axis is not None  # matplotlib sets it
        return self.tick_values(*self.axis.get_view_interval())

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        if high < 8 * low:
            return [tick for tick in MaxNLocator(5).tick_values(low, high) if tick > 0]
        subs = (1, 2, 5) if high < 300 * low else (1,)
        return LogLocator(subs=subs, numticks=20).tick_values(low, high)


def scale_log(axis: Axis) -> None:
    """A logarithmic axis of any range, with numbers as people write them."""
    _scale(axis, ReadableLogLocator())


def scale_lengths(axis: Axis, lengths: Sequence[int]) -> None:
    """A logarithmic axis of n, k or numbers of rows, marked at those given, or every second or third: 512, 1k, 2k."""
    step = math.ceil(len(lengths) / MOST_TICKS)
    _scale(axis, FixedLocator(sorted(lengths, reverse=True)[::step]))


def _scale(axis: Axis, locator: Locator) -> None:
    panel = axis.axes
    (panel.set_xscale if axis is panel.xaxis else panel.set_yscale)("log")
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: _as_text(value))


def _as_text(value: float) -> str:
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:,.0f}k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def legend(figure: Figure, panels: Sequence[Axes], columns: int = 6) -> None:
    """One legend below all panels, with every label once."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=min(columns, len(found)))
