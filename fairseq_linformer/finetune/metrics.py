"""Metrics of classes and scores, by scikit-learn, scipy and seqeval, and what Linformer's paper reports.

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
from ..data.tasks import TASKS
from ..errors import UserError
from ..model.config import ResolvedConfig

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

# Wang et al. 2020, table 2: accuracy on the dev sets (IMDB: test) by (n, k, sharing); k None: RoBERTa-base, softmax.
PAPER_TASKS = ("SST-2", "IMDB", "QNLI", "QQP")
PAPER_ROWS = {name: source.files["train"].rows for name in PAPER_TASKS if (source := TASKS[name].source)}
PAPER_ROWS["IMDB"] = 25_000
FULL = 0.999  # of the rows of train: some copies of QQP lack a few
PAPER: Mapping[tuple[int, int | None, str | None], tuple[float, ...]] = {
    (512, None, None): (93.1, 94.1, 90.9, 90.9),
    (512, 128, "headwise"): (92.4, 94.0, 90.4, 90.2),
    (512, 128, "key-value"): (93.4, 93.4, 90.3, 90.3),
    (512, 128, "layerwise"): (93.2, 93.8, 90.1, 90.2),
    (512, 256, "headwise"): (93.2, 94.0, 90.6, 90.5),
    (512, 256, "key-value"): (93.3, 93.6, 90.6, 90.6),
    (512, 256, "layerwise"): (93.1, 94.1, 91.2, 90.8),
    (1024, 256, "headwise"): (93.0, 93.8, 90.4, 90.4),
    (1024, 256, "key-value"): (93.0, 93.6, 90.3, 90.4),
    (1024, 256, "layerwise"): (93.2, 94.2, 90.8, 90.5),
}


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
    """What chooses checkpoints, settings and runs: the mean over dev sets of a metric, or ``score``, the headline's.

    Minus infinity where there are no scores.
    """
    names = task.headline if metric == SCORE else (metric,)
    values = [scores[split][name] for split in task.dev_sets if split in scores for name in names]
    return statistics.mean(values) if values else -math.inf


def is_at_chance(metric: str, value: float, majority: float, rows: int) -> bool:
    """Whether a value is no more than two standard errors above the majority class's, on so many rows.

    The error is that of a share of rows, √(p (1 - p) / rows), or of the correlation of what is independent, 1 / √rows.
    """
    share = majority / 100
    variance = 1.0 if metric in CORRELATIONS else share * (1 - share)
    return value <= majority + 200 * math.sqrt(variance / rows)


def paper_score(task: str, metric: str, config: ResolvedConfig, rows: int) -> str:
    """What table 2 of the paper has for a task with a model's attention, n, k and sharing; empty where it has nothing.

    `rows` are those of train: beside a part of the official ones the paper's figure compares nothing, and is left out.
    The figure is full attention at n=512, and Linformer with learned matrices: at another n, k or sharing the range
    over all that the paper has.
    """
    if metric != "accuracy" or task not in PAPER_TASKS:
        return ""
    if rows < FULL * PAPER_ROWS[task]:
        return ""
    column = PAPER_TASKS.index(task)
    if config.attention == "softmax":
        row = PAPER.get((config.max_positions, None, None))
        return "" if row is None else str(row[column])
    if config.attention != "linformer" or config.projection != "linear" or config.freeze_projection:
        return ""
    setting = (config.max_positions, config.projected_length[0], config.sharing)
    if len(set(config.projected_length)) == 1 and setting in PAPER:
        return str(PAPER[setting][column])
    scores = [row[column] for (_, k, _), row in PAPER.items() if k is not None]
    return f"{min(scores)} to {max(scores)}"
