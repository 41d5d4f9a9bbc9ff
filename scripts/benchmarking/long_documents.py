"""The study ``long-documents``: small classifiers of passages of 512 to 8,192 tokens."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.finetune import baseline
from fairseq_linformer.model.config import ResolvedConfig

from . import book_tasks, small_model
from .book_tasks import Shelf, TaskData, task_data
from .engine import (
    COST,
    Columns,
    Comparison,
    Experiment,
    InProcess,
    Tuned,
    over_lengths,
    time_updates,
    values_column,
)
from .flags import SHARED, Flag, chosen_variants, count
from .plots import Panel, draw
from .small_model import HEAD, SmallTrainer, base_model, build_model, configure_model
from .store import PACKAGE, Figures, Store, code_digest
from .variants import variants_of

MODEL = base_model(64)
UPDATES = {"books": 600, "needles": 1600}
# After 800 updates at n = 512 two of three seeds of full attention had found some of the needles, not all of them.
RATES = {"books": [0.001, 0.002, 0.004], "needles": [0.00075, 0.0015, 0.003]}
BESIDE = {"baseline": "TF-IDF + linear SVM", "majority": "most frequent label"}


class PassageTrainer(SmallTrainer):
    """A model with a classification head on ``<s>``, and the batches of one seed.

    Args:
        data: what it is trained and tested on.
        config: of the model.
        rate, updates, device: as in ``SmallTrainer``.
        seed: of weights and batches. Rows are in a random order, all once before one is there again.
        tokens: of an update; at least one row.
    """

    def __init__(
        self, data: TaskData, config: ResolvedConfig, rate: float, seed: int, updates: int, tokens: int, device: str
    ):
        model = build_model(config, data.dictionary, seed, data.classes)
        batch = max(1, tokens // data.train.tokens.size(1))
        super().__init__(model, data.train, batch, rate, seed, updates, device)
        self.left = torch.empty(0, dtype=torch.int64)

    def numbers(self) -> Tensor:
        while len(self.left) < self.batch:
            self.left = torch.cat([self.left, torch.randperm(len(self.rows), generator=self.generator)])
        numbers, self.left = self.left[: self.batch], self.left[self.batch :]
        return numbers

    def logits(self, tokens: Tensor) -> Tensor:
        """Of rows (B, n); (B, classes)."""
        logits: Tensor = self.model(tokens, features_only=True, classification_head_name=HEAD)[0]
        return logits


@dataclass(frozen=True)
class LongDocuments(InProcess):
    """Variants that are trained on one task at one length.

    Args:
        task: its name.
        data: its rows.
        digest: of all that is in them.
        tokens: of an update, at least one row.
    """

    task: str
    data: TaskData
    digest: str
    tokens: int
    base = MODEL
    code = (PACKAGE, *(Path(file) for file in (__file__, small_model.__file__, book_tasks.__file__)))

    def trainer(self, variant: str, rate: float, seed: int, updates: int) -> SmallTrainer:
        return PassageTrainer(self.data, self.config(variant), rate, seed, updates, self.tokens, self.device)

    def test(self, trainer: SmallTrainer) -> dict[str, float]:
        return {"valid": trainer.share(self.data.valid), "test": trainer.share(self.data.test)}

    def score(self, figures: Figures) -> float:
        return float(figures["valid"])

    def rows(self) -> dict[str, Any]:
        return {"data": self.digest, "tokens": self.tokens}

    def baseline(self) -> float:
        """The share of the test rows whose label TF-IDF and a linear SVM find, learned from the same rows."""
        train, test = self.data.train, self.data.test

        def compute() -> dict[str, float]:
            task = own_task(self.task, "single-label", [str(number) for number in range(self.data.classes)])
            labels = [str(label) for label in train.answers.tolist()]
            asked = {"test": [[text] for text in test.texts]}
            said = baseline.learn_and_predict(task, [[text] for text in train.texts], labels, asked)["test"]
            right = [int(own) == label for own, label in zip(said, test.answers.tolist(), strict=True)]
            return {"accuracy": sum(right) / len(right)}

        about = {"code": code_digest((Path(baseline.__file__),)), "data": self.digest}
        return self.store.once(f"{self.folder}/baseline", about, compute)["accuracy"]


def experiments(options: Namespace, store: Store) -> list[LongDocuments]:
    """One for each n, shortest first, with its rows.

    Raises:
        OSError: what the task reads is not there.
        UserError: an option or an override cannot work.
    """
    options.updates = options.updates or UPDATES[options.task]
    options.learning_rates = options.learning_rates or RATES[options.task]
    chosen = {n: chosen_variants(options, variants_of("long-documents", n)) for n in sorted(options.lengths)}
    for n, named in chosen.items():
        for overrides in named.values():
            configure_model(MODEL, overrides, n)  # which takes less time than rows
    shelf = Shelf.read(options.corpus, options.tokenizer)
    found = []
    for n, named in chosen.items():
        seen = options.updates * max(1, options.tokens // n)  # TF-IDF, too, learns from no more
        data = task_data(options.task, shelf, n, options.rows or seen, options.test_rows)
        run = options.updates, options.device, options.task, data, data.digest(), options.tokens
        found.append(LongDocuments(store, n, named, f"{options.task}/n{n}", *run))
    return found


def costs(options: Namespace, compared: Sequence[Experiment], tuned: Sequence[Tuned]) -> None:
    """Gives each variant the seconds of an update, and what stands beside it."""
    time_updates(options, compared, tuned)
    for experiment in cast(Sequence[LongDocuments], compared):
        beside = {"baseline": experiment.baseline(), "majority": experiment.data.majority()}
        for own in tuned:
            if own.n == experiment.n:
                own.cost |= beside


def columns(options: Namespace, tuned: Sequence[Tuned]) -> Columns:
    """Accuracies with their deviation over seeds, costs, and what stands beside them."""
    about = f"{options.task}: % of {options.test_rows} test rows after {options.updates} updates, "
    about += f"seeds {', '.join(map(str, options.seeds))}"
    found = {**values_column(about, _percent, ".1f"), **COST}
    return found | {title: partial(_beside, what) for what, title in BESIDE.items()}


def _percent(own: Tuned) -> list[float]:
    return [100 * share for share in own.each("test")]


def _beside(what: str, own: Tuned) -> str:
    return f"{100 * own.cost[what]:.1f}"


def draw_lengths(options: Namespace, tuned: Sequence[Tuned], path: Path) -> None:
    """Accuracy, from the lowest seed to the highest, and the time of an update, with its quartiles, against n."""
    accuracies = over_lengths(tuned, _percent)
    times = over_lengths(tuned, lambda own: [1000 * own.cost["seconds"]])
    for what, title in BESIDE.items():
        accuracies[title] = {own.n: [100 * own.cost[what]] for own in tuned}
    first = Panel(accuracies, options.task, y="test rows found, %", log=False, limits=(0, 105))
    tokens = f"an update has {options.tokens:,} tokens, at least one row"
    draw([[first, Panel(times, tokens, y="ms per update (median)")]], path)


LONG_DOCUMENTS = Comparison(
    experiments=experiments,
    quantity="% of valid",
    form=lambda share: f"{100 * share:.1f}",
    columns=columns,
    pictures={"lengths.png": draw_lengths},
    measures=(costs,),
)


FLAGS = {
    "task": Flag("which book a passage is from, or which word it says to remember", metavar=None, choices=[*UPDATES]),
    "corpus": Flag("books, with a blank line after each", Path, "FILE"),
    "tokenizer": Flag("of its pieces: a prepared corpus or a .model", Path, "DIR|FILE"),
    "learning-rates": replace(SHARED["learning-rates"], shown="0.001 0.002 0.004; needles: 0.00075 0.0015 0.003"),
    "updates": replace(SHARED["updates"], shown="600; needles: 1600"),
    "tokens": Flag("of an update, at least one row", count, default=2048),
    "rows": Flag("to train on", count, shown="those of all updates"),
    "test-rows": Flag("of the test, and for the learning rate", count, default=512),
}
