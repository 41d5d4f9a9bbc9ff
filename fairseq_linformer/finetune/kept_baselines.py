"""What no neural network reaches on the rows of runs, in files beside them: computed once for the same data."""

import itertools
import json
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TypeAlias, TypedDict

from ..data.task_record import Task
from ..data.training_rows import first_rows
from ..system.digests import digest_folder
from ..system.files import write_whole
from ..system.state import read_state
from .scored_runs import Result

BASELINE_FILE = "baseline.json"  # in the folder of a task's runs on all rows

Scores: TypeAlias = dict[str, dict[str, float]]  # metrics by split


class _Baseline(TypedDict):
    """Metrics by split of TF-IDF and of the majority class, and the digest of the data's folder that they are of."""

    data: str
    scores: Scores
    majority: Scores


def keep_baselines(out: Path, data: Path, task: Task, train_rows: Sequence[int], seeds: Sequence[int]) -> None:
    """Keeps what TF-IDF and the majority class reach on prepared data, in the folder of the runs on the same rows.

    That is one of each for all rows, or where there are `train_rows`, one for each of them and seed.
    """
    from .baseline import baselines

    digest = digest_folder(data)
    chosen = itertools.product(train_rows or (None,), seeds)
    files = {baseline_file(out, task.name, count, seed): (count, seed) for count, seed in chosen}
    missing = {file: part for file, part in files.items() if not any(_read(file, {digest}))}
    if not missing:
        return
    subsets = [
        None if count is None else first_rows(data, task.kind, count, seed).tolist() for count, seed in missing.values()
    ]
    for file, (words, majority) in zip(missing, baselines(data, subsets), strict=True):
        content: _Baseline = {"data": digest, "scores": words, "majority": majority}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(content, indent=1) + "\n")


def baseline_file(out: Path, task: str, train_rows: int | None, seed: int) -> Path:
    """Where the baseline is kept that learned from the rows of a run."""
    folder = out / task
    return folder / BASELINE_FILE if train_rows is None else folder / f"rows{train_rows}" / f"baseline-seed{seed}.json"


def read_baselines(out: Path, part: Sequence[Result]) -> list[tuple[Scores, Scores]]:
    """TF-IDF's and the majority class's metrics, for each choice of rows that runs of one task are of."""
    data = {result.made.data for result in part if result.made}
    files = {baseline_file(out, run.task.name, run.train_rows, run.seed) for run in (result.run for result in part)}
    return [_read(file, data) for file in sorted(files)]


def _read(file: Path, data: Set[str]) -> tuple[Scores, Scores]:
    """TF-IDF's and the majority class's metrics by split, from a file of ``keep_baselines``; empty if of other data."""
    try:
        content = read_state(file, _Baseline)
    except (OSError, ValueError):  # none, or damaged: it is computed again
        return {}, {}
    return (content["scores"], content["majority"]) if {content["data"]} == data else ({}, {})
