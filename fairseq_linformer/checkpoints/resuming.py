"""What a run resumes from: how far a checkpoint has come, and the newest one that is complete."""

import contextlib
import logging
import math
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .files import LAST, RUNS_CODE, UNFINISHED, DamagedCheckpointError, check_whole, copy_checkpoint, read_whole
from .task_state import TaskState, read_task_state

logger = logging.getLogger(__name__)

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
        raise UserError(f"{path} is not a fairseq checkpoint: it lacks what a run resumes from") from error


def updates_of_training(state: Mapping[str, Any]) -> int:
    """The updates of the training that a checkpoint is of, resumed or not.

    fairseq adds an entry to the history in every process. It counts from the training's first update, so the entries
    before it are the same updates, or those of the checkpoint that the training started from.
    """
    return int(state["optimizer_history"][-1].get("num_updates", 0))


def mend_last_checkpoint(folder: Path, kept: bool = True) -> None:
    """Replaces a damaged last checkpoint of a run by the newest complete one; the damaged one is renamed.

    Where a last one is `kept` and is missing, the newest is taken, too: fairseq writes it after the others.

    Raises:
        DamagedCheckpointError: the last checkpoint is damaged, and there is no complete one.
    """
    for leftover in folder.glob(f"*.pt{UNFINISHED}"):  # of a run that was killed while it wrote
        leftover.unlink()
    last = folder / LAST
    whole: tuple[int, Path] | None
    if not last.is_file():
        whole = max(_whole_checkpoints(folder), default=None) if kept else None
        if whole is not None:
            copy_checkpoint(whole[1], last)
            logger.warning(f"{last} was missing: the run resumes from {whole[1].name}, update {whole[0]:,}")
        return
    try:
        check_whole(last)
        return
    except DamagedCheckpointError as error:
        damage = error
    whole = max(_whole_checkpoints(folder), default=None)
    if whole is None:
        raise DamagedCheckpointError(
            f"{damage}; {folder} has no other checkpoint: remove this one to start again"
        ) from damage
    updates, newest = whole
    aside = last.with_name(f"{last.name}.damaged")
    last.replace(aside)
    copy_checkpoint(newest, last)
    logger.warning(f"{damage}; it is now {aside.name}, and the run resumes from {newest.name}, update {updates:,}")


def _whole_checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """The checkpoints of a run that it can resume from, with their updates."""
    for path in folder.glob("checkpoint*.pt"):
        with contextlib.suppress(ValueError):
            yield read_progress(path).updates, path
