"""Tables in Markdown."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

Row = TypeVar("Row")


def table(columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> str:
    """A line for each row, with a cell for each column: what its function says of the row."""
    lines = [[*columns], *([cell(row) for cell in columns.values()] for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def with_deviation(values: Sequence[float], form: str) -> str:
    """Mean and, of several values, their sample standard deviation."""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else mean


def milliseconds(cost: Mapping[str, float]) -> str:
    """The median time of an update, and its quartiles."""
    low, middle, high = (f"{1000 * cost[what]:.0f}" for what in ("low", "seconds", "high"))
    return f"{middle} ({low} to {high})"
