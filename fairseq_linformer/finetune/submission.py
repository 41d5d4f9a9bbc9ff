"""The files of a submission to GLUE's leaderboard (gluebenchmark.com/faq), written and checked."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..data.summary import read_summary
from ..data.task_record import Task
from ..data.tasks import TASKS
from ..data.text import decoded
from ..errors import UserError

HEADER = "index\tprediction"

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
    """Writes a file of the submission: the number of each row, from 0 on, and the class or the score."""
    task = TASKS[FILES[name][0]]
    if task.kind == "regression":  # which may leave the range of the scores
        predictions = [f"{np.clip(float(score), 0.0, task.scale):.3f}" for score in predictions]
    rows = [HEADER, *(f"{number}\t{prediction}" for number, prediction in enumerate(predictions))]
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def check_submission(folder: Path) -> None:
    """Checks every table of a folder.

    Raises:
        ValueError: a file is none of the submission's, or has not the leaderboard's header, number of rows, numbering
            and predictions.
    """
    for path in sorted(folder.glob("*.tsv")):
        if path.name not in FILES:
            raise UserError(f"{path} is no file of a submission: those are {', '.join(sorted(FILES))}")
        _check_file(path)


def _check_file(path: Path) -> None:
    task = TASKS[FILES[path.name][0]]
    text = decoded(path.read_bytes(), str(path))  # with the ends of lines as they are
    header, *rows = text.removesuffix("\n").split("\n")
    if header != HEADER:
        raise UserError(f"{path}: the header is {header!r}, it must be {HEADER!r}")
    official = _official_rows(path.name)
    if len(rows) != official:
        raise UserError(f"{path}: {len(rows)} rows, it must have {official}, those of the official test set")
    for number, row in enumerate(rows):
        start, _, prediction = row.partition("\t")
        if start != str(number) or not _is_prediction(prediction, task):
            allowed = f"one of {', '.join(task.classes)}" if task.classes else f"0 to {task.scale:g}"
            raise UserError(f"{path}, line {number + 2}: {row!r}, it must be {number}, a tab, and {allowed}")


def _is_prediction(word: str, task: Task) -> bool:
    if task.classes:
        return word in task.classes
    try:
        return 0.0 <= float(word) <= task.scale
    except ValueError:
        return False
