"""The study ``recall``: masked associative recall by Zoology's protocol, made bidirectional.

The rows are those of the multi-query associative recall of Arora et al. 2023 (arXiv 2312.04927, figure 2): pairs of a
key and a value come first, then each key once more, a query, somewhere in what is otherwise empty. There the model
predicts the value from what stands before it; here the value's place is masked.

    key 3  value 7  key 5  value 1  empty  empty  key 5  <mask>  empty  empty  key 3  <mask>
                                                         = 1                          = 7

Keys and values are drawn anew for every row, so that there is nothing to remember between rows. A model that sees which
values a row holds, and not whose they are, brings back 1 / D of them. One that guesses by the order of the queries has
a little more: as in Zoology's rows, places are drawn for one pair after another, the likelier and nearer ones first, so
earlier pairs tend to be asked first.

Dimensions: B rows, n positions, D pairs, d embedding.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_linformer.errors import UserError, check
from fairseq_linformer.model.config import ResolvedConfig
from linformer_cli.arguments import number

from . import small_model
from .engine import COST, Columns, Comparison, InProcess, Tuned, time_updates, values_column
from .flags import Flag, chosen_variants, count
from .plots import Panel, draw
from .small_model import TEST_SEED, Rows, SmallTrainer, base_model, build_model
from .store import PACKAGE, Figures, Store
from .tables import with_deviation
from .variants import variants_of

MODEL = base_model(128)
PAIRS = {64: 4, 128: 8, 256: 16, 512: 64}  # the paper's D by n
MOST_PAIRS = 1024  # a quarter of the keys
# Numbers in the dictionary, after fairseq's own four: an empty symbol, 4,095 keys, 4,096 values, <mask>.
EMPTY, KEYS, VALUES, MASK = 4, range(5, 4100), range(4100, 8196), 8196
POWER = 0.01  # a: of the places behind the pairs, two positions each, the i-th has a weight of i^(a - 1)
TESTED, LOOKED_AT = 3000, 1000  # rows of test and of valid
EVERY = 100  # updates between two looks at valid


Sets = dict[str, Rows]  # "train", "valid", "test"


@dataclass(frozen=True)
class RecallTask:
    """What a model is trained and tested on.

    Args:
        length: n, even.
        pairs: D, at most n / 4.
        rows: to train on.
        batch: rows of an update.
        stop_at: the share of valid's values with which a training ends.

    Raises:
        UserError: a number is out of its range.
    """

    length: int
    pairs: int
    rows: int
    batch: int
    stop_at: float

    def __post_init__(self) -> None:
        check("length", self.length, self.length % 2 == 0, "even")
        most = min(self.length // 4, MOST_PAIRS)
        allowed = f"from 1 to {most}: a quarter of n={self.length}, at most {MOST_PAIRS}"
        check("pairs", self.pairs, 1 <= self.pairs <= most, allowed)

    def sets(self) -> Sets:
        """The rows of test, valid and train, one draw after another."""
        generator = torch.Generator().manual_seed(TEST_SEED)
        rows = {"test": TESTED, "valid": LOOKED_AT, "train": self.rows}
        return {name: self.draw(number, generator) for name, number in rows.items()}

    def draw(self, rows: int, generator: torch.Generator) -> Rows:
        """Rows as Zoology's ``multiquery_ar`` draws them: no key, value or place of a query is there twice."""
        keys = _distinct(rows, self.pairs, KEYS, generator)
        values = _distinct(rows, self.pairs, VALUES, generator)
        weights = torch.arange(1, self.length // 2 - self.pairs + 1, dtype=torch.float64) ** (POWER - 1)
        places = torch.multinomial(weights.expand(rows, -1), self.pairs, generator=generator)
        places, asked = places.sort(1)
        tokens = torch.full((rows, self.length), EMPTY)
        tokens[:, : 2 * self.pairs] = torch.stack([keys, values], 2).flatten(1)
        query = 2 * (self.pairs + places)
        tokens.scatter_(1, query, keys.gather(1, asked)).scatter_(1, query + 1, MASK)
        return Rows(tokens, values.gather(1, asked))


def _distinct(rows: int, number: int, symbols: range, generator: torch.Generator) -> Tensor:
    """Different symbols for each row, (rows, number): what a row has twice is drawn again."""
    found = torch.empty(rows, number, dtype=torch.int64)
    again = torch.ones(rows, number, dtype=torch.bool)
    while again.any():
        found[again] = torch.randint(symbols.start, symbols.stop, (int(again.sum()),), generator=generator)
        ordered, places = found.sort(1)
        again = torch.zeros_like(again).scatter_(1, places[:, 1:], ordered.diff(dim=1) == 0)
    return found


class RecallTrainer(SmallTrainer):
    """A model, its optimizer, and the batches of one seed.

    Args:
        task: what is drawn, and when enough is learned.
        sets: its rows.
        config: of the model.
        rate, seed, updates, device: as in ``SmallTrainer``; the seed is also that of the weights.
    """

    def __init__(
        self, task: RecallTask, sets: Sets, config: ResolvedConfig, rate: float, seed: int, updates: int, device: str
    ):
        dictionary = Dictionary()
        for symbol in range(EMPTY, MASK):
            dictionary.add_symbol(f"symbol{symbol}")
        dictionary.add_symbol("<mask>")
        model = build_model(config, dictionary, seed)
        super().__init__(model, sets["train"], task.batch, rate, seed, updates, device)
        self.stop_at, self.valid = task.stop_at, sets["valid"]
        self.curve: dict[str, float] = {}

    def train(self) -> None:
        """All updates, or until valid is learned."""
        for update in range(1, self.updates + 1):
            self.model.train()
            self.step()
            if update % EVERY == 0 or update == self.updates:
                self.curve[str(update)] = share = self.share(self.valid)
                if share >= self.stop_at:
                    return

    def numbers(self) -> Tensor:
        return torch.randint(len(self.rows), (self.batch,), generator=self.generator)

    def logits(self, tokens: Tensor) -> Tensor:
        """At the masks of rows, (B D, symbols)."""
        logits: Tensor = self.model(tokens, masked_tokens=tokens == MASK, padded=False)[0]
        return logits


@dataclass(frozen=True)
class Recall(InProcess):
    """Variants that are trained on one task."""

    task: RecallTask
    base = MODEL
    code = (PACKAGE, Path(__file__), Path(small_model.__file__))

    @cached_property
    def sets(self) -> Sets:
        """The task's rows."""
        return self.task.sets()

    def trainer(self, variant: str, rate: float, seed: int, updates: int) -> SmallTrainer:
        return RecallTrainer(self.task, self.sets, self.config(variant), rate, seed, updates, self.device)

    def test(self, trainer: SmallTrainer) -> Figures:
        own = cast(RecallTrainer, trainer)
        *_, (updates, valid) = own.curve.items()
        return {"valid": valid, "test": own.share(self.sets["test"]), "updates": int(updates), "curve": own.curve}

    def score(self, figures: Figures) -> float:
        """What is brought back of valid; of two runs that were stopped for it, the quicker one has more."""
        return float(min(figures["valid"], self.task.stop_at) - 1e-9 * figures["updates"])

    def rows(self) -> dict[str, Any]:
        return {"task": asdict(self.task)}


def experiments(options: Namespace, store: Store) -> list[Recall]:
    """One for each n, shortest first.

    Raises:
        UserError: a length, a number of pairs or an override cannot work.
    """
    found = []
    for n in sorted(options.lengths):
        batch = max(1, options.tokens // n)
        task = RecallTask(n, pairs_of(options, n), options.rows, batch, options.stop_at)
        named = chosen_variants(options, variants_of("recall", n))
        found.append(Recall(store, n, named, f"n{n}", options.updates, options.device, task))
    return found


def pairs_of(options: Namespace, n: int) -> int:
    """D: what the user says, or the paper's.

    Raises:
        UserError: neither says it.
    """
    given = options.pairs or PAIRS.get(n)
    if given is None:
        raise UserError(f"length={n} is not one of the paper's, {', '.join(map(str, PAIRS))}: give --pairs, too")
    return int(given)


def columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """What is brought back of the test, when that of valid was enough, and the cost."""
    pairs: Columns = {"D": lambda own: str(pairs_of(options, own.n))}
    until: Columns = {f"updates until {100 * options.stop_at:g}%": partial(_until, options.stop_at)}
    found = values_column("% of test", lambda own: [100 * share for share in own.each("test")], ".1f")
    return {**pairs, **found, **until, **COST}


def _until(stop_at: float, own: Tuned) -> str:
    """The updates of the runs that were stopped, and how many were not."""
    stopped = [own["updates"] for own in own.results.values() if own["valid"] >= stop_at]
    missing = f"not reached by {len(own.results) - len(stopped)} of {len(own.results)}"
    reached = [with_deviation(stopped, ".0f")] if stopped else []
    return "; ".join([*reached, *([missing] if len(stopped) < len(own.results) else [])])


def notes(options: Namespace, tuned: Sequence[Tuned]) -> list[str]:
    """What the columns are."""
    seen = f"at most {options.updates:,} updates of {options.tokens:,} tokens; seeds: {len(options.seeds)}"
    said = f"Percent of the values of {TESTED:,} test rows after {seen}."
    unseen = "has 1/D, or a little more by the order of the queries"
    return [f"{said} Who sees the values of a row, not whose they are, {unseen}."]


def draw_curves(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """What is brought back of valid against updates, from the lowest seed to the highest; a panel for each n."""
    panels = []
    for n in sorted(options.lengths):
        curves = {own.variant: _curve(own) for own in tuned if own.n == n}
        title = f"n = {n}, D = {pairs_of(options, n)}"
        panels.append(Panel(curves, title, "updates", "values of valid, %", "linear", log=False, limits=(0, 105)))
    draw([panels], path)


def _curve(own: Tuned) -> dict[int, list[float]]:
    """Of each look, the shares of all seeds; one that was stopped keeps its last."""
    curves = [{int(look): 100 * share for look, share in curve.items()} for curve in own.each("curve")]
    looks = sorted({look for curve in curves for look in curve})
    return {look: [curve[max(own for own in curve if own <= look)] for curve in curves] for look in looks}


RECALL = Comparison(
    experiments=experiments,
    quantity="% of valid, at most --stop-at",
    form=lambda score: f"{100 * max(0.0, score):.1f}",  # a run that brings back nothing has a little less than 0
    columns=columns,
    pictures={"recall.png": draw_curves},
    measures=(time_updates,),
    notes=notes,
)
FLAGS = {
    "pairs": Flag("D, for every n", count, shown="the paper's: 4 for n=64, 8 for 128, 16 for 256, 64 for 512"),
    "rows": Flag("to train on", count, default=100_000),
    "tokens": Flag("of an update, at least one row", count, default=4096),
    "stop-at": Flag("the share of valid at which a run ends", number(float, above=0, most=1), default=0.99),
}
