"""The registered criterion, ``text_prediction``: fairseq's ``sentence_prediction`` with metrics of the whole set.

fairseq's own ends the run where a validation batch has one row, of which there is no correlation, and on several ranks
wherever a metric needs the predictions themselves: it lets the trainer add up the ranks' lists of them.
"""

from collections.abc import Callable, Mapping, Sequence
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

from ..data.tasks import label_names
from ..errors import check
from .metrics import CORRELATIONS, METRICS

# What an option of fairseq's logs: each of these metrics, and their mean under the option's own name.
REPORTS: Mapping[str, tuple[str, ...]] = {
    "mcc": ("mcc",),
    "acc_and_f1": ("accuracy", "f1"),
    "pearson_and_spearman": ("pearson", "spearman"),
}


@register_criterion("text_prediction", dataclass=SentencePredictionConfig)
class TextPredictionCriterion(SentencePredictionCriterion):
    """Cross-entropy, or the squared error of a regression; Matthews, F1 and correlations in validation.

    The metrics are those of ``scores.METRICS`` over all rows of a split, however they are batched and whichever rank
    validated them, times 100 and rounded to one digit. Classes may have any names; F1 is of the one named 1.

    Raises:
        ValueError: a metric that cannot be computed is asked for.
    """

    def __init__(self, cfg: SentencePredictionConfig, task: FairseqTask) -> None:
        super().__init__(cfg, task)
        for name in ("report_mcc", "report_acc_and_f1"):
            check(name, True, not (getattr(cfg, name) and cfg.regression_target), "false with regression_target=true")
        asked = cfg.report_pearson_and_spearman
        check("report_pearson_and_spearman", True, cfg.regression_target or not asked, "false for classes")
        if cfg.report_acc_and_f1:
            binary = task.cfg.num_classes == 2 and "1" in task.label_dictionary
            check("report_acc_and_f1", True, binary, "false, unless there are two classes, one of them named 1")
        if not cfg.regression_target:
            self.label_dict = _numbered(task.label_dictionary, binary=cfg.report_acc_and_f1)

    def forward(
        self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """fairseq's, but for the rows: a tensor that adds up over ranks where it has a list of each rank's own."""
        loss, sample_size, log = super().forward(model, sample, reduce)
        if "pred" in log:
            rows = [log.pop("pred"), log.pop("targ")]
            log["rows"] = beside_other_ranks(torch.tensor(rows, dtype=torch.double, device=loss.device).T)
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Logs what fairseq does, over all batches since an aggregation began."""
        SentencePredictionCriterion.reduce_metrics(logging_outputs)
        places = [log["rows"].flatten(0, 1) for log in logging_outputs if "rows" in log]
        if not places:
            return
        rows = torch.cat(places).cpu()
        rows = rows[rows[:, 2] > 0]
        # Of names with an underscore fairseq shows nothing.
        metrics.log_concat_tensor("_predictions", rows[:, 0])
        metrics.log_concat_tensor("_targets", rows[:, 1])
        for report, names in REPORTS.items():
            if any(f"report_{report}" in log for log in logging_outputs):
                for name in names:
                    metrics.log_derived(name, _mean_of(name))  # accuracy stays as fairseq logged it above
                metrics.log_derived(report, _mean_of(*names))


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


def _numbered(dictionary: Dictionary, *, binary: bool) -> Dictionary:
    """Classes named by whole numbers, which fairseq's forward needs: by position; `binary`: 1, and 0 for any other."""
    numbers = Dictionary()
    for position, name in enumerate(label_names(dictionary)):
        numbers.add_symbol(str(int(name == "1") if binary else position))
    return numbers


def _mean_of(*names: str) -> Callable[[MetersDict], float]:
    def value(meters: MetersDict) -> float:
        columns = [meters[name].tensor.numpy() for name in ("_targets", "_predictions")]
        if not CORRELATIONS.issuperset(names):
            columns = [column.astype(int).astype(str) for column in columns]
        return round(100 * mean(float(METRICS[name](*columns)) for name in names), 1)

    return value
