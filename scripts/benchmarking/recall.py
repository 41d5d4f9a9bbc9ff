"""The study ``recall``: masked associative recall, rows of key-value pairs.

The task is the multi-query associative recall of Arora et al. 2023 (arXiv 2312.04927), made bidirectional: pairs and
queries stand at random places of a row, in any order, and the value of a query is masked.

    noise  key 3  value 7  noise  noise  key 5  <mask>  key 5  value 1  key 3  <mask>  noise
                                                     = 1                            = 7

Which value belongs to which key is drawn anew for every row, so that there is nothing to remember between rows. A
model that sees which values a row holds, and not whose they are, brings back about 1 / D of them.

Dimensions: B rows, n positions, D pairs, Q queries, d embedding.
"""

import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_linformer.errors import check
from fairseq_linformer.model.config import ResolvedConfig

from . import small_model
from .engine import Columns, Comparison, InProcess, Tuned, cost_column, time_updates, values_column
from .flags import Flag, chosen_variants, count
from .plots import draw_frontier, draw_map
from .small_model import TEST_SEED, SmallTrainer, base_model, build_model
from .store import PACKAGE, Figures, Store
from .variants import variants_of

MODEL = base_model(128)
TOKENS = 1024  # of each update, at least one row
TESTED = 1024  # queries, at least, for each number of pairs
FIRST = 4  # number of the first key in the dictionary, after fairseq's own symbols


