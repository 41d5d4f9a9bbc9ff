"""The study ``lengths``: the same model pretrained on blocks of several n, at equal tokens."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_linformer.errors import check

from .distance import DISTANCE, distance_tables, measure_distances
from .engine import Comparison, Tuned, over_lengths, time_updates
from .flags import chosen_variants
from .masked_text import read_split
from .plots import Panel, draw
from .pretraining import Pretraining, at_length, perplexity_columns
from .store import Store
from .variants import variants_of

OWN = "model.max_positions"  # what is set here, and by no variant


@dataclass(frozen=True)
class AtLength(Pretraining):
    """Models of one n, compared by their losses at the same masked tokens as those of every other n.

    Args:
        longest: n, of all experiments.
    """

    longest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = f"a divisor of the longest of --lengths, {self.longest}"
        check("--lengths", self.n, self.longest % self.n == 0, allowed)

    def check(self) -> None:
        for split in ("train", "valid"):
            read_split(self.corpus, split, self.longest)
        super().check()


def experiments(options: Namespace, store: Store) -> list[AtLength]:
    """One for each n, shortest first, all with the tokens of the longest per update.

    Raises:
        UserError: a length or an override is not allowed.
    """
    lengths, longest = sorted(options.lengths), max(options.lengths)
    chosen = chosen_variants(options, variants_of("lengths", lengths[0]))
    for word in (word for own in chosen.values() for word in own):
        name, mark, value = word.partition("=")
        check(name, value, bool(mark) and name.startswith("model."), "model.OPTION=VALUE")
        check(name, value, name != OWN, "left out: --lengths says what is trained")
    found = []
    for n in lengths:
        variants = {name: [*at_length(n, longest // n), *own] for name, own in chosen.items()}
        found.append(AtLength.of(options, store, n, variants, longest=longest))
    return found


def draw_lengths(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Perplexity, and what an update costs, against n; a curve for each variant."""
    updates = f"after {options.updates:,} updates, equal tokens"
    perplexities = over_lengths(tuned, lambda own: own.each("perplexity"))
    times = over_lengths(tuned, lambda own: [1000 * own.cost["seconds"]])
    draw([[Panel(perplexities, updates, y="perplexity"), Panel(times, "time of an update", y="ms")]], path)


LENGTHS = Comparison(
    experiments=experiments,
    quantity="perplexity",
    form="{:.2f}".format,
    columns=perplexity_columns,
    pictures={"lengths.png": draw_lengths, **DISTANCE},
    measures=(time_updates, measure_distances),
    notes=distance_tables,
)
