"""The registered criterion, ``text_prediction``: fairseq's ``sentence_prediction`` with metrics of the whole set.

fairseq's own ends the run where a validation batch has one row, of which there is no correlation, and on several ranks
wherever a metric needs the predictions themselves: it lets the trainer add up the ranks' lists of them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.sentence_prediction import SentencePredictionConfig, SentencePredictionCriterion
from fairseq.data import Dictionary
from fairseq.distributed import utils as distributed
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from ..data.tasks import Task, label_names
from .metrics import SCORE, score


@register_criterion("text_prediction", dataclass=SentencePredictionConfig)
class TextPredictionCriterion(SentencePredictionCriterion):
    """Cross-entropy, or the squared error of a regression; the metrics of the task's record in validation.

    They are those of ``metrics.METRICS`` over all rows of a split, however they are batched and whichever rank
    validated them, times 100 and rounded to one digit; ``score`` is the mean of the headline metrics.
    """

    def __init__(self, cfg: SentencePredictionConfig, task: FairseqTask) -> None:
        super().__init__(cfg, task)
        self.record: Task = task.record
        self.keep_pred_and_targ = True
        if not cfg.regression_target:
            self.label_dict = _numbered(task.label_dictionary)

    def forward(
        self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """fairseq's, but for the rows: a tensor that adds up over ranks where it has a list of each rank's own."""
        loss, sample_size, log = super().forward(model, sample, reduce)
        if "pred" in log:
            rows = [log.pop("pred"), log.pop("targ")]
            log["rows"] = beside_other_ranks(torch.tensor(rows, dtype=torch.double, device=loss.device).T)
        return loss, sample_size, log

    def log_metrics(self, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Logs the task's metrics over all batches since an aggregation began, where there were rows."""
        places = [log["rows"].flatten(0, 1) for log in logging_outputs if "rows" in log]
        if not places:
            return
        rows = torch.cat(places).cpu()
        # Of names with an underscore fairseq shows nothing.
        metrics.log_concat_tensor("_rows", rows[rows[:, 2] > 0, :2])
        for name in self.record.metrics:
            metrics.log_derived(name, partial(self._value, names=(name,)))  # accuracy stays as fairseq logged it
        metrics.log_derived(SCORE, partial(self._value, names=self.record.headline))

    def _value(self, meters: MetersDict, names: Sequence[str]) -> float:
        predictions, targets = meters["_rows"].tensor.T.tolist()
        if self.record.classes:
            classes = self.record.classes
            predictions, targets = ([classes[int(number)] for number in part] for part in (predictions, targets))
        found = score(self.record, targets, predictions)
        return round(mean(found[name] for name in names), 1)


def beside_other_ranks(rows: Tensor) -> Tensor:
    """The rows of this rank in a tensor that is as large on every rank, (ranks, most rows of one, 3), zero elsewhere.

    So the sum over ranks holds the rows of all of them, one after another; in the third column stands a 1 for each.
    """
    ranks, rank = distributed.get_data_parallel_world_size(), 0
    most = torch.tensor(len(rows), device=rows.device)
    if ranks > 1:
        rank = distributed.get_data_parallel_rank()
        distributed.all_reduce(most, distributed.get_data_parallel_group(), op="max")
    places = rows.new_zeros(ranks, int(most), 3)
    places[rank, : len(rows), :2] = rows
    places[rank, : len(rows), 2] = 1
    return places


def _numbered(dictionary: Dictionary) -> Dictionary:
    """Classes named by whole numbers, which fairseq's forward needs: by position."""
    numbers = Dictionary()
    for position in range(len(label_names(dictionary))):
        numbers.add_symbol(str(position))
    return numbers