@dataclass(frozen=True)
class Task:
    """The rows that a model is trained and tested on.

    Args:
        length: n, at least 16. Half of a row are queries, Q = n / 4; a key may be asked for several times, or not.
        pairs: D, at most n / 4; a batch has one of them, drawn at random. There are as many keys, as many symbols of
            noise, and twice as many values, as the largest D.

    Raises:
        UserError: a number is out of its range.
    """

    length: int
    pairs: tuple[int, ...]

    def __post_init__(self) -> None:
        check("length", self.length, self.length >= 16, "at least 16")
        for pairs in self.pairs:
            most = self.length // 4
            check("pairs", pairs, 1 <= pairs <= most, f"from 1 to {most}, a quarter of n={self.length}")

    @property
    def keys(self) -> int:
        """How many keys there are: their numbers begin at ``FIRST``, then come values, noise and <mask>."""
        return max(self.pairs)

    @property
    def mask(self) -> int:
        """The number of <mask>."""
        return FIRST + 4 * self.keys

    @property
    def queries(self) -> int:
        """Q."""
        return self.length // 4

    def draw(self, rows: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of D = `pairs` pairs and Q queries, each of two neighbouring positions, and noise.

        Returns:
            Tokens (B, n); the masked positions (B, n); and the values that belong there, (B Q,), row by row.
        """
        keys = FIRST + torch.rand(rows, self.keys, generator=generator).argsort(1)[:, :pairs]  # each once
        values = FIRST + self.keys + torch.randint(2 * self.keys, (rows, pairs), generator=generator)
        asked = torch.randint(pairs, (rows, self.queries), generator=generator)
        # Pairs come first, then queries, then noise: things to lay out in a random order, the first two 2 long.
        twos = pairs + self.queries
        order = torch.rand(rows, self.length - twos, generator=generator).argsort(1)
        lengths = torch.where(order < twos, 2, 1)
        starts = torch.empty_like(order).scatter_(1, order, lengths.cumsum(1) - lengths)
        stored, query = starts[:, :pairs], starts[:, pairs:twos]
        noise = self.mask - self.keys, self.mask
        tokens = torch.randint(*noise, (rows, self.length), generator=generator)
        tokens.scatter_(1, stored, keys).scatter_(1, stored + 1, values)
        tokens.scatter_(1, query, keys.gather(1, asked)).scatter_(1, query + 1, self.mask)
        masked = tokens == self.mask
        answers = torch.zeros_like(tokens).scatter_(1, query + 1, values.gather(1, asked))
        return tokens, masked, answers[masked]


class Trainer(SmallTrainer):
    """A model, its optimizer, and the batches of one seed.

    Args:
        task: what is drawn.
        config: of the model.
        rate, seed, updates, device: as in ``SmallTrainer``; the seed is also that of the weights.
    """

    def __init__(self, task: Task, config: ResolvedConfig, rate: float, seed: int, updates: int, device: str = "cpu"):
        self.task = task
        dictionary = Dictionary()
        for number in range(FIRST, task.mask):
            dictionary.add_symbol(f"symbol{number}")
        dictionary.add_symbol("<mask>")
        super().__init__(build_model(config, dictionary, seed), rate, seed, updates, device)

    def loss(self) -> Tensor:
        number = int(torch.randint(len(self.task.pairs), (), generator=self.generator))
        rows = max(1, TOKENS // self.task.length)
        logits, answers = self._draw(rows, self.task.pairs[number], self.generator)
        return F.cross_entropy(logits, answers)

    def _draw(self, rows: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the model says of new rows, (B Q, symbols), and what is right, (B Q,)."""
        tokens, masked, answers = (own.to(self.device) for own in self.task.draw(rows, pairs, generator))
        return self.model(tokens, masked_tokens=masked, padded=False)[0], answers

    @torch.no_grad()
    def recall(self) -> dict[str, float]:
        """The share of values brought back by D, on the same rows for every model and seed."""
        self.model.eval()
        generator = torch.Generator().manual_seed(TEST_SEED)
        shares = {}
        for pairs in self.task.pairs:
            logits, answers = self._draw(-(-TESTED // self.task.queries), pairs, generator)
            shares[f"D={pairs}"] = float((logits.argmax(-1) == answers).double().mean())
        return shares


@dataclass(frozen=True)
class Recall(InProcess):
    """Variants that are trained on one task."""

    task: Task
    base = MODEL
    code = (PACKAGE, Path(__file__), Path(small_model.__file__))

    def trainer(self, variant: str, rate: float, seed: int, updates: int) -> SmallTrainer:
        return Trainer(self.task, self.config(variant), rate, seed, updates, self.device)

    def test(self, trainer: SmallTrainer) -> dict[str, float]:
        return cast(Trainer, trainer).recall()

    def score(self, figures: Figures) -> float:
        return statistics.mean(figures.values())

    def rows(self) -> dict[str, Any]:
        return {"task": asdict(self.task)}


def experiments(options: Namespace, store: Store) -> list[Recall]:
    """One for each n, shortest first.

    Raises:
        UserError: a length, a number of pairs or an override cannot work.
    """
    tasks = [Task(n, tuple(sorted(options.pairs))) for n in sorted(options.lengths)]
    variants = chosen_variants(options, variants_of("recall", tasks[0].length))
    shared = options.updates, options.device
    return [Recall(store, task.length, variants, f"n{task.length}", *shared, task) for task in tasks]


def means(own: Tuned) -> list[float]:
    """The mean over all D of every seed, in percent."""
    return [100 * statistics.mean(shares.values()) for shares in own.results.values()]


def columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """The shares of values brought back, in percent, and the cost."""
    found: Columns = {}
    for pairs in sorted(options.pairs):
        found |= values_column(f"D = {pairs}", partial(_percent, f"D={pairs}"), ".1f")
    return {**found, **values_column("mean of D", means, ".1f"), **cost_column()}


def notes(options: Namespace, tuned: Sequence[Tuned]) -> list[str]:
    """What the columns are."""
    return [f"Percent of the values brought back after {options.updates} updates, {len(options.seeds)} seeds."]


def _percent(figure: str, own: Tuned) -> list[float]:
    return [100 * share for share in own.each(figure)]


def draw_shares(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """The shares by variant and D as a map, the best first."""
    rows = {}
    for own in sorted(tuned, key=lambda own: -statistics.mean(means(own))):
        several = f", n = {own.n}" if len(options.lengths) > 1 else ""
        shares = {f"D={pairs}": statistics.mean(_percent(f"D={pairs}", own)) for pairs in sorted(options.pairs)}
        rows[f"{own.variant}{several}"] = shares
    draw_map(rows, "values brought back, %, mean over seeds", path)


def draw_costs(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """The mean of all D against the time of an update, for the longest n."""
    longest = [own for own in tuned if own.n == max(options.lengths)]
    points = {own.variant: (1000 * own.cost["seconds"], statistics.mean(means(own))) for own in longest}
    draw_frontier(points, f"ms per update (median), n = {longest[0].n}", "mean of all D, %", path)


RECALL = Comparison(
    experiments=experiments,
    quantity="mean of D",
    form=lambda share: f"{100 * share:.1f}",
    columns=columns,
    pictures={"recall.png": draw_shares, "frontier.png": draw_costs},
    measures=(time_updates,),
    notes=notes,
)
FLAGS = {"pairs": Flag("pairs of a row, D", count, several=True, default=[2, 4, 8])}
