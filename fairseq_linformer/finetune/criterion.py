"""Registered criterion ``text_prediction``: a loss for each type of label, and metrics of the whole set.

fairseq's own ``sentence_prediction`` ends the run if a validation batch has one row, which has no correlation, and on
several ranks if a metric needs the predictions themselves: it lets the trainer add up the ranks' lists of them.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from ..data.targets import TRUNCATED, majority_class
from ..data.task_record import Task
from ..errors import check
from ..training.options import check_best_metric
from .metrics import METRICS, SCORE, score

THRESHOLD = 0.5  # several classes are predicted if they are more probable than this
IGNORED = -100  # a target without a loss


@dataclass
class TextPredictionCriterionConfig(FairseqDataclass):
    """Options of ``text_prediction``; the loss and the metrics follow from the task's record."""

    classification_head_name: str = field(
        default="sentence_classification_head", metadata={"help": "name of the classification head to use"}
    )
    regression_target: Optional[bool] = field(  # noqa: UP045
        default=None, metadata={"help": "True if labels are scores (default: by the type of label of the task)"}
    )
    class_weights: Any = field(
        default=None,
        metadata={
            "help": "of the loss: a list as label/dict.txt has classes, or balanced: rows / (classes x its rows)"
        },
    )


@dataclass
class Outcome:
    """Outcome of a batch.

    The rows for the metrics, (rows, columns), have the targets' columns, as many of the predictions, and for a word 1
    if it is the first of its row. Truncated words are included.
    """

    loss: Tensor  # sum
    size: int | Tensor  # number of rows, or of words without truncated ones, that the loss is summed over
    rows: Tensor
    cut: Tensor | None = None  # number of truncated words, for token labels


