"""The studies that compare the perplexities of variants after equal updates: perplexity and mechanisms."""

import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .distance import DISTANCE, distance_tables, measure_distances
from .engine import Comparison, Trial, Tuned, time_updates
from .flags import chosen_variants
from .plots import Panel, draw, draw_dots
from .pretraining import Pretraining, perplexity_columns
from .store import Figures, Store
from .variants import variants_of


def perplexity_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, with the n of all variants: 512, unless --all says otherwise."""
    n = 512
    for word in options.all:
        name, _, value = word.partition("=")
        n = int(value) if name == "task.tokens_per_sample" and value.isdigit() else n
    return [Pretraining.of(options, store, n, chosen_variants(options, {}), folder="")]


def draw_perplexities(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity by variant."""
    values = {own.variant: own.each("perplexity") for own in tuned}
    draw_dots(values, f"perplexity after {options.updates:,} updates", path)


PERPLEXITY = Comparison(
    experiments=perplexity_experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=perplexity_columns,
    pictures={"perplexity.png": draw_perplexities, **DISTANCE},
    measures=(time_updates, measure_distances),
    notes=distance_tables,
)


@dataclass(frozen=True)
class Validated(Pretraining):
    """Runs that are validated ten times on the way."""

    def measure(self, trials: Sequence[Trial]) -> dict[Trial, Figures]:
        """Perplexities, and what fairseq logged on the way, by number of updates: "curve"."""
        found = super().measure(trials)
        for trial, figures in found.items():
            rows = self.training(trial).run()  # complete by now
            figures["curve"] = {row["valid_num_updates"]: row["valid_ppl"] for row in rows if "valid_ppl" in row}
        return found


def mechanism_experiments(options: Namespace, store: Store) -> list[Pretraining]:
    """One, in which the control is always."""
    interval = max(1, options.updates // 10)
    intervals = [f"dataset.validate_interval_updates={interval}", f"checkpoint.save_interval_updates={interval}"]
    validations = ["dataset.disable_validation=false", "dataset.max_valid_steps=50", *intervals]
    known = variants_of("mechanisms", 512)
    chosen = {**chosen_variants(options, known), "control": [*options.all, *known["control"]]}
    variants = {name: [*own, *validations] for name, own in chosen.items()}
    return [Validated.of(options, store, 512, variants, folder="")]


def draw_curves(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity of the first seed against updates, and against time, which is updates times the median of one."""
    curves = {own.variant: own.results[options.seeds[0]]["curve"] for own in tuned}
    minutes = {own.variant: own.cost["seconds"] / 60 for own in tuned}
    by_updates = {name: {x: [y] for x, y in curve.items()} for name, curve in curves.items()}
    by_time = {name: {x * minutes[name]: [y] for x, y in curve.items()} for name, curve in curves.items()}
    y = "masked-LM perplexity, validation"
    first = Panel(by_updates, x="updates", y=y, scale="linear")
    draw([[first, Panel(by_time, x="minutes (updates x median)", y=y, scale="log")]], path)


MECHANISMS = replace(
    PERPLEXITY,
    experiments=mechanism_experiments,
    pictures={"perplexity.png": draw_curves, **DISTANCE},
    order=lambda own: statistics.mean(own.each("perplexity")),
)
