"""The picture of what labelled rows are worth: score against the number of rows trained on. It needs matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from ..system.plotting import REFERENCE, legend, picture, scale_lengths, style_of
from .results_table import BASELINE

Rows = Sequence[Mapping[str, Any]]  # of the table (``results.summarise``)


def draw(tables: Mapping[str, Rows], path: Path) -> None:
    """A panel per task: its first metric on test, or else on its first dev set; bands are a deviation to either side.

    Args:
        tables: the rows of each model; the baseline and the majority class are those of the first.
        path: of the PNG.
    """
    tasks = list(dict.fromkeys(row["task"] for rows in tables.values() for row in rows if row["rows"]))
    columns = min(3, len(tasks))
    lines = -(-len(tasks) // columns)
    with picture(path, lines, columns, 0.6 + 4.2 * columns, 0.7 + 3.2 * lines) as (figure, grid):
        panels = list(grid.flat)
        for panel, task in zip(panels, tasks, strict=False):
            _draw_task(panel, task, {name: _of(rows, task) for name, rows in tables.items()})
        for panel in panels[len(tasks) :]:
            panel.remove()
        legend(figure, panels[: len(tasks)], columns=2)


def _of(rows: Rows, task: str) -> Rows:
    """The rows of a task, of one split and its first metric, that have a number of training rows."""
    of_task = [row for row in rows if row["task"] == task and row["rows"]]
    splits = [row["split"] for row in of_task]
    split = "test" if "test" in splits else next(iter(splits), None)  # no part of which chose a checkpoint
    of_split = [row for row in of_task if row["split"] == split]
    return [row for row in of_split if row["metric"] == of_split[0]["metric"]]


def _draw_task(panel: Axes, task: str, tables: Mapping[str, Rows]) -> None:
    shown = next(rows for rows in tables.values() if rows)
    _draw_curve(panel, shown, "baseline", "baseline_deviation", BASELINE, 0)
    for number, (name, rows) in enumerate(tables.items(), start=1):
        _draw_curve(panel, rows, "mean", "deviation", f"fine-tuned {name}", number)
    majority = [(row["rows"][0], row["majority"]) for row in shown if row["majority"] is not None]
    if majority:
        counts, values = map(list, zip(*majority, strict=True))
        panel.plot(counts, values, label="majority class", **REFERENCE)
    scale_lengths(panel.xaxis, sorted({row["rows"][0] for rows in tables.values() for row in rows}))
    panel.set(title=task, xlabel="labelled rows to train on", ylabel=f"{shown[0]['metric']} on {shown[0]['split']}")


def _draw_curve(panel: Axes, rows: Rows, mean: str, deviation: str, label: str, number: int) -> None:
    points = [(row["rows"][0], row[mean], row[deviation] or 0.0) for row in rows if row[mean] is not None]
    if points:
        counts, style = [count for count, _, _ in points], style_of(number)
        panel.plot(counts, [value for _, value, _ in points], label=label, **style)
        low, high = ([value + sign * spread for _, value, spread in points] for sign in (-1, 1))
        panel.fill_between(counts, low, high, color=style["color"], alpha=0.2, linewidth=0)
