"""The study ``lengths``: the same model pretrained on blocks of several n, at equal tokens."""

import itertools
import math
import statistics
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_linformer.errors import check
from fairseq_linformer.system.files import check_data_path
from fairseq_linformer.training.jobs import job_device

from .distance import DISTANCE, distance_tables, measure_distances
from .engine import Columns, Comparison, Trial, Tuned, cost_column, over_lengths, time_updates
from .flags import chosen_variants
from .masked_text import BINS, Losses, read_split
from .plots import Panel, draw
from .pretraining import CHECKPOINT, Pretraining, at_length, corpus_folder, perplexity_columns
from .store import Figures, Store
from .tables import with_deviation
from .variants import variants_of

OWN = "model.max_positions"  # what is set here, and by no variant
POINTS = 4  # numbers of updates, equally far apart, at which perplexity is measured


@dataclass(frozen=True)
class AtLength(Pretraining):
    """Models of one n, compared by their losses at the same masked tokens as those of every other n.

    Args:
        contexts: the lengths of rows that they are given, up to n.
    """

    contexts: Sequence[int]

    def perplexity(self, trial: Trial) -> float:
        return self.losses(trial, CHECKPOINT, self.n).perplexity

    def losses(self, trial: Trial, checkpoint: str, rows: int) -> Losses:
        """Of a checkpoint of a run where it is given rows of that many tokens; measured once."""

        def compute() -> dict[str, float]:
            return self.text.losses(self.load(trial, checkpoint).to(job_device()), rows).as_figures()

        made_of = {"text": self.text.digest, "rows": rows}
        return Losses.of_figures(self.of_checkpoint(f"losses-rows{rows}", trial, compute, checkpoint, **made_of))

    def details(self, trial: Trial) -> Figures:
        """Perplexity in rows of every length, by position in the row ("starts" of bins), and by number of updates."""
        last = self.losses(trial, CHECKPOINT, self.n)
        kept = {int(file.stem.split("_")[-1]): file.name for file in self.run_folder(trial).glob("checkpoint_*_*.pt")}
        kept[self.updates] = CHECKPOINT
        return {
            "in_rows_of": {rows: self.losses(trial, CHECKPOINT, rows).perplexity for rows in self.contexts},
            "by_position": {"starts": last.starts, "counts": last.counts, "perplexities": last.perplexities},
            "curve": {own: self.losses(trial, name, self.n).perplexity for own, name in sorted(kept.items())},
        }


