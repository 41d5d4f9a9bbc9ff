"""The studies that compare the perplexities of variants after equal updates: perplexity and mechanisms."""

import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_linformer.errors import check

from .distance import DISTANCE, distance_tables, measure_distances, values_of
from .engine import Comparison, Tuned, time_updates
from .flags import chosen_variants
from .masked_text import WINDOW
from .plots import Dots, Panel, draw, draw_dots
from .pretraining import Pretraining, perplexity_columns
from .store import Store
from .variants import variants_of


def n_of_all(options: Namespace) -> int:
    """512, unless --all says otherwise."""
    n = 512
    for word in options.all:
        name, _, value = word.partition("=")
        n = int(value) if name == "task.tokens_per_sample" and value.isdigit() else n
    return n


def perplexity_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, with the n of all variants."""
    return [Pretraining.of(options, store, n_of_all(options), chosen_variants(options, {}))]


def draw_curves(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Training perplexity of all seeds against updates, and against time, which is updates times the median of one."""
    by_updates, by_time = {}, {}
    for own in tuned:
        minutes, curves = own.cost["seconds"] / 60, own.each("curve")
        by_updates[own.variant] = {x: [curve[x] for curve in curves if x in curve] for x in curves[0]}
        by_time[own.variant] = {x * minutes: values for x, values in by_updates[own.variant].items()}
    y = "masked-LM perplexity in training"
    first = Panel(by_updates, x="updates", y=y, scale="linear")
    draw([[first, Panel(by_time, x="minutes (updates x median)", y=y, scale="linear")]], path)


PERPLEXITY = Comparison(
    experiments=perplexity_experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=perplexity_columns,
    pictures={"perplexity.png": draw_curves, **DISTANCE},
    measures=(time_updates, measure_distances),
    notes=distance_tables,
)


def mechanism_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, in which the control is always."""
    n = n_of_all(options)
    known = variants_of("mechanisms", n)
    given = [name for name, *_ in options.variant]
    check("variant", "control", "control" not in given, "another name: this study has a control of its own")
    chosen = {**chosen_variants(options, known), "control": [*options.all, *known["control"]]}
    return [Pretraining.of(options, store, n, chosen)]


def draw_mechanisms(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """A line for each variant: its perplexities, by where the answer stands and in the mean, and its time."""
    perplexities: dict[str, dict[str, list[float]]] = {"all": {own.variant: own.each("perplexity") for own in tuned}}
    for own in tuned:
        near = own.by_distance["classes"][: len(WINDOW) + 1]
        far = [own.by_distance["far"]] if "far" in own.by_distance else []  # short rows have nothing so far
        for one in (*near, *far):
            perplexities.setdefault(one["name"], {})[own.variant] = values_of(one)
    times = {"": {own.variant: [1000 * own.cost["seconds"]] for own in tuned}}
    by_distance = Dots(perplexities, "perplexity, by the distance of the same token")
    draw_dots([by_distance, Dots(times, "ms per update")], path)


MECHANISMS = replace(
    PERPLEXITY,
    experiments=mechanism_experiments,
    order=lambda own: statistics.mean(own.each("perplexity")),
    pictures={"mechanisms.png": draw_mechanisms},  # as many curves as mechanisms could not be told apart
)
