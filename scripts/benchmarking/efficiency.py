"""Efficiency lengths: the n from which a mechanism costs less than full attention, from the suite ``efficiency``.

The measure is that of the Comprehensive Attention Benchmark (Zhang et al. 2023, arXiv 2210.07661), there for one
attention on a GPU; here for a layer with its feed-forward network and embedding, in inference and in a training step.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .plots import scale_lengths
from .presets import BEST
from .rows import Row

REFERENCE = "softmax"
COSTS = {"seconds": "time", "MiB": "memory"}

# Okabe and Ito's palette, which the colour-blind can tell apart; markers differ for print without colour.
STYLES: dict[str, dict[str, Any]] = {
    "linformer": {"color": "#0072B2", "marker": "o"},
    BEST: {"color": "black", "marker": "X"},
    "efficient": {"color": "#E69F00", "marker": "s"},
    "nystrom": {"color": "#009E73", "marker": "^"},
    "long-short": {"color": "#CC79A7", "marker": "D"},
}


def efficiency_length(ratios: Mapping[int, float]) -> float:
    """The n from which a mechanism costs less than full attention at every longer n that was measured.

    Between two measured lengths the logarithm of the ratio is taken to be linear in log n.

    Args:
        ratios: the mechanism's cost divided by full attention's, by n, for at least one n.

    Returns:
        n; 0 where it costs less at every n, infinity where it does not at the longest.
    """
    lengths = sorted(ratios)
    dear = [n for n in lengths if ratios[n] >= 1]
    if not dear:
        return 0.0
    last = dear[-1]
    if last == lengths[-1]:
        return math.inf
    following = lengths[lengths.index(last) + 1]
    above, below = math.log(ratios[last]), math.log(ratios[following])
    return float(last * (following / last) ** (above / (above - below)))


def cost_ratios(rows: Sequence[Row], cost: str) -> dict[tuple[str, str, str], dict[int, float]]:
    """Cost as a multiple of full attention's by width, phase and mechanism, and by n, where both were measured."""
    known = {(row["group"], row["note"] or row["model"]): row for row in rows if cost in row}
    ratios: dict[tuple[str, str, str], dict[int, float]] = {}
    for (group, mechanism), row in known.items():
        reference = known.get((group, REFERENCE))
        if mechanism != REFERENCE and reference:
            key = (_width(row), row["phase"], mechanism)
            ratios.setdefault(key, {})[row["n"]] = row[cost] / reference[cost]
    return ratios


def _width(row: Row) -> str:
    """Whose width a row has, from the name of its group."""
    return row["group"].partition(",")[0]


def efficiency_table(rows: Sequence[Row]) -> str:
    """The efficiency lengths in Markdown, a row for each width, phase and mechanism."""
    columns = {cost: ratios for cost in COSTS if (ratios := cost_ratios(rows, cost))}
    lines = [f"| width | | mechanism | {' | '.join(f'less {COSTS[cost]} from n' for cost in columns)} |"]
    lines.append("|---" * (3 + len(columns)) + "|")
    for key in dict.fromkeys(key for ratios in columns.values() for key in ratios):
        width, phase, mechanism = key
        cells = [_cell(ratios.get(key, {})) for ratios in columns.values()]
        lines.append(f"| {width} | {phase} | `{mechanism}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(ratios: Mapping[int, float]) -> str:
    if not ratios:
        return "not measured"
    length = efficiency_length(ratios)
    if length == 0:
        return f"{min(ratios):,} or less"
    return f"not up to {max(ratios):,}" if math.isinf(length) else f"{length:,.0f}"


def draw_efficiency(rows: Sequence[Row], path: Path) -> None:
    """Cost as a multiple of full attention's against n: a row of panels for each cost and phase, a column per width."""
    phases = list(dict.fromkeys(row["phase"] for row in rows))
    columns = {(phase, cost): ratios for phase in phases for cost in COSTS if (ratios := cost_ratios(rows, cost))}
    widths = list(dict.fromkeys(_width(row) for row in rows))
    figure = Figure(figsize=(3.4 * len(widths), 0.6 + 2.2 * len(columns)), layout="constrained")
    panels = figure.subplots(len(columns), len(widths), squeeze=False, sharey="row", sharex=True)
    for line, ((phase, cost), ratios) in zip(panels, columns.items(), strict=True):
        for panel, width in zip(line, widths, strict=True):
            for (own, when, mechanism), curve in ratios.items():
                if (own, when) == (width, phase):
                    panel.plot([*curve], [*curve.values()], label=mechanism, **STYLES[mechanism])
            _finish(panel, sorted({row["n"] for row in rows}))
        line[0].set_ylabel(f"{COSTS[cost]}, {phase}")
    for panel, width in zip(panels[0], widths, strict=True):
        panel.set_title(f"width of {width}")
    for panel in panels[-1]:
        panel.set_xlabel("sequence length n")
    labelled = [panel.get_legend_handles_labels() for panel in panels.flat]
    curves = {label: curve for handles, labels in labelled for curve, label in zip(handles, labels, strict=True)}
    figure.suptitle("multiples of full attention's cost")
    figure.legend(
        curves.values(), curves.keys(), loc="outside lower center", ncols=len(STYLES), frameon=False, fontsize="small"
    )
    figure.savefig(path, dpi=110)


def _finish(panel: Axes, lengths: Sequence[int]) -> None:
    panel.axhline(1, color="0.3", linewidth=1)
    scale_lengths(panel, lengths)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_locator(LogLocator(base=2, subs=(1,)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(color="0.9")