@register_criterion("text_prediction", dataclass=TextPredictionCriterionConfig)
class TextPredictionCriterion(FairseqCriterion):
    """Loss of the task's type of label; its metrics in validation.

    Cross-entropy per row or word; for several classes per row the binary cross-entropy of each, averaged over classes;
    the squared error of a score. Losses are logged in base 2, as in fairseq; ``class_weights`` weigh them, also in
    validation.

    The metrics are those of the task's record over all rows of a split, independent of batches and ranks, times 100 and
    rounded to one digit; ``score`` is the mean of its headline metrics. A truncated word counts as predicted to be of
    the most frequent class; ``words_cut`` is their share, in percent.
    """

    def __init__(self, cfg: TextPredictionCriterionConfig, task: FairseqTask) -> None:
        super().__init__(task)
        allowed = "another, as the task is not text_prediction"
        check("criterion", "text_prediction", hasattr(task, "record"), allowed)
        self.record: Task = task.record
        self.head = cfg.classification_head_name
        self.weights = class_weights(cfg.class_weights, task.record, task.label_dictionary)
        if self.record.kind == "token-label":
            self.majority = majority_class(task.label_dictionary, len(self.record.classes))
        for name in self.record.metrics:
            check("metric", name, name in METRICS, f"one of {', '.join(METRICS)}")
        if (root := getattr(task, "to_train", None)) is not None:
            rising = [SCORE, *self.record.metrics, *(["accuracy"] if self.record.kind != "regression" else [])]
            losses = ["loss", "nll_loss", *(["words_cut"] if self.record.kind == "token-label" else [])]
            check_best_metric(root, dict.fromkeys(rising, True) | dict.fromkeys(losses, False))
        self._scored: tuple[Tensor | None, dict[str, float]] = None, {}  # rows, and their metrics

    def forward(
        self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int | Tensor, dict[str, Any]]:
        """Return the loss of a batch, the divisor of its gradients, and the logged values."""
        logits, _ = model(**sample["net_input"], features_only=True, classification_head_name=self.head)
        outcome = self._outcome(logits, sample)
        log = {
            "loss": outcome.loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": len(sample["target"]),
            "sample_size": outcome.size,
        }
        if self.record.kind != "regression":
            targets, predictions = self._targets_and_predictions(outcome.rows)
            log["ncorrect"], log["nrows"] = (targets == predictions).all(dim=1).sum(), len(targets)
        if outcome.cut is not None:
            log["ncut"] = outcome.cut
        if not model.training:
            log["rows"] = gather_ranks(outcome.rows)
        return outcome.loss, outcome.size, log

    def _outcome(self, logits: Tensor, sample: Mapping[str, Any]) -> Outcome:
        targets = sample["target"]
        if self.weights is not None:
            self.weights = self.weights.to(logits.device)
        if self.record.kind == "multi-label":
            return several_classes(logits, targets)
        if self.record.kind == "token-label":
            return classes_of_words(logits, targets, sample["word_starts"], self.majority, self.weights)
        return scores(logits, targets) if self.record.kind == "regression" else one_class(logits, targets, self.weights)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True

    @staticmethod
    def reduce_metrics(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Log averages over batches, as fairseq's ``sentence_prediction`` does."""

        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        loss, size, tokens, rows = (total(name) for name in ("loss", "sample_size", "ntokens", "nrows"))
        metrics.log_scalar("loss", loss / max(size, 1) / math.log(2), size, round=3)
        if size != tokens:
            metrics.log_scalar("nll_loss", loss / tokens / math.log(2), tokens, round=3)
        for name, counted in {"accuracy": "ncorrect", "words_cut": "ncut"}.items():
            if any(counted in log for log in logging_outputs):
                metrics.log_scalar(name, 100.0 * total(counted) / max(rows, 1), rows, round=1)

    def log_metrics(self, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Log the task's metrics over all batches since an aggregation began, if there were rows."""
        rank_rows = [log["rows"].flatten(0, 1) for log in logging_outputs if "rows" in log]
        if not rank_rows:
            return
        rows = torch.cat(rank_rows).cpu()
        rows = rows[rows[:, -1] > 0, :-1]
        if not len(rows):  # no word of them has a known label
            return
        metrics.log_concat_tensor("_rows", rows)  # fairseq does not print names with an underscore
        for name in self.record.metrics:
            metrics.log_derived(name, partial(self._value, names=(name,)))  # accuracy stays as logged above
        metrics.log_derived(SCORE, partial(self._value, names=self.record.headline))

    def _value(self, meters: MetersDict, names: Sequence[str]) -> float:
        rows = meters["_rows"].tensor
        if rows is not self._scored[0]:
            self._scored = rows, score(self.record, *self._named(rows))
        return round(mean(self._scored[1][name] for name in names), 1)

    def _named(self, rows: Tensor) -> tuple[list, list]:
        """Return the targets and predictions as ``METRICS`` reads them."""
        parts = self._targets_and_predictions(rows)
        if self.record.kind == "token-label":
            begins = rows[:, -1].nonzero()[1:, 0].tolist()
            lists = [[list_of.tolist() for list_of in part.flatten().tensor_split(begins)] for part in parts]
        else:
            lists = [part.tolist() for part in parts]
        targets, predictions = ([self.record.label(numbers) for numbers in part] for part in lists)
        return targets, predictions

    def _targets_and_predictions(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        width = len(self.record.classes) if self.record.kind == "multi-label" else 1
        return rows[:, :width], rows[:, width : 2 * width]


def class_weights(option: Any, record: Task, dictionary: Dictionary) -> Tensor | None:
    """Return the weights of the classes, (classes,), from the option, which must suit the task."""
    if option is None:
        return None
    name, count, kinds = "criterion.class_weights", len(record.classes), ("single-label", "token-label")
    check(name, option, record.kind in kinds, f"left out with {record.kind} tasks")
    rows = dictionary.count[dictionary.nspecial :][:count]
    weights = [sum(rows) / (count * max(1, class_count)) for class_count in rows] if option == "balanced" else option
    works = isinstance(weights, Sequence) and len(weights) == count
    works = works and all(isinstance(weight, int | float) and weight >= 0 for weight in weights)
    check(name, option, works, f"balanced, or a list of {count} numbers, each at least 0: {', '.join(record.classes)}")
    return torch.tensor([float(weight) for weight in weights])


def one_class(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Outcome:
    """Return the outcome of logits (B, classes) and targets (B, 1)."""
    targets = targets.view(-1)
    loss = F.nll_loss(F.log_softmax(logits, dim=-1, dtype=torch.float32), targets, weights, reduction="sum")
    return Outcome(loss, len(targets), torch.stack((targets, logits.argmax(dim=1)), dim=1))


def scores(logits: Tensor, targets: Tensor) -> Outcome:
    """Return the outcome of one output per row, (B, 1), and targets (B, 1)."""
    logits, targets = logits.view(-1).float(), targets.view(-1).float()
    loss = F.mse_loss(logits, targets, reduction="sum")
    return Outcome(loss, len(targets), torch.stack((targets, logits.detach()), dim=1))


def several_classes(logits: Tensor, targets: Tensor) -> Outcome:
    """Return the outcome of logits (B, classes) and targets (B, classes), 0 or 1."""
    loss = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), reduction="sum") / logits.shape[1]
    return Outcome(loss, len(targets), torch.cat((targets, chosen(logits).to(targets.dtype)), dim=1))


def chosen(logits: Tensor) -> Tensor:
    """Return the predicted classes of several, True or False in the shape of the logits."""
    return logits.float().sigmoid() > THRESHOLD


def classes_of_words(
    logits: Tensor, targets: Tensor, word_starts: Tensor, majority: int, weights: Tensor | None = None
) -> Outcome:
    """Return the outcome of logits (B, n, classes), and targets and starts of words as in ``data/targets.py``."""
    predictions = tags(logits, word_starts, majority)
    uncut, labelled = word_starts != TRUNCATED, targets >= 0
    at_words = logits.gather(1, word_starts.clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1]))
    log_probabilities = F.log_softmax(at_words.flatten(0, 1), dim=-1, dtype=torch.float32)
    learned = targets.where(uncut & labelled, IGNORED).flatten()
    loss = F.nll_loss(log_probabilities, learned, weights, ignore_index=IGNORED, reduction="sum")
    row = torch.arange(len(targets), device=targets.device)[:, None].expand_as(targets)[labelled]
    first = row.diff(prepend=row.new_full((1,), -1)) > 0
    rows = torch.stack((targets[labelled], predictions[labelled], first.to(targets.dtype)), dim=1)
    return Outcome(loss, (uncut & labelled).sum(), rows, (labelled & ~uncut).sum())


def tags(logits: Tensor, word_starts: Tensor, majority: int) -> Tensor:
    """Return the class of each word, (…, words), from logits (…, n, classes); `majority` for truncated words."""
    return logits.argmax(dim=-1).gather(-1, word_starts.clamp(min=0)).where(word_starts != TRUNCATED, majority)


def gather_ranks(rows: Tensor) -> Tensor:
    """Return the rows of this rank in a tensor of equal size on all ranks, (ranks, rows of the largest, columns + 1).

    It is zero for other ranks, so that the sum over ranks holds the rows of all. The last column has a 1 for each row.
    """
    ranks, rank = distributed.get_data_parallel_world_size(), 0
    max_rows = torch.tensor(len(rows), device=rows.device)
    if ranks > 1:
        rank = distributed.get_data_parallel_rank()
        distributed.all_reduce(max_rows, distributed.get_data_parallel_group(), op="max")
    columns = rows.shape[1]
    padded = torch.zeros(ranks, int(max_rows), columns + 1, device=rows.device)
    padded[rank, : len(rows), :columns] = rows
    padded[rank, : len(rows), columns] = 1
    return padded
