"""Updates of a training: seeds of dropout, saves by time, stops on all ranks, divergence, and the time left."""

import math
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import get_global_rank, get_global_world_size
from fairseq.logging import metrics
from omegaconf import DictConfig
from torch import Tensor

from ..checkpoint_files import LAST
from ..errors import UserError

DIVERGED = "the training diverged"  # beginning of the last line of such a run


class Updates:
    """Updates of a run in this process.

    Args:
        cfg: the whole configuration of the run.
        earlier_seconds: training time up to the checkpoint from which the run resumes; None for a new run.
    """

    def __init__(self, cfg: DictConfig, earlier_seconds: float | None) -> None:
        self.saving = TimedSaving(cfg, cfg.task.save_interval_minutes)
        self.iterator: EpochBatchIterator | None = None  # over the training data
        self.count = 0  # updates that have begun, those before the checkpoint included
        self.stops = False  # True if any rank was asked to stop
        self._cfg, self._earlier_seconds = cfg, earlier_seconds
        self._first_update: tuple[float, int] | None = None  # of this process: time of its end, and its number
        self._microbatch_index = -1  # index within an update's gradient accumulation
        self._last_loss, self._last_size = torch.zeros(()), 1  # of the last batch; the sum may be on a GPU

    def begin_batch(self, done: int) -> None:
        """Seed dropout for a batch of an update; `done` updates are complete.

        Dropout masks depend on the microbatch of an update, not on the rank that computes it. fairseq seeds only each
        update, so that all ranks and microbatches would start with the same seed; the first microbatch keeps it.

        Raises:
            UserError: the training diverged: the trainer repeats a step to find the cause of non-finite gradients.
        """
        if is_not_finite(sys.exc_info()[1]):
            raise UserError(self._why_diverged(done))
        self._microbatch_index = self._microbatch_index + 1 if self.count == done + 1 else 0
        index = self._microbatch_index * get_global_world_size() + get_global_rank()
        if index > 0:
            # fairseq's set_torch_seed would read the state of a GPU's generator, and wait for it.
            torch.manual_seed(int(np.random.SeedSequence([self._cfg.common.seed, done, index]).generate_state(1)[0]))
        if self.count == 0 and self._earlier_seconds is not None:  # fairseq loads the clock stopped
            metrics.get_meter("default", "wall").start_time = time.perf_counter() - self._earlier_seconds
        elif self.count == 0:  # a best value in the initial checkpoint was measured with other data or options
            vars(checkpoint_utils.save_checkpoint).pop("best", None)
        self.count = done + 1
        self.saving.restore()

    def end_batch(self, loss: Tensor, size: Any, stop: bool) -> dict[str, float]:
        """Return this rank's requests, to be summed over ranks: a save, by the first rank's clock, and a `stop`."""
        self._last_loss, self._last_size = loss.detach(), size
        save = get_global_rank() == 0 and self.saving.is_due()
        return {"save_is_due": float(save), "stop_is_due": float(stop)}

    def end_update(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Request a checkpoint after an update if one is due; `logging_outputs` have the requests of all ranks."""
        # With several GPUs these are tensors: reading them waits, as the trainer does for gradient norms.
        due = [any(logs.get(f"{event}_is_due", 0) > 0 for logs in logging_outputs) for event in ("save", "stop")]
        self.stops = due[1]
        if any(due) or self.saving.is_last(self.iterator):
            self.saving.request(self.count, self.iterator, self.stops)
        if self._first_update is None:
            self._first_update = time.monotonic(), self.count
        if self._cfg.optimization.max_update > 0:
            metrics.log_derived("updates_left", lambda meters: self._updates_left(), priority=2000)
            metrics.log_derived("time_left", lambda meters: self._time_left(), priority=2001)

    def _why_diverged(self, done: int) -> str:
        """Return the message for non-finite gradients after `done` updates."""
        loss = float(self._last_loss) / max(1.0, float(self._last_size)) / math.log(2)
        return (
            f"{DIVERGED}: after update {done:,} the loss is {loss:g} and the gradients are not finite; "
            "lower optimization.lr, raise lr_scheduler.warmup_updates, or set optimization.clip_norm=1.0"
        )

    def _updates_left(self) -> int:
        return max(0, self._cfg.optimization.max_update - self.count)

    def _time_left(self) -> str:
        """Return the estimated time left, from the speed of this process so far without its first update."""
        start_time, first_update = self._first_update or (0.0, 0)
        if self.count <= first_update:
            return "unknown"
        pace = (time.monotonic() - start_time) / (self.count - first_update)
        return str(timedelta(seconds=round(self._updates_left() * pace)))


def is_not_finite(error: BaseException | None) -> bool:
    """Return True for non-finite gradients; fairseq raises the same error if the gradients of ranks differ."""
    text = str(error)
    return isinstance(error, FloatingPointError) and ("inconsistent" not in text or "= nan" in text or "inf\n" in text)


class TimedSaving:
    """Saving of checkpoints by time, as fairseq saves only by updates or epochs.

    fairseq reads its settings again after each update. They are changed for one update so that it saves without
    validating: the choice of the best checkpoint must not depend on the clock. All ranks must save together, so the
    first rank's clock decides, and the decision is summed over ranks with the values of an update.

    Args:
        cfg: the whole configuration of the run; ``checkpoint`` and ``dataset`` are changed for one update.
        minutes: the longest time between two checkpoints; 0 to save only when fairseq does.
    """

    def __init__(self, cfg: DictConfig, minutes: float) -> None:
        self._cfg, self._seconds = cfg, 60 * minutes
        self._values: tuple[Any, ...] | None = None  # the user's settings while they are overridden
        self._removes_copy = False  # True if ``saved`` must remove a copy of the next save
        self._keep_interval = cfg.checkpoint.keep_interval_updates  # the user's value, which is raised for a save
        self._saved_at = time.monotonic()

    def is_due(self) -> bool:
        """Return True if the longest time between two checkpoints has passed on this rank."""
        return 0 < self._seconds <= time.monotonic() - self._saved_at

    def is_last(self, iterator: EpochBatchIterator | None) -> bool:
        """Return True if the last epoch of ``optimization.max_epoch`` has ended, after which fairseq need not save."""
        epochs = self._cfg.optimization.max_epoch
        return iterator is not None and 0 < epochs <= iterator.epoch and iterator.end_of_epoch()

    def request(self, updates: int, iterator: EpochBatchIterator | None, stops: bool = False) -> None:
        """Make fairseq save after `updates`, unless it saves anyway.

        If it validates without saving, the save waits for the next update, unless the run `stops` or ends after this
        one. After the last epoch fairseq validates if it would do so anyway.
        """
        checkpoint, dataset = self._cfg.checkpoint, self._cfg.dataset
        if checkpoint.no_save or iterator is None:
            return
        ends, last = iterator.end_of_epoch(), self.is_last(iterator) and not stops
        at_interval, validated = (
            interval > 0 and updates % interval == 0
            for interval in (checkpoint.save_interval_updates, dataset.validate_interval_updates)
        )
        saves = (
            (at_interval and updates >= dataset.validate_after_updates)
            or (ends and iterator.epoch % checkpoint.save_interval == 0)
            or 0 < self._cfg.optimization.max_update <= updates
        )
        if saves or (not stops and not last and (ends or at_interval or validated)):
            return
        self._removes_copy = not ends  # at the end of an epoch fairseq writes no copy named after the update
        self._values = checkpoint.save_interval_updates, dataset.validate_after_updates, dataset.disable_validation
        checkpoint.save_interval_updates, dataset.validate_after_updates = updates, 0
        dataset.disable_validation = dataset.disable_validation or not last
        if self._keep_interval > 0 and not checkpoint.no_last_checkpoints:
            # fairseq counts the copy named after the update before ``saved`` removes it.
            checkpoint.keep_interval_updates = self._keep_interval + 1

    def restore(self) -> None:
        """Restore the settings, before they are saved in the checkpoint and before the next update."""
        if self._values is not None:
            checkpoint, dataset = self._cfg.checkpoint, self._cfg.dataset
            checkpoint.save_interval_updates, dataset.validate_after_updates, dataset.disable_validation = self._values
            self._values = None

    def saved(self, path: Path) -> None:
        """Restart the clock, and remove a timed save's copy that is named after the update."""
        if self._removes_copy and not self._cfg.checkpoint.no_last_checkpoints and path.name != LAST:
            path.unlink()
        self._cfg.checkpoint.keep_interval_updates = self._keep_interval
        self._removes_copy, self._saved_at = False, time.monotonic()
