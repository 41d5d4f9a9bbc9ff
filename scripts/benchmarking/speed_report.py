"""The report of the study ``speed``, from its rows: the tables of results.md, and a picture for each suite."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_linformer.system.files import write_whole

from .plots import Panel, draw
from .suites import SUITES
from .tables import table

Row = dict[str, Any]
Key = tuple[int, str, str]  # width, phase and model of a curve

COSTS = {"seconds": "time", "MiB": "peak memory"}
REFERENCE = "softmax"
RELATIVE = ("efficiency",)  # suites whose picture has multiples of full attention's costs


def write_report(out: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Writes results.md and the pictures into a folder, and returns the text of results.md."""
    parts = [", ".join(f"{name} {value}" for name, value in settings.items())]
    for suite, build in SUITES.items():
        own = [row for row in rows if row["suite"] == suite]
        if not own:
            continue
        parts.append(f"## {suite}\n\n{inspect.getdoc(build)}\n\n{rows_table(own)}")
        costs = [cost for cost in COSTS if any(len(by_n) > 1 for by_n in by_length(own, cost).values())]
        parts += [f"### {suite}: {COSTS[cost]} against n\n\n{lengths_table(own, cost)}" for cost in costs]
        if costs:
            draw_suite(own, out / f"{suite}.png", suite in RELATIVE)
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
        "fraction of the measured GEMM peak": lambda row: (
            f"{100 * row['gemm_fraction']:.0f} %" if "gemm_fraction" in row else ""
        ),
    }
    return table(columns, rows)


def _milliseconds(row: Row) -> str:
    if "skipped" in row:
        return f"not measured: {row['skipped']}"
    if "seconds" not in row:
        return ""
    return f"{1000 * row['seconds']:,.1f} ({1000 * row['low']:,.1f} to {1000 * row['high']:,.1f})"


def _beside_linformer(rows: Sequence[Row], row: Row) -> str:
    """Time as a multiple of Linformer's in the same group; "" if one is not timed."""
    timed = [other for other in rows if other["group"] == row["group"] and "seconds" in other]
    base = next((other for other in timed if other["model"] == "linformer"), None)
    return f"{row['seconds'] / base['seconds']:.2f}" if base and "seconds" in row else ""


def by_length(rows: Sequence[Row], cost: str) -> dict[Key, dict[int, float]]:
    """What a batch costs by width, phase and model with its note, and by n."""
    found: dict[Key, dict[int, float]] = {}
    for row in rows:
        if cost in row:
            key = row["d"], row["phase"], f"{row['model']} {row['note']}".rstrip()
            found.setdefault(key, {})[row["n"]] = row[cost]
    return found


def multiples(costs: Mapping[Key, Mapping[int, float]]) -> dict[Key, dict[int, float]]:
    """Costs of what is not ``REFERENCE`` as multiples of its, where both were measured."""
    found = {}
    for (width, phase, model), own in costs.items():
        reference = costs.get((width, phase, REFERENCE), {})
        ratios = {n: cost / reference[n] for n, cost in own.items() if n in reference}
        if ratios and model != REFERENCE:
            found[width, phase, model] = ratios
    return found


def lengths_table(rows: Sequence[Row], cost: str) -> str:
    """For each model how often full attention's cost is its own, from which n it costs less, and how it grows with n.

    The exponents are of batches of one row: slopes of log cost against log n, by least squares.
    """
    costs = by_length(rows, cost)
    ratios = multiples(costs)
    columns: dict[str, Callable[[Key], str]] = {
        "d": lambda key: str(key[0]),
        "phase": lambda key: key[1],
        "model": lambda key: f"`{key[2]}`",
    }
    if ratios:
        for n in sorted({row["n"] for row in rows}):
            columns[f"`{REFERENCE}` / it, n={n}"] = partial(_saving, ratios, n)
        columns["less from n"] = partial(_length, ratios)
    if all(row["rows"] == 1 for row in rows):
        columns["n to the power of"] = lambda key: f"{exponent(costs[key]):.2f}" if len(costs[key]) > 1 else ""
    return table(columns, costs)


def _saving(ratios: Mapping[Key, Mapping[int, float]], n: int, key: Key) -> str:
    return f"{1 / ratios[key][n]:.2f}" if n in ratios.get(key, {}) else ""


def _length(ratios: Mapping[Key, Mapping[int, float]], key: Key) -> str:
    if key not in ratios:
        return ""
    length = efficiency_length(ratios[key])
    if length == 0:
        return f"{min(ratios[key]):,} or less"
    return f"not up to {max(ratios[key]):,}" if math.isinf(length) else f"{length:,.0f}"


def exponent(costs: Mapping[int, float]) -> float:
    """a of cost = b n^a, fitted to the logarithms of costs by n."""
    return float(np.polyfit(np.log([*costs]), np.log([*costs.values()]), 1)[0])


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


def draw_suite(rows: Sequence[Row], path: Path, relative: bool) -> None:
    """Time per token and memory against n, or multiples of full attention's; a line for each phase and cost.

    Widths stand side by side.
    """
    phases = dict.fromkeys(row["phase"] for row in rows)
    draw([line for phase in phases for line in _lines(rows, phase, relative)], path)


def _lines(rows: Sequence[Row], phase: str, relative: bool) -> Iterator[list[Panel]]:
    per_token = [{**row, "seconds": 1e6 / row["tokens_per_second"]} if "seconds" in row else row for row in rows]
    for cost, words in COSTS.items():
        costs = by_length(per_token, cost)
        unit = f"multiples of `{REFERENCE}`" if relative else {"seconds": "microseconds per token", "MiB": "MiB"}[cost]
        beside = {REFERENCE: 1.0} if relative else {}
        shown = multiples(costs) if relative else costs
        panels = []
        for width in dict.fromkeys(row["d"] for row in rows):
            curves = {
                model: {n: [x] for n, x in own.items()}
                for (d, when, model), own in shown.items()
                if (d, when) == (width, phase)
            }
            panels.append(Panel(curves, f"d = {width}, {phase}", y=f"{words}, {unit}", beside=beside))
        if any(panel.curves for panel in panels):
            yield panels
