"""The study ``long-documents``: small classifiers of rows of 512 to 8,192 tokens."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.finetune import baseline
from fairseq_linformer.model.config import ResolvedConfig

from . import small_model
from .engine import (
    Columns,
    Comparison,
    Experiment,
    InProcess,
    Tuned,
    cost_column,
    over_lengths,
    time_updates,
    values_column,
)
from .flags import SHARED, Flag, chosen_variants, count
from .long_tasks import TASKS, make_rows
from .plots import Panel, draw
from .rows_of_text import PAD, Request, Rows, TaskData
from .small_model import HEAD, SmallTrainer, base_model, build_model, configure_model
from .store import PACKAGE, Figures, Store, code_digest
from .variants import variants_of

MODEL = base_model(64)
EVALUATED = 16_384  # tokens of a batch without gradients
MOST_ROWS = 25_000  # all of the official train of IMDB
BESIDE = {"baseline": "TF-IDF + linear SVM", "majority": "most frequent label"}


class Trainer(SmallTrainer):
    """A model with a classification head on ``<s>``, and the batches of one seed.

    Args:
        data: what it is trained and tested on.
        config: of the model.
        rate: the learning rate after the warm-up; it then falls linearly to zero.
        seed: of weights and batches. Rows are in a random order, all once before one is there again.
        updates: of the whole training.
        tokens: of an update, with padding; at least one row.
        device: as in ``SmallTrainer``.
    """

    def __init__(
        self,
        data: TaskData,
        config: ResolvedConfig,
        rate: float,
        seed: int,
        updates: int,
        tokens: int,
        device: str = "cpu",
    ):
        super().__init__(build_model(config, data.dictionary, seed, data.classes), rate, seed, updates, device)
        self.data = data
        self.batches = self._batches(max(1, tokens // data.train.tokens.size(1)))

    def _batches(self, rows: int) -> Iterator[Tensor]:
        """Numbers of rows, (rows,) each."""
        left = torch.empty(0, dtype=torch.int64)
        while True:
            while len(left) < rows:
                left = torch.cat([left, torch.randperm(len(self.data.train), generator=self.generator)])
            yield left[:rows]
            left = left[rows:]

    def _logits(self, tokens: Tensor) -> Tensor:
        """Of rows (B, n), without the padding that all of them have; (B, classes)."""
        longest = int((tokens != PAD).sum(1).max())
        shown = tokens[:, :longest].to(self.device)
        logits: Tensor = self.model(shown, features_only=True, classification_head_name=HEAD)[0]
        return logits

    def loss(self) -> Tensor:
        numbers = next(self.batches)
        labels = self.data.train.labels[numbers].to(self.device)
        return F.cross_entropy(self._logits(self.data.train.tokens[numbers]), labels)

    @torch.no_grad()
    def accuracy(self, rows: Rows) -> float:
        """The share of rows whose label is found."""
        self.model.eval()
        batches = rows.tokens.split(max(1, EVALUATED // rows.tokens.size(1)))
        found = torch.cat([self._logits(batch).argmax(-1) for batch in batches]).cpu()
        return float((found == rows.labels).double().mean())


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
    code = (PACKAGE, Path(__file__), Path(small_model.__file__))

    def trainer(self, variant: str, rate: float, seed: int, updates: int) -> SmallTrainer:
        return Trainer(self.data, self.config(variant), rate, seed, updates, self.tokens, self.device)

    def test(self, trainer: SmallTrainer) -> dict[str, float]:
        accuracy = cast(Trainer, trainer).accuracy
        return {"valid": accuracy(self.data.valid), "test": accuracy(self.data.test)}

    def score(self, figures: Figures) -> float:
        return float(figures["valid"])

    def rows(self) -> dict[str, Any]:
        return {"data": self.digest, "tokens": self.tokens}

    def baseline(self) -> float:
        """The share of the test rows whose label TF-IDF and a linear SVM find, learned from the same rows."""
        train, test = self.data.train, self.data.test

        def compute() -> dict[str, float]:
            task = own_task(self.task, "single-label", [str(number) for number in range(self.data.classes)])
            labels = [str(label) for label in train.labels.tolist()]
            asked = {"test": [[text] for text in test.texts]}
            said = baseline.learn_and_predict(task, [[text] for text in train.texts], labels, asked)["test"]
            right = [int(own) == label for own, label in zip(said, test.labels.tolist(), strict=True)]
            return {"accuracy": sum(right) / len(right)}

        about = {"code": code_digest((Path(baseline.__file__),)), "data": self.digest}
        about["texts"] = self.data.digest_of_texts()
        return self.store.once(f"{self.folder}/baseline", about, compute)["accuracy"]


def experiments(options: Namespace, store: Store) -> list[LongDocuments]:
    """One for each n, shortest first, with its rows.

    Raises:
        OSError: what the task reads is not there.
        UserError: an option or an override cannot work.
    """
    task = TASKS[options.task]
    for what in ("updates", "tokens", "learning_rates"):
        setattr(options, what, getattr(options, what) or getattr(task, what))
    chosen = {n: chosen_variants(options, variants_of("long-documents", n)) for n in sorted(options.lengths)}
    for n, named in chosen.items():
        for overrides in named.values():
            configure_model(MODEL, overrides, n)  # which takes less time than rows
    found = []
    for n, named in chosen.items():
        seen = options.updates * max(1, options.tokens // n)  # TF-IDF, too, learns from no more
        rows = options.rows or (min(MOST_ROWS, seen) if "source" in task.needs else seen)
        places = options.corpus, options.tokenizer, options.source
        data = make_rows(options.task, Request(n, rows, options.test_rows, *places))
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
    found = {**values_column(about, _percent, ".1f"), **cost_column()}
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


def by_task(what: str) -> str:
    """The defaults of an option: of most tasks, and of those that have others."""
    values = {name: str(getattr(task, what)).strip("()").replace(",", "") for name, task in TASKS.items()}
    usual = max(values.values(), key=list(values.values()).count)
    others = ", ".join(f"{name}: {value}" for name, value in values.items() if value != usual)
    return f"{usual}; {others}"


FLAGS = {
    "task": Flag("what rows and labels are", metavar=None, choices=[*TASKS]),
    "corpus": Flag("of books and needles: books, with a blank line after each", Path, "FILE", shown="none"),
    "tokenizer": Flag("of books, needles, imdb: a prepared corpus or a .model", Path, "DIR|FILE", shown="none"),
    "source": Flag("of imdb…: aclImdb", Path, "DIR|ARCHIVE", shown="none"),
    "learning-rates": replace(SHARED["learning-rates"], shown=by_task("learning_rates")),
    "updates": replace(SHARED["updates"], shown=by_task("updates")),
    "tokens": Flag("of an update, at least one row", count, shown=by_task("tokens")),
    "rows": Flag("to train on, at most", count, shown=f"those of all updates; with --source at most {MOST_ROWS:,}"),
    "test-rows": Flag("of the test, and for the learning rate", count, default=512),
}
