"""The benchmark's report, from its rows: the tables of results.md, and the plots beside it."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_linformer.system.files import write_whole

from .efficiency import COSTS, cost_ratios, draw_efficiency, efficiency_table
from .plots import draw_figure2, draw_growth, draw_overview
from .rows import Row, by
from .suites import PROJECTED_LENGTHS, SUITES

# Wang et al. 2020, table 3: by n, for k = 128, 256, 512, 1024 and 2048, against the Transformer.
PAPER_TIME = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32768: (13, 12, 11, 8.8, 5.0),
    65536: (20, 18, 16, 14, 7.9),
}
PAPER_MEMORY = {
    512: (1.7, 1.5),
    1024: (3.0, 2.9, 1.8),
    2048: (6.1, 5.6, 3.6, 2.0),
    4096: (14, 13, 8.3, 4.3, 2.3),
    8192: (28, 26, 17, 8.5, 4.5),
    16384: (56, 48, 32, 16, 8),
    32768: (56, 48, 36, 18, 16),
    65536: (60, 52, 40, 20, 18),
}


def write_report(out: Path, settings: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Writes results.md and the plots into a folder, and returns the text of results.md."""
    parts = [", ".join(f"{name} {value}" for name, value in settings.items())]
    for suite, groups in SUITES.items():
        own = [row for row in rows if row["suite"] == suite]
        if own:
            about = (inspect.getdoc(groups) or "").partition("\n\nRaises:")[0]
            parts.append(f"## {suite}\n\n{about}\n\n{as_table(own)}")
    measured = [row for row in rows if row["suite"] == "overview" and "skipped" not in row]
    if measured:
        draw_overview(measured, out / "overview.png")
    table3 = [row for row in rows if row["suite"] == "table3"]
    if table3:
        parts += _table3(table3, out)
    growth = [row for row in rows if row["suite"] == "growth" and "MiB" in row]
    if growth:
        parts.append(f"## Exponents of growth with n\n\n{exponents(growth)}")
        draw_growth(growth, out / "growth.png")
    efficiency = [row for row in rows if row["suite"] == "efficiency" and "skipped" not in row]
    if any(cost_ratios(efficiency, cost) for cost in COSTS):  # full attention may have been too slow at every n
        parts.append(f"## Efficiency lengths\n\n{efficiency_table(efficiency)}")
        draw_efficiency(efficiency, out / "efficiency.png")
    text = "\n\n".join(part.rstrip() for part in parts) + "\n"
    write_whole(out / "results.md", text)
    return text


def _table3(rows: Sequence[Row], out: Path) -> list[str]:
    """The measured counterparts of the paper's table 3 and figure 2."""
    tables = {
        "how many times faster than `softmax`": ("seconds", PAPER_TIME),
        "how many times less memory, by the peak": ("MiB", PAPER_MEMORY),
        "how many times less memory, by the largest batch": ("largest_batch", PAPER_MEMORY),
    }
    if any("seconds" in row for row in rows):
        draw_figure2(rows, out / "figure2.png")
    return [
        f"## Table 3: {title}\n\n{savings(rows, what, paper)}"
        for title, (what, paper) in tables.items()
        if any(what in row for row in rows)
    ]


def as_table(rows: Sequence[Row]) -> str:
    """The rows of a suite in Markdown, group after group."""
    lines = [
        "| | model | ms (quartiles) | tokens/s | against `linformer` | MiB | fraction of the measured GEMM peak |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        name = f"`{row['model']}`" + (f" {row['note']}" if row["note"] else "")
        if "skipped" in row:
            lines.append(f"| {row['group']} | {name} | not measured: {row['skipped']} | | | | |")
            continue
        memory = f"{row['MiB']:,.0f}" if "MiB" in row else row.get("memory_skipped", "")
        fraction = f"{100 * row['gemm_fraction']:.0f} %" if "gemm_fraction" in row else ""
        lines.append(f"| {row['group']} | {name} | {' | '.join([*_speed(row, rows), memory, fraction])} |")
    return "\n".join(lines)


def _speed(row: Row, rows: Sequence[Row]) -> list[str]:
    """The cells for milliseconds, tokens per second and speed as a multiple of Linformer's; "" if not timed."""
    if "seconds" not in row:
        return ["", "", ""]
    timed = [other for other in rows if other["group"] == row["group"] and "seconds" in other]
    base = next((other for other in timed if other["model"] == "linformer"), None)
    return [
        f"{1000 * row['seconds']:,.1f} ({1000 * row['low']:,.1f} to {1000 * row['high']:,.1f})",
        f"{row['tokens_per_second']:,.0f}",
        f"{row['tokens_per_second'] / base['tokens_per_second']:.2f} x" if base else "",
    ]


def savings(rows: Sequence[Row], what: str, paper: Mapping[int, Sequence[float]]) -> str:
    """Softmax attention's cost divided by Linformer's, in the column `what`; the paper's figure in brackets."""
    columns = " | ".join(f"k = {k}" for k in PROJECTED_LENGTHS)
    lines = [f"| n | {columns} |", "|---" * (len(PROJECTED_LENGTHS) + 1) + "|"]
    for n in dict.fromkeys(row["n"] for row in rows):
        own = [row for row in rows if row["n"] == n]
        softmax = next(row for row in own if row["model"] == "softmax").get(what)
        theirs = dict(zip(PROJECTED_LENGTHS, paper.get(n, ()), strict=False))  # its rows end at k = n / 2
        cells = []
        for k in PROJECTED_LENGTHS:
            value = next((row for row in own if row["model"] == "linformer" and row["k"] == k), {}).get(what)
            brackets = f" ({theirs[k]})" if k in theirs else ""
            if value and softmax:
                ratio = value / softmax if what == "largest_batch" else softmax / value
                cells.append(f"{ratio:.1f}{brackets}")
            else:
                cells.append(f"not measured{brackets}" if k < n else "")
        lines.append(f"| {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def exponents(rows: Sequence[Row]) -> str:
    """The slopes of log cost against log n, by least squares."""
    lines = ["| model | phase | n | time | memory |", "|---" * 5 + "|"]
    for (model, phase), own in by("model", "phase", rows).items():
        if len(own) > 1:
            n = [row["n"] for row in own]
            columns = [[row[what] for row in own if what in row] for what in ("seconds", "MiB")]
            cells = " | ".join(f"{exponent(n, costs):.2f}" if costs else "" for costs in columns)
            lines.append(f"| `{model}` | {phase} | {n[0]} to {n[-1]} | {cells} |")
    return "\n".join(lines)


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float:
    """a of cost = b n^a, fitted to the logarithms."""
    return float(np.polyfit(np.log(lengths), np.log(costs), 1)[0])
