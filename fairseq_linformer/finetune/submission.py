"""The files of a submission to GLUE's leaderboard (gluebenchmark.com/faq), checked and written."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..data.task_record import read_summary
from ..data.tasks import TASKS
from ..errors import UserError, check

# File: the task and the split that it predicts.
FILES: Mapping[str, tuple[str, str]] = {
    file: (task.name, split) for task in TASKS.values() for split, file in task.leaderboard.items()
}


def check_test_set(data: Path, name: str) -> None:
    """ValueError where a prepared task has not the labels and the test set that a file of the submission needs."""
    task, split = TASKS[FILES[name][0]], FILES[name][1]
    summary = read_summary(data)
    if sorted(summary.task.classes) != sorted(task.classes):
        found, official = (", ".join(names) or "scores" for names in (summary.task.classes, task.classes))
        raise UserError(f"{data}: its labels are {found}, the official ones of {task.name} are {official}")
    rows = summary.splits[split].examples if split in summary.splits else 0
    official_rows = _official_rows(name)
    if rows != official_rows:
        raise UserError(
            f"{data}: its split {split} has {rows} rows, the official test set of {name} has {official_rows}"
        )


def _official_rows(name: str) -> int:
    task, split = FILES[name]
    source = TASKS[task].source
    assert source is not None  # as every task of the leaderboard has
    return source.files[split].rows


def write_submission_file(folder: Path, name: str, predictions: Sequence[str]) -> None:
    """Writes a file of the submission: the number of each row, from 0 on, and the class or the score.

    Raises:
        UserError: there are not as many as the official test set has rows, or one is no class, or no number.
    """
    task, official = TASKS[FILES[name][0]], _official_rows(name)
    check(f"rows of {name}", len(predictions), len(predictions) == official, f"{official}, as of the official test set")
    if task.kind == "regression":  # which may leave the range of the scores
        predictions = [f"{np.clip(float(score), 0.0, task.scale):.3f}" for score in predictions]
    for number, prediction in enumerate(predictions):
        allowed = f"one of {', '.join(task.classes)}" if task.classes else f"a number from 0 to {task.scale:g}"
        right = prediction in task.classes if task.classes else prediction != "nan"
        check(f"row {number} of {name}", prediction, right, allowed)
    rows = ["index\tprediction", *(f"{number}\t{prediction}" for number, prediction in enumerate(predictions))]
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