def experiments(options: Namespace, store: Store) -> list[AtLength]:
    """One for each n, shortest first, all with the tokens of the longest per update.

    Raises:
        UserError: a length or an override is not allowed, or the corpus is shorter than the longest block.
        OSError: the corpus does not exist.
    """
    lengths, tokens = sorted(options.lengths), max(options.lengths)
    for n in lengths:
        allowed = f"a multiple of {BINS} that divides the longest of --lengths, {tokens}"
        check("--lengths", n, n % BINS == 0 and tokens % n == 0, allowed)
    chosen = chosen_variants(options, variants_of("lengths", lengths[0]))
    for word in itertools.chain(*chosen.values()):
        name, mark, value = word.partition("=")
        check(name, value, bool(mark) and name.startswith("model."), "model.OPTION=VALUE")
        check(name, value, name != OWN, "left out: --lengths says what is trained")
    kept = [f"checkpoint.save_interval_updates={max(1, options.updates // POINTS)}"]
    kept.append("checkpoint.keep_interval_updates=-1")
    check_data_path(options.data.absolute())
    corpus = corpus_folder(options.data)
    read_split(corpus, "train", tokens)
    read_split(corpus, "valid", tokens)
    found = []
    for n in lengths:
        variants = {name: [*at_length(n, tokens // n), *kept, *own] for name, own in chosen.items()}
        contexts = [rows for rows in lengths if rows <= n]
        found.append(AtLength.of(options, store, n, variants, contexts=contexts))
    return found


def minutes(own: Tuned, updates: int) -> float:
    """Of a training: updates times the median of one."""
    return float(updates * own.cost["seconds"] / 60)


def after(own: Tuned, time: float) -> list[float]:
    """Perplexity of every seed after so many minutes; none before the first that was measured.

    Between two that were measured its logarithm is taken to be linear in that of the updates.
    """
    updates = time * 60 / own.cost["seconds"]
    if any(updates < min(curve) for curve in own.each("curve")):
        return []
    each = ((np.log([*curve]), np.log([*curve.values()])) for curve in own.each("curve"))
    return [math.exp(np.interp(math.log(updates), *points)) for points in each]


def shortest_time(options: Namespace, tuned: Sequence[Tuned]) -> float:
    """Minutes of the training that took least: after them all can be compared."""
    return min(minutes(own, options.updates) for own in tuned)


def columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """Perplexity after equal updates, after equal time and in shorter rows, and the time of an update."""
    time = shortest_time(options, tuned)

    def then(own: Tuned) -> str:
        values = after(own, time)
        return with_deviation(values, ".2f") if values else "not measured"

    def in_rows(rows: int) -> Columns:
        def cell(own: Tuned) -> str:
            return with_deviation([x[rows] for x in own.each("in_rows_of")], ".2f") if rows < own.n else ""

        return {f"in rows of {rows:,}": cell}

    shorter = sorted(options.lengths)[:-1]
    cut = {title: cell for rows in shorter for title, cell in in_rows(rows).items()}
    return {**perplexity_columns(options, tuned), f"after {time:.1f} min": then, **cut, **cost_column()}


def draw_lengths(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity against n after equal updates and after equal time, and what an update costs; a curve per variant."""
    time = shortest_time(options, tuned)
    measures = {
        f"after {options.updates:,} updates, equal tokens": lambda own: own.each("perplexity"),
        f"after {time:.1f} minutes": lambda own: after(own, time),
        "time of an update": lambda own: [1000 * own.cost["seconds"]],
    }
    panels = [
        Panel(over_lengths(tuned, measure), title, y="ms" if title.startswith("time") else "perplexity")
        for title, measure in measures.items()
    ]
    draw([panels], path)


def draw_positions(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity by position in the row, and against time: a column of panels for each variant, a curve for each n."""
    positions, times = [], []
    for name in dict.fromkeys(own.variant for own in tuned):
        rows = {f"n = {own.n:,}": own for own in tuned if own.variant == name}
        by_place = {label: _by_place(own) for label, own in rows.items()}
        by_time = {label: _by_time(own) for label, own in rows.items()}
        positions.append(Panel(by_place, name, "position / n", "perplexity", scale="logit"))
        times.append(Panel(by_time, name, "minutes (updates x median)", "perplexity", scale="log"))
    draw([positions, times], path)


def _by_place(own: Tuned) -> dict[float, list[float]]:
    """The mean of the seeds at the middle of each bin; a logit scale widens both ends of the row."""
    found = own.each("by_position")
    starts = [*found[0]["starts"], own.n]
    middles = [(start + end) / 2 / own.n for start, end in itertools.pairwise(starts)]
    columns = zip(*(one["perplexities"] for one in found), strict=True)
    return {middle: [statistics.mean(values)] for middle, values in zip(middles, columns, strict=True)}


def _by_time(own: Tuned) -> dict[float, list[float]]:
    """The mean of the seeds against the time that an update takes when all are measured in turns."""
    curves: list[Mapping[int, float]] = own.each("curve")
    return {minutes(own, updates): [statistics.mean(curve[updates] for curve in curves)] for updates in curves[0]}


LENGTHS = Comparison(
    experiments=experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=columns,
    pictures={"lengths.png": draw_lengths, "positions.png": draw_positions, **DISTANCE},
    measures=(time_updates, measure_distances),
    notes=distance_tables,
)
