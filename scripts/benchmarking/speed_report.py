"""The report of the study ``speed``, from its rows: the tables of results.md, and the pictures beside it."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_linformer.system.files import write_whole

from .plots import Panel, draw
from .suites import EFFICIENCY, PROJECTED_LENGTHS, SUITES
from .tables import table
from .variants import read_data

Row = dict[str, Any]

TABLE3 = {
    "how many times faster than `softmax`": ("seconds", "linformer_time"),
    "how many times less memory, by the peak": ("MiB", "linformer_memory"),
    "how many times less memory, by the largest batch": ("largest_batch", "linformer_memory"),
}
LABELS = {
    "linformer": "Linformer (ours)",
    "fairseq-example": "Linformer (fairseq's example)",
    "softmax": "full attention (ours)",
    "fairseq-roberta": "full attention (fairseq)",
}
COSTS = {"seconds": ("time", "s", 1), "MiB": ("peak memory", "GiB", 1024)}  # in words, unit, and how many of the row's
REFERENCE = EFFICIENCY[0]


def write_report(out: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Writes results.md and the pictures into a folder, and returns the text of results.md."""
    parts = [", ".join(f"{name} {value}" for name, value in settings.items())]
    by_suite = {suite: [row for row in rows if row["suite"] == suite] for suite in SUITES}
    for suite, own in by_suite.items():
        if own:
            about = (inspect.getdoc(SUITES[suite]) or "").partition("\n\nRaises:")[0]
            parts.append(f"## {suite}\n\n{about}\n\n{rows_table(own)}")
    measured = {suite: [row for row in own if "skipped" not in row] for suite, own in by_suite.items()}
    if own := measured["overview"]:
        draw_costs(own, lambda row: LABELS[row["model"]], "a training step on one row", out / "overview.png")
    if own := by_suite["table3"]:
        for title, (what, paper) in TABLE3.items():
            if any(what in row for row in own):
                parts.append(f"## Table 3: {title}\n\n{savings(own, what, read_data('published')[paper])}")
        draw_figure2([row for row in own if "seconds" in row], out / "figure2.png")
    if own := [row for row in measured["growth"] if "MiB" in row]:
        parts.append(f"## Exponents of growth with n\n\n{exponents(own)}")
        draw_costs(own, lambda row: f"{row['model']}, {row['phase']}", "one row", out / "growth.png")
    if any(cost_ratios(measured["efficiency"], cost) for cost in COSTS):  # full attention may have been too slow
        parts.append(f"## Efficiency lengths\n\n{efficiency_table(measured['efficiency'])}")
        draw_efficiency(measured["efficiency"], out / "efficiency.png")
    text = "\n\n".join(part.rstrip() for part in parts) + "\n"
    write_whole(out / "results.md", text)
    return text


def rows_table(rows: Sequence[Row]) -> str:
    """The rows of a suite, group after group."""
    columns: dict[str, Callable[[Row], str]] = {
        "group": lambda row: str(row["group"]),
        "model": lambda row: f"`{row['model']}` {row['note']}".rstrip(),
        "ms (quartiles)": _milliseconds,
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}" if "seconds" in row else "",
        "times as long as `linformer`": partial(_beside_linformer, rows),
        "MiB": lambda row: f"{row['MiB']:,.0f}" if "MiB" in row else row.get("memory_skipped", ""),
        "fraction of the measured GEMM peak": lambda row: _percent(row.get("gemm_fraction")),
    }
    return table(columns, rows)


def _milliseconds(row: Row) -> str:
    if "skipped" in row:
        return f"not measured: {row['skipped']}"
    if "seconds" not in row:
        return ""
    return f"{1000 * row['seconds']:,.1f} ({1000 * row['low']:,.1f} to {1000 * row['high']:,.1f})"


def _beside_linformer(rows: Sequence[Row], row: Row) -> str:
    """Time per token as a multiple of Linformer's in the same group; "" if one is not timed."""
    timed = [other for other in rows if other["group"] == row["group"] and "seconds" in other]
    base = next((other for other in timed if other["model"] == "linformer"), None)
    return f"{base['tokens_per_second'] / row['tokens_per_second']:.2f}" if base and "seconds" in row else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def savings(rows: Sequence[Row], what: str, paper: Mapping[int, Sequence[float]]) -> str:
    """Softmax attention's cost divided by Linformer's, in the column `what`; the paper's figure in brackets."""

    def cell(k: int, n: int) -> str:
        own = [row for row in rows if row["n"] == n]
        softmax = next(row for row in own if row["model"] == "softmax").get(what)
        theirs = dict(zip(PROJECTED_LENGTHS, paper.get(n, ()), strict=False))  # its rows end at k = n / 2
        value = next((row for row in own if row["model"] == "linformer" and row["k"] == k), {}).get(what)
        brackets = f" ({theirs[k]})" if k in theirs else ""
        if value and softmax:
            return f"{value / softmax if what == 'largest_batch' else softmax / value:.1f}{brackets}"
        return f"not measured{brackets}" if k < n else ""

    columns = {f"k = {k}": partial(cell, k) for k in PROJECTED_LENGTHS}
    return table({"n": str, **columns}, dict.fromkeys(row["n"] for row in rows))


