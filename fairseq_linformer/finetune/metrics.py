"""Metrics of classes and scores, by scikit-learn, scipy and seqeval.

``METRICS`` has them by the names that records of tasks, logs and results use; ``score`` computes those of a task.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.preprocessing import MultiLabelBinarizer

from ..data.task_record import Task
from ..errors import UserError

# Of predicted scores, as a share of the targets': those of a model that says the same of every row differ by rounding.
LEAST_SPREAD = 2e-4


def _correlation(function: Callable, targets: Sequence[float], predictions: Sequence[float]) -> float:
    varies = 0 < LEAST_SPREAD * np.ptp(targets) < np.ptp(predictions) < math.inf
    return function(targets, predictions).statistic if varies else 0.0


def _indicators(targets: Sequence[tuple[str, ...]], predictions: Sequence[tuple[str, ...]]) -> tuple[Any, Any, range]:
    """A 0 or 1 per row and class, (rows, classes + 1), and the columns of classes.

    The last column is of none: scikit-learn takes a single one for something else.
    """
    classes = sorted(set(itertools.chain(*targets, *predictions)))
    binarizer = MultiLabelBinarizer(classes=[*classes, ""])
    return binarizer.fit_transform(targets), binarizer.fit_transform(predictions), range(len(classes))


def _accuracy(targets: Sequence, predictions: Sequence) -> float:
    if isinstance(targets[0], tuple):
        targets, predictions, _ = _indicators(targets, predictions)
    return accuracy_score(targets, predictions)


def _f1(average: str, targets: Sequence, predictions: Sequence) -> float:
    columns = None
    if isinstance(targets[0], tuple):
        targets, predictions, columns = _indicators(targets, predictions)
    if columns is not None and not columns:
        return 0.0
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
    """A metric of targets and predictions, 1 at best.

    Both are sequences with an item per row: a class name; for a multi-label task a tuple of names; a number for
    ``of_scores``; a tuple of tags, one per word, for ``of_rows``.

    Attributes:
        title: what tables call it.
        function: computes it.
        of_scores: it is of numbers.
        of_rows: for token labels it needs the tags row by row; the others are of all words alike.
    """

    title: str
    function: Callable[[Sequence, Sequence], float]
    of_scores: bool = False
    of_rows: bool = False

    def __call__(self, targets: Sequence, predictions: Sequence) -> float:
        return float(self.function(targets, predictions))


METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy", _accuracy),  # of several classes: rows with all of them right
    "f1": Metric("F1", partial(f1_score, pos_label="1", zero_division=0)),
    "macro_f1": Metric("macro F1", partial(_f1, "macro")),
    "micro_f1": Metric("micro F1", partial(_f1, "micro")),
    "mcc": Metric("Matthews", _matthews),
    "pearson": Metric("Pearson", partial(_correlation, pearsonr), of_scores=True),
    "spearman": Metric("Spearman", partial(_correlation, spearmanr), of_scores=True),
    "entity_f1": Metric("entity F1", _entity_f1, of_rows=True),
}

CORRELATIONS = ("mcc", "pearson", "spearman")
SCORE = "score"  # what the criterion logs the mean of the headline metrics as


def score(task: Task, targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """The task's metrics, times 100, of rows as ``Metric`` has them.

    A correlation with targets or predictions that are all alike, or not numbers, is 0, as Matthews' is by definition;
    scipy gives nan there, or that of their rounding errors.
    """
    rows = words = (targets, predictions)
    if task.kind == "token-label":
        words = list(itertools.chain(*targets)), list(itertools.chain(*predictions))
    return {name: 100 * METRICS[name](*(rows if METRICS[name].of_rows else words)) for name in task.metrics}


def value_of(metric: str, task: Task, scores: Mapping[str, Mapping[str, float]]) -> float:
    """What chooses settings and runs: the mean over dev sets of a metric, or ``score``, the headline's.

    fairseq chooses checkpoints by the same, of the first dev set alone: of MNLI by the matched one. Minus infinity
    where there are no scores.
    """
    names = task.headline if metric == SCORE else (metric,)
    values = [scores[split][name] for split in task.dev_sets if split in scores for name in names]
    return statistics.mean(values) if values else -math.inf
