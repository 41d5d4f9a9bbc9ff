"""Style of all figures: sizes, fonts, grid, colours and readable ticks. Requires matplotlib.

All `COLORS` are distinct for colour-blind readers: Okabe and Ito's palette, then those colours of Paul Tol's
"muted" palette that differ from it. Markers and lines differ too, for print without colour.
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

STYLE: Any = {  # Any, as matplotlib types the keys as literals
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
MOST_TICKS = 8  # on an axis of lengths
MOST_COLUMNS = 6  # of a legend


@contextmanager
def picture(
    path: Path, rows: int, columns: int, width: float, height: float, **options: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Yield a figure of so many inches and its panels, (rows, columns), and save it as PNG when the block ends.

    The options are those of ``Figure.subplots``: sharex, sharey.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)
        figure.savefig(path)


def style_of(number: int) -> dict[str, Any]:
    """Return the colour, marker and line of a curve by its index in the legend.

    The first 208 styles are distinct; the first 16 differ in colour.
    """
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": LINES[number % len(LINES)],
    }


def style_in_order(number: int, count: int) -> dict[str, Any]:
    """Return the colour and line of one of `count` ordered curves, such as layers, from dark to bright.

    The brightest colours of the scale are left out, as they print badly.
    """
    return {"color": colormaps["viridis"](0.85 * number / max(1, count - 1)), "linestyle": LINES[number % len(LINES)]}


class ReadableLogLocator(LogLocator):
    """Ticks of a logarithmic axis that are labelled even on a narrow range.

    A range of less than a factor of 8 has linear ticks, one of less than 300 has ticks at 1, 2 and 5 of each decade,
    and a larger one has ticks at powers of ten.
    """

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        if high < 8 * low:
            return [tick for tick in MaxNLocator(5).tick_values(low, high) if tick > 0]
        subs = (1, 2, 5) if high < 300 * low else (1,)
        return LogLocator(subs=subs, numticks=20).tick_values(low, high)


def scale_log(axis: Axis) -> None:
    """Make an axis logarithmic, with plain numbers instead of powers of ten as labels."""
    _scale(axis, ReadableLogLocator())


def scale_lengths(axis: Axis, lengths: Sequence[int]) -> None:
    """Make an axis of lengths logarithmic, with ticks at `lengths` or at every second or third: 512, 1k, 2k."""
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


def legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Add one legend below all panels, with every label once, in as many columns as the figure is wide enough for."""
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    for columns in range(min(MOST_COLUMNS, len(handles)), 0, -1):
        box = figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
        if columns == 1 or box.get_window_extent().width <= figure.bbox.width:
            break
        box.remove()
