"""What a run resumes from: how far a checkpoint has come, and the newest one that is complete."""

import contextlib
import logging
import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import LAST, RUNS_CODE, UNFINISHED, DamagedCheckpointError, check_whole, copy_checkpoint, read_whole
from .task_state import TaskState, read_task_state

logger = logging.getLogger(__name__)

# fairseq's names of what a run saves, the last one aside; averages, and what was converted, are none to go on from.
_OF_A_RUN = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")

STALLED = "validations_without_gain"  # in a checkpoint's extra_state, beside fairseq's own

# What content that was made by hand raises where numbers and dictionaries are expected.
_NOT_OF_FAIRSEQ = (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError)


@dataclass(frozen=True)
class Progress:
    """The progress of the run that a checkpoint is of.

    Attributes:
        updates: completed.
        next_epoch: the current epoch, or the next one where the last has ended; from 1.
        seconds: of training.
        best: the best value so far of the metric that chooses checkpoints, nan where there was no validation.
        stalled: validations since that value, where ``checkpoint.patience`` counts them.
        task_state: its vocabulary, what it is made of, and what its model was converted from.
    """

    updates: int
    next_epoch: int
    seconds: float
    best: float
    stalled: int
    task_state: TaskState


def read_progress(path: Path) -> Progress:
    """The progress of the run that a checkpoint is of; its tensors are left in the file.

    Raises:
        DamagedCheckpointError: the file is cut short, or has changed.
        UserError: it is not a fairseq checkpoint, or holds what could run code on loading.
    """
    try:
        state = read_whole(path)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} {RUNS_CODE}") from error
    try:
        updates, extra = updates_of_training(state), state["extra_state"]
        return Progress(
            updates,
            next_epoch=int((extra.get("train_iterator") or {}).get("epoch", 1)),
            seconds=float(extra.get("previous_training_time", 0.0)),
            best=float(extra.get("best", math.nan)),
            stalled=int(extra.get(STALLED, 0)),
            task_state=read_task_state(state.get("task_state")),
        )
    except _NOT_OF_FAIRSEQ as error:
        lacks = f"it lacks what a run resumes from ({type(error).__name__}: {error})"
        advice = f"linformer convert {path} --out DIR makes a start of its weights"
        raise UserError(f"{path} is not a fairseq checkpoint: {lacks}; {advice}") from error


def updates_of_training(state: Mapping[str, Any]) -> int:
    """The updates of the training that a checkpoint is of, resumed or not.

    fairseq adds an entry to the history in every process. It counts from the training's first update, so the entries
    before it are the same updates, or those of the checkpoint that the training started from.
    """
    return int(state["optimizer_history"][-1].get("num_updates", 0))


def mend_last_checkpoint(
    folder: Path, kept: bool = True, check_same: Callable[[Path, Progress], None] = lambda path, progress: None
) -> None:
    """Replaces a damaged last checkpoint of a run by the newest complete one; the damaged one is renamed.

    Where a last one is `kept` and is missing, the newest that our tasks wrote is taken, too: fairseq writes the last
    one after the others. `check_same` raises where the newest is of another training; then nothing is changed.

    Raises:
        DamagedCheckpointError: the last checkpoint is damaged, and there is no complete one.
    """
    for leftover in folder.glob(f"*.pt{UNFINISHED}"):  # of a run that was killed while it wrote
        leftover.unlink()
    last = folder / LAST
    damage = None
    if last.is_file():
        try:
            check_whole(last)
            return
        except DamagedCheckpointError as error:
            damage = error
    elif not kept:
        return
    found = _newest_checkpoint(folder, of_ours=damage is None)
    if found is None and damage is not None:
        raise DamagedCheckpointError(
            f"{damage}; {folder} has no other checkpoint: remove this one to start again"
        ) from damage
    if found is None:
        return
    newest, progress = found
    check_same(newest, progress)
    resumes = f"the run resumes from {newest.name}, update {progress.updates:,}"
    if damage is None:
        logger.warning(f"{last} was missing: {resumes}")
    else:
        aside = last.with_name(f"{last.name}.damaged")
        last.replace(aside)
        logger.warning(f"{damage}; it is now {aside.name}, and {resumes}")
    copy_checkpoint(newest, last)


def _newest_checkpoint(folder: Path, of_ours: bool) -> tuple[Path, Progress] | None:
    """The newest whole checkpoint of a run, and its progress; with `of_ours` of those that our tasks wrote."""
    found = []
    for path in filter(lambda path: _OF_A_RUN.fullmatch(path.name), folder.iterdir()):
        with contextlib.suppress(ValueError):
            progress = read_progress(path)
            if not of_ours or progress.task_state["made_of"] is not None:
                found.append((path, progress))
    return max(found, key=lambda one: (one[1].updates, one[0]), default=None)
