"""The official metrics of GLUE's tasks and IMDB, by scikit-learn and scipy, and what Linformer's paper reports.

All are times 100, and named as our criterion and fairseq's ``sentence_prediction`` log them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from ..config import ResolvedConfig

# Of predicted scores, as a share of the targets': those of a model that says the same of every row differ by rounding.
LEAST_SPREAD = 2e-4


def _correlation(function: Callable, targets: Sequence[float], predictions: Sequence[float]) -> float:
    varies = 0 < LEAST_SPREAD * np.ptp(targets) < np.ptp(predictions) < math.inf
    return function(targets, predictions).statistic if varies else 0.0


def _f1(targets: Sequence[str], predictions: Sequence[str]) -> float:
    return f1_score(targets, predictions, pos_label="1", zero_division=0)


def _matthews(targets: Sequence[str], predictions: Sequence[str]) -> float:
    return matthews_corrcoef(targets, predictions) if len({*targets, *predictions}) > 1 else 0.0


METRICS: Mapping[str, Callable[[Sequence, Sequence], float]] = {
    "accuracy": accuracy_score,
    "f1": _f1,
    "mcc": _matthews,
    "pearson": partial(_correlation, pearsonr),
    "spearman": partial(_correlation, spearmanr),
}
CORRELATIONS = frozenset({"pearson", "spearman"})  # of scores; the others are of class names
NAMES = {"accuracy": "accuracy", "f1": "F1", "mcc": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}

_TWO = ("accuracy", "f1")
TASK_METRICS: Mapping[str, tuple[str, ...]] = {
    "CoLA": ("mcc",),
    "SST-2": ("accuracy",),
    "MRPC": _TWO,
    "QQP": _TWO,
    "STS-B": ("pearson", "spearman"),
    "MNLI": ("accuracy",),
    "QNLI": ("accuracy",),
    "RTE": ("accuracy",),
    "WNLI": ("accuracy",),
    "IMDB": ("accuracy",),
}

# Wang et al. 2020, table 2: accuracy on the dev sets (IMDB: test) by (n, k, sharing); k None: RoBERTa-base, softmax.
PAPER_TASKS = ("SST-2", "IMDB", "QNLI", "QQP")
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


def score(task: str, targets: Sequence, predictions: Sequence) -> dict[str, float]:
    """The task's metrics, times 100: of class names, or of numbers for a regression.

    A correlation with targets or predictions that are all alike, or not numbers, is 0, as Matthews' is by definition;
    scipy gives nan there, or that of their rounding errors.
    """
    return {name: 100 * float(METRICS[name](targets, predictions)) for name in TASK_METRICS[task]}


def paper_score(task: str, metric: str, config: ResolvedConfig) -> str:
    """What table 2 of the paper has for a task with a model's attention, n, k and sharing; empty where it has nothing.

    That is full attention at n=512, and Linformer with learned matrices: at another n, k or sharing the range over all
    that the paper has.
    """
    if metric != "accuracy" or task not in PAPER_TASKS:
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
