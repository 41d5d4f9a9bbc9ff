"""Metrics of classes and scores, by scikit-learn, scipy and seqeval.

``METRICS`` has them by the names that records of tasks, logs and results use; ``score`` computes those of a task.
"""

import itertools
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from sklearn.preprocessing import MultiLabelBinarizer

from ..data.task_record import Task
from ..errors import UserError

LEAST_SPREAD = 2e-4  # of predicted scores, relative to the targets': constant predictions differ by rounding


def _correlation(function: Callable, targets: Sequence[float], predictions: Sequence[float]) -> float:
    varies = 0 < LEAST_SPREAD * np.ptp(targets) < np.ptp(predictions) < math.inf
    return function(targets, predictions).statistic if varies else 0.0


def _accuracy(targets: Sequence, predictions: Sequence) -> float:
    return sum(map(operator.eq, targets, predictions)) / len(targets)


def _f1(average: str, targets: Sequence, predictions: Sequence) -> float:
    """Return the F1 of one class per row, or of a tuple of classes."""
    columns = None
    if isinstance(targets[0], tuple):
        classes = sorted(set(itertools.chain(*targets, *predictions)))
        if not classes:
            return 0.0
        binarizer = MultiLabelBinarizer(classes=[*classes, ""])  # scikit-learn rejects a single column
        targets, predictions = binarizer.fit_transform(targets), binarizer.fit_transform(predictions)
        columns = range(len(classes))
    return f1_score(targets, predictions, labels=columns, average=average, zero_division=0)


def _matthews(targets: Sequence[str], predictions: Sequence[str]) -> float:
    return matthews_corrcoef(targets, predictions) if len({*targets, *predictions}) > 1 else 0.0


def _entity_f1(targets: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]) -> float:
    try:
        from seqeval.metrics import f1_score as f1_of_entities
    except ImportError as error:
        raise UserError("the metric entity_f1 needs the package seqeval: pip install seqeval") from error
    return f1_of_entities(list(map(list, targets)), list(map(list, predictions)), zero_division=0)


@dataclass(frozen=True)
class Metric:
    """Metric of targets and predictions, 1 at best.

    Both are sequences with an item per row: a class, a number, for a multi-label task a tuple of classes. With
    `of_rows` the item is a tuple with the tag of each word; other metrics take all words alike.
    """

    title: str
    function: Callable[[Sequence, Sequence], float]
    of_rows: bool = False

    def __call__(self, targets: Sequence, predictions: Sequence) -> float:
        return float(self.function(targets, predictions))


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy", _accuracy),  # for several classes, the rows with all of them right
    "f1": Metric("F1", partial(f1_score, pos_label="1", zero_division=0)),
    "macro_f1": Metric("macro F1", partial(_f1, "macro")),
    "micro_f1": Metric("micro F1", partial(_f1, "micro")),
    "mcc": Metric("Matthews", _matthews),
    "pearson": Metric("Pearson", partial(_correlation, pearsonr)),
    "spearman": Metric("Spearman", partial(_correlation, spearmanr)),
    "entity_f1": Metric("entity F1", _entity_f1, of_rows=True),
}

SCORE = "score"  # name under which the criterion logs the mean of the headline metrics


def score(task: Task, targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """Return the task's metrics, times 100, of targets and predictions in the form of ``Metric``.

    A correlation is 0 if targets or predictions are constant, or not finite: scipy returns nan, or the correlation of
    rounding errors.
    """
    rows = words = (targets, predictions)
    if task.kind == "token-label":
        words = list(itertools.chain(*targets)), list(itertools.chain(*predictions))
    return {name: 100 * METRICS[name](*(rows if METRICS[name].of_rows else words)) for name in task.metrics}


def value_of(metric: str, task: Task, scores: Mapping[str, Mapping[str, float]]) -> float:
    """Return the mean of a metric over dev sets, or of the headline metrics for ``score``; it chooses settings.

    fairseq chooses checkpoints by the same value on the first dev set. Minus infinity without scores.
    """
    names = task.headline if metric == SCORE else (metric,)
    values = [scores[split][name] for split in task.dev_sets if split in scores for name in names]
    return statistics.mean(values) if values else -math.inf