def exponents(rows: Sequence[Row]) -> str:
    """The slopes of log cost against log n, by least squares."""
    found = by(lambda row: (row["model"], row["phase"]), rows)

    def slope(what: str, own: Sequence[Row]) -> str:
        costs = [row[what] for row in own if what in row]
        return f"{exponent([row['n'] for row in own], costs):.2f}" if costs else ""

    columns: dict[str, Callable[[Sequence[Row]], str]] = {
        "model": lambda own: f"`{own[0]['model']}`",
        "phase": lambda own: str(own[0]["phase"]),
        "n": lambda own: f"{own[0]['n']} to {own[-1]['n']}",
        "time": partial(slope, "seconds"),
        "memory": partial(slope, "MiB"),
    }
    return table(columns, [own for own in found.values() if len(own) > 1])


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """a of cost = b n^a, fitted to the logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])


def by(key: Callable[[Row], Any], rows: Sequence[Row]) -> dict[Any, list[Row]]:
    """The rows by a key, in the order in which its values first appear."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def efficiency_length(ratios: Mapping[int, float]) -> float:
    """The n from which a mechanism costs less than full attention at every longer n that was measured.

    The measure is that of the Comprehensive Attention Benchmark (Zhang et al. 2023, arXiv 2210.07661), there for one
    attention on a GPU; here for a layer with its feed-forward network and embedding. Between two measured lengths the
    logarithm of the ratio is taken to be linear in log n.

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
            width = group.partition(",")[0]
            ratios.setdefault((width, row["phase"], mechanism), {})[row["n"]] = row[cost] / reference[cost]
    return ratios


def efficiency_table(rows: Sequence[Row]) -> str:
    """The efficiency lengths, a row for each width, phase and mechanism."""
    ratios = {cost: found for cost in COSTS if (found := cost_ratios(rows, cost))}
    columns = {f"less {COSTS[cost][0]} from n": partial(_length, found) for cost, found in ratios.items()}
    keys = {"width": lambda key: key[0], "phase": lambda key: key[1], "mechanism": lambda key: f"`{key[2]}`"}
    return table({**keys, **columns}, dict.fromkeys(key for found in ratios.values() for key in found))


def _length(ratios: Mapping[tuple[str, str, str], Mapping[int, float]], key: tuple[str, str, str]) -> str:
    if key not in ratios:
        return "not measured"
    length = efficiency_length(ratios[key])
    if length == 0:
        return f"{min(ratios[key]):,} or less"
    return f"not up to {max(ratios[key]):,}" if math.isinf(length) else f"{length:,.0f}"


def draw_costs(rows: Sequence[Row], label: Callable[[Row], str], title: str, path: Path) -> None:
    """Time, where it is measured, and memory against n, on logarithmic axes."""
    panels = []
    for what, (words, unit, scale) in COSTS.items():
        known = by(label, [row for row in rows if what in row])
        curves = {name: {row["n"]: [row[what] / scale] for row in own} for name, own in known.items()}
        if curves:
            panels.append(Panel(curves, words, y=f"{words} ({unit})"))
    draw([panels], path, title)


def draw_figure2(rows: Sequence[Row], path: Path) -> None:
    """Time of a batch of a fixed number of tokens against n, as the paper's figure 2."""
    found = by(lambda row: f"Linformer, {row['note']}" if row["note"] else "softmax", rows)
    curves = {name: {row["n"]: [1e6 / row["tokens_per_second"]] for row in own} for name, own in found.items()}
    if curves:
        draw([[Panel(curves, y="microseconds per token, inference")]], path)


def draw_efficiency(rows: Sequence[Row], path: Path) -> None:
    """Cost as a multiple of full attention's against n: a line of panels per phase and cost, a column per width."""
    lines: dict[tuple[str, str], dict[str, dict[str, dict[int, float]]]] = {}
    widths = list(dict.fromkeys(row["group"].partition(",")[0] for row in rows))
    for phase in dict.fromkeys(row["phase"] for row in rows):
        for cost in COSTS:
            for (width, when, mechanism), ratios in cost_ratios(rows, cost).items():
                if when == phase:
                    line = lines.setdefault((phase, cost), {own: {} for own in widths})
                    line[width][mechanism] = ratios
    panels: list[list[Panel]] = []
    for (phase, cost), line in lines.items():
        panels.append([])
        for width, own in line.items():
            curves = {name: {n: [ratio] for n, ratio in ratios.items()} for name, ratios in own.items()}
            y, beside = f"{COSTS[cost][0]}, {phase}", {"full attention": 1.0}
            panels[-1].append(Panel(curves, f"width of {width}", y=y, beside=beside))
    draw(panels, path, "multiples of full attention's cost")
