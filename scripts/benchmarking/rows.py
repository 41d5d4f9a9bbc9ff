"""The rows of results.json, one per case."""

from collections.abc import Sequence
from typing import Any, TypedDict

Row = dict[str, Any]


class _Figures(TypedDict, total=False):
    """The figures of a row, or the reason why there are none."""

    rounds: int
    seconds: float
    low: float
    high: float
    tokens_per_second: float
    first_tokens_per_second: float
    gemm_fraction: float
    MiB: float
    largest_batch: int
    memory_skipped: str
    skipped: str
    too_slow: bool


class _Row(_Figures):
    suite: str
    group: str
    cases: str
    model: str
    note: str
    phase: str
    n: int
    d: int
    k: int
    rows: int | None


class Results(TypedDict):
    """The shape of results.json."""

    settings: dict[str, Any]
    rows: list[_Row]


def by(first: str, second: str, rows: Sequence[Row]) -> dict[tuple[Any, Any], list[Row]]:
    """The rows by the values of two of their columns, in the order in which these first appear."""
    found: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        found.setdefault((row[first], row[second]), []).append(row)
    return found
