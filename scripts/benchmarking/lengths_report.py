"""The tables and the pictures of models pretrained with several n (scripts/compare_lengths.py)."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from .masked_text import Losses
from .plots import LINES, scale_lengths, style_of
from .variants import Tuned, with_deviation


@dataclass(frozen=True)
class Pretrained:
    """A variant that was trained with one n.

    Attributes:
        length: n.
        variant: at the learning rate that was best for it.
        losses: by the length of the rows that it is given, n or less, and by seed.
        curves: perplexity in rows of n by seed and number of updates.
        cost: seconds of an update, the median ("seconds") and the quartiles ("low", "high").
        updates: of the whole training.
    """

    length: int
    variant: Tuned
    losses: Mapping[int, Mapping[int, Losses]]
    curves: Mapping[int, Mapping[int, float]]
    cost: Mapping[str, float]
    updates: int

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def minutes(self) -> float:
        """Of the whole training: updates times the median of one."""
        return self.updates * self.cost["seconds"] / 60

    def as_json(self) -> dict[str, Any]:
        """Everything but the sums, with the perplexities that follow from them."""
        own = next(iter(self.losses[self.length].values()))
        return {
            "n": self.length,
            **asdict(self.variant),
            "in_rows_of": {rows: {seed: x.perplexity for seed, x in by.items()} for rows, by in self.losses.items()},
            "bins": {"starts": own.starts, "masked_tokens": own.counts},
            "by_position": {seed: own.perplexities for seed, own in self.losses[self.length].items()},
            "by_updates": self.curves,
            "cost": self.cost,
        }

    def perplexities(self, rows: int) -> list[float]:
        """Of every seed in rows of that length."""
        return [own.perplexity for own in self.losses[rows].values()]

    def after(self, minutes: float) -> list[float] | None:
        """Perplexity of every seed after that time; None before the first that was measured.

        Between two that were measured its logarithm is taken to be linear in that of the updates.
        """
        updates = minutes * 60 / self.cost["seconds"]
        if any(updates < min(curve) for curve in self.curves.values()):
            return None
        each = ((np.log([*curve]), np.log([*curve.values()])) for curve in self.curves.values())
        return [math.exp(np.interp(math.log(updates), *own)) for own in each]


def shortest_time(pretrained: Sequence[Pretrained]) -> float:
    """Minutes of the training that took least: after them all can be compared."""
    return min(own.minutes for own in pretrained)


def lengths_tables(pretrained: Sequence[Pretrained]) -> str:
    """Perplexities in Markdown, a row for each variant and n; then those of every learning rate tried.

    Each is compared, seed by seed, with the first variant at the same n.
    """
    first, minutes = pretrained[0], shortest_time(pretrained)
    names, contexts = list(dict.fromkeys(own.name for own in pretrained)), list(pretrained[-1].losses)
    references = {own.length: own for own in pretrained if own.name == first.name}
    seeds = [*first.curves]
    columns = ["variant", "n", "lr", f"perplexity after {first.updates} updates, seeds {', '.join(map(str, seeds))}"]
    columns += [f"against {first.name}, same n", f"after {minutes:.1f} min"]
    columns += [f"in rows of {rows:,}" for rows in contexts[:-1]]
    lines = [f"| {' | '.join([*columns, 'ms per update'])} |", "|---" * (len(columns) + 1) + "|"]
    for own in sorted(pretrained, key=lambda own: names.index(own.name)):
        lines.append(f"| {' | '.join(_cells(own, references[own.length], minutes, contexts[:-1]))} |")
    rates = list(first.variant.tried)
    if len(rates) > 1:
        tried = " | ".join(f"lr {rate:g}" for rate in rates)
        lines += ["", f"| perplexity with seed {seeds[0]} | n | {tried} |", "|---" * (2 + len(rates)) + "|"]
        for own in pretrained:
            values = " | ".join(f"{own.variant.tried[rate]:.2f}" for rate in rates)
            lines.append(f"| {own.name} | {own.length:,} | {values} |")
    return "\n".join(lines)


def _cells(own: Pretrained, reference: Pretrained, minutes: float, contexts: Sequence[int]) -> list[str]:
    """A row of the table."""
    values = own.perplexities(own.length)
    others = [100 * (x / y - 1) for x, y in zip(values, reference.perplexities(own.length), strict=True)]
    then = own.after(minutes)
    low, middle, high = (f"{1000 * own.cost[what]:.0f}" for what in ("low", "seconds", "high"))
    return [
        own.name,
        f"{own.length:,}",
        f"{own.variant.learning_rate:g}",
        with_deviation(values, ".2f"),
        "" if own is reference else f"{with_deviation(others, '+.1f')} %",
        "not measured" if then is None else with_deviation(then, ".2f"),
        *(with_deviation(own.perplexities(rows), ".2f") if rows < own.length else "" for rows in contexts),
        f"{middle} ({low} to {high})",
    ]


def draw_lengths(pretrained: Sequence[Pretrained], path: Path) -> None:
    """Perplexity against n after equal updates and after equal time, and what an update costs; a curve per variant."""
    minutes = shortest_time(pretrained)
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    updates, time, cost = figure.subplots(1, 3)
    time.sharey(updates)
    _draw_over_lengths(updates, pretrained, lambda own: own.perplexities(own.length))
    _finish(updates, f"after {pretrained[0].updates:,} updates, equal tokens")
    _draw_over_lengths(time, pretrained, lambda own: own.after(minutes))
    _finish(time, f"after {minutes:.1f} minutes")
    updates.set_ylabel("perplexity")
    _draw_over_lengths(cost, pretrained, lambda own: [1000 * own.cost[what] for what in ("seconds", "low", "high")])
    _finish(cost, "time of an update")
    cost.set_ylabel("ms")
    handles, labels = updates.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=160)


def _draw_over_lengths(
    panel: Axes, pretrained: Sequence[Pretrained], measure: Callable[[Pretrained], list[float] | None]
) -> None:
    """A curve for each variant, through the medians of what is measured, with bars from the lowest to the highest."""
    for number, name in enumerate(dict.fromkeys(own.name for own in pretrained)):
        known = {own.length: values for own in pretrained if own.name == name and (values := measure(own))}
        middles = [statistics.median(values) for values in known.values()]
        down = [middle - min(values) for middle, values in zip(middles, known.values(), strict=True)]
        up = [max(values) - middle for middle, values in zip(middles, known.values(), strict=True)]
        panel.errorbar([*known], middles, yerr=[down, up], capsize=3, label=name, **style_of(number))
    scale_lengths(panel, sorted({own.length for own in pretrained}))
    panel.set_xlabel("sequence length n")


def draw_positions(pretrained: Sequence[Pretrained], path: Path) -> None:
    """Perplexity by position in the row, and against time: a column of panels for each variant, a curve for each n."""
    names = list(dict.fromkeys(own.name for own in pretrained))
    figure = Figure(figsize=(3.2 * max(3, len(names)), 7), layout="constrained")
    for part, draw in zip(figure.subfigures(2, 1, squeeze=False)[:, 0], (_draw_positions, _draw_times), strict=True):
        panels = part.subplots(1, len(names), squeeze=False, sharex=True, sharey=True)[0]
        for panel, name in zip(panels, names, strict=True):
            for own, style in _styled([own for own in pretrained if own.name == name]):
                draw(panel, own, style)
            _finish(panel, name)
        panels[0].set_ylabel("perplexity")
        part.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)


def _styled(own: Sequence[Pretrained]) -> list[tuple[Pretrained, dict[str, Any]]]:
    """The lengths of a variant, from dark and full to light and dotted."""
    shades = colormaps["cividis"](np.linspace(0, 0.85, len(own)))
    lines = zip(own, shades, itertools.cycle(LINES), strict=False)
    return [(one, {"color": color, "linestyle": dash, "label": f"n = {one.length:,}"}) for one, color, dash in lines]


def _draw_positions(panel: Axes, own: Pretrained, style: Mapping[str, Any]) -> None:
    """The mean of the seeds, at the middle of each bin; a logit scale widens both ends of the row."""
    losses = list(own.losses[own.length].values())
    starts = [*losses[0].starts, own.length]
    middles = [(start + end) / 2 / own.length for start, end in itertools.pairwise(starts)]
    means = [statistics.mean(values) for values in zip(*(one.perplexities for one in losses), strict=True)]
    panel.plot(middles, means, **style)
    panel.set_xscale("logit")
    panel.set_xticks([0.01, 0.1, 0.5, 0.9, 0.99], ["0.01", "0.1", "0.5", "0.9", "0.99"])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("position / n")


def _draw_times(panel: Axes, own: Pretrained, style: Mapping[str, Any]) -> None:
    """The mean of the seeds against the time that an update takes when all are measured in turns."""
    curves = list(own.curves.values())
    minutes = [updates * own.cost["seconds"] / 60 for updates in curves[0]]
    means = [statistics.mean(values) for values in zip(*(curve.values() for curve in curves), strict=True)]
    panel.plot(minutes, means, marker=".", **style)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_xlabel("minutes (updates x median)")


def _finish(panel: Axes, title: str) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter("{x:,g}")
    panel.set_title(title, fontsize="medium")
    panel.grid(color="0.9")
