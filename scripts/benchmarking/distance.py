"""How far variants see, in all studies that pretrain: perplexity by where the answer stands."""

import operator
from argparse import Namespace
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import cast

import numpy as np

from .engine import Columns, Experiment, Trial, Tuned
from .losses_by_distance import RESAMPLES, LossesByDistance, known, nowhere_interval, ratio_interval
from .masked_text import COMMONEST, SHARE, WINDOW
from .plots import Panel, draw
from .pretraining import Pretraining
from .store import Figures
from .tables import table

FAR = f"beyond {WINDOW[-1]}"
ABOUT = (
    "Perplexity at masked tokens by how far from them, in the row, the same token stands unmasked; in the head the "
    f"share of each class. {100 * SHARE:g} % of the tokens are masked; a token that is more than {100 * COMMONEST:g} % "
    "of the text is left out. The seeds are taken together (perplexity is their geometric mean); in brackets the "
    f"interval of 95 % over {RESAMPLES:,} resamples of the rows."
)


def measure_distances(options: Namespace, experiments: Sequence[Experiment], tuned: Sequence[Tuned]) -> None:
    """Gives each variant its perplexities by distance, and what is far as a multiple of two others.

    These are of what stands nowhere else, and of what is far in the first variant with rows of that length.
    """
    by_length = {experiment.n: experiment for experiment in cast(Sequence[Pretraining], experiments)}
    firsts: dict[int, tuple[str, LossesByDistance]] = {}
    for own in tuned:
        trials = {seed: Trial(own.variant, own.learning_rate, seed) for seed in own.results}
        seeds = {seed: by_length[own.n].by_distance(trial) for seed, trial in trials.items()}
        losses = reduce(operator.add, seeds.values())
        own.by_distance = {
            "rows_of": losses.limits[-1],
            "classes": [one.figures() for one in losses.classes()],
            "seeds": {seed: [*map(known, found.perplexities.tolist())] for seed, found in seeds.items()},
        }
        if losses.limits[-1] > WINDOW[-1]:
            coarse = losses.coarser([*WINDOW, losses.limits[-1]])
            name, first = firsts.setdefault(losses.limits[-1], (own.variant, coarse))
            far, nowhere, others = coarse.perplexities[-1], coarse.perplexities[0], first.perplexities[-1]
            own.by_distance |= {
                "far": coarse.classes()[-1].figures() | {"name": FAR},
                "far_to_nowhere": _ratio(far / nowhere, nowhere_interval(coarse)),
                f"far_to_{name}": _ratio(far / others, ratio_interval(coarse, first)),
            }


def distance_tables(options: Namespace, tuned: Sequence[Tuned]) -> list[str]:
    """A table for each length of rows: what the classes are, a column for each, and the ratios of what is far."""
    return [ABOUT, *(_table(rows, own) for rows, own in _by_rows(tuned).items())]


def _by_rows(tuned: Sequence[Tuned]) -> dict[int, list[Tuned]]:
    found: dict[int, list[Tuned]] = {}
    for own in tuned:
        found.setdefault(own.by_distance["rows_of"], []).append(own)
    return found


def _table(rows: int, tuned: Sequence[Tuned]) -> str:
    columns: Columns = {f"rows of {rows:,}": lambda own: own.variant}
    measured = tuned[0].by_distance
    if not any(one["share"] for one in measured["classes"]):
        return f"Rows of {rows:,}: the text is too short, no masked token is rare enough."
    for number, one in enumerate(measured["classes"]):
        columns[f"{one['name']} ({100 * one['share']:.0f} %)"] = partial(_class, number)
    if "far" in measured:
        columns[f"{FAR} ({100 * measured['far']['share']:.0f} %)"] = lambda own: _cell(own.by_distance["far"])
    for name in (name for name in measured if name.startswith("far_to_")):
        columns[f"{FAR} / {name.removeprefix('far_to_')}"] = partial(_ratio_cell, name)
    return table(columns, tuned)


def _class(number: int, own: Tuned) -> str:
    return _cell(own.by_distance["classes"][number])


def _ratio_cell(name: str, own: Tuned) -> str:
    return _cell(own.by_distance[name], "ratio")


def _cell(figures: Figures, figure: str = "perplexity") -> str:
    """A figure with its interval."""
    found = [figures[what] for what in (figure, "low", "high")]
    if None in found:
        return ""
    middle, low, high = (f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in found)
    return f"{middle} ({low} to {high})"


def draw_distances(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity against distance, a panel for each length of rows; a level says that of what has no copy."""
    panels = []
    for rows, variants in _by_rows(tuned).items():
        classes = {own.variant: own.by_distance["classes"] for own in variants}
        curves = {name: {one["last"]: values_of(one) for one in own[1:]} for name, own in classes.items()}
        levels = {name: level for name, own in classes.items() for level in values_of(own[0])}
        title = f"rows of {rows:,}; horizontal lines: no copy in the row"
        panels.append(Panel(curves, title, "distance of the same token, up to", "perplexity", beside=levels))
    draw([panels], path)


def values_of(figures: Figures) -> list[float]:
    """As panels take them: none where a class has no tokens."""
    return [] if figures["perplexity"] is None else [figures["perplexity"]]


def _ratio(value: float, interval: np.ndarray) -> Figures:
    """Of what is far, with its interval from those of all classes, (2, C)."""
    low, high = interval[:, -1].tolist()
    return {"ratio": known(float(value)), "low": known(low), "high": known(high)}


DISTANCE = {"distance.png": draw_distances}
