"""Checkpoints by time. fairseq alone saves by updates or epochs, however long these take."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from omegaconf import DictConfig

from ..checkpoint_files import LAST


class TimedSaving:
    """Lets fairseq save when some minutes have passed since its last save.

    fairseq reads its settings again after each update. For one update they are changed so that it saves without
    validating: which checkpoint is best must not depend on the clock. All ranks must save together, so the clock of the
    first rank decides, and its decision travels with the values that all ranks sum up after an update.

    Args:
        cfg: the whole configuration of the run; ``checkpoint`` and ``dataset`` are changed for one update.
        minutes: the longest time between two checkpoints; 0 to save only when fairseq does.
        clock: of this rank, in seconds.
    """

    def __init__(self, cfg: DictConfig, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cfg, self._seconds, self._clock = cfg, 60 * minutes, clock
        self._given: tuple[Any, ...] | None = None  # the user's settings, while they are changed
        self._timed = False  # whether the next save was requested here, and has a copy to remove
        self._keep = cfg.checkpoint.keep_interval_updates  # the user's number, which is raised for a save
        self._saved_at = clock()

    def is_due(self) -> bool:
        """Whether this rank has waited long enough."""
        return 0 < self._seconds <= self._clock() - self._saved_at

    def is_last(self, iterator: EpochBatchIterator | None) -> bool:
        """Whether the last epoch of ``optimization.max_epoch`` has ended, after which fairseq need not save."""
        return (
            iterator is not None and 0 < self._cfg.optimization.max_epoch <= iterator.epoch and iterator.end_of_epoch()
        )

    def request(self, updates: int, iterator: EpochBatchIterator | None, stops: bool = False) -> None:
        """Makes fairseq save after `updates`, unless it saves then anyway.

        Where it validates without saving, it can wait for the next update, unless the run `stops` after this one, or
        has no other. After the last epoch fairseq validates if it would anyway.
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
        self._timed = not ends  # after the last update of an epoch fairseq names no copy by updates
        self._given = checkpoint.save_interval_updates, dataset.validate_after_updates, dataset.disable_validation
        checkpoint.save_interval_updates, dataset.validate_after_updates = updates, 0
        dataset.disable_validation = dataset.disable_validation or not last
        if self._keep > 0 and not checkpoint.no_last_checkpoints:
            # The copy named after the update is counted among those to keep, before ``saved`` removes it.
            checkpoint.keep_interval_updates = self._keep + 1

    def restore(self) -> None:
        """Restores the settings, before they are saved in the checkpoint and before the next update."""
        if self._given is not None:
            checkpoint, dataset = self._cfg.checkpoint, self._cfg.dataset
            checkpoint.save_interval_updates, dataset.validate_after_updates, dataset.disable_validation = self._given
            self._given = None

    def saved(self, path: Path) -> None:
        """Restarts the clock. Of a timed save's two copies, the one named after the update is removed."""
        if self._timed and not self._cfg.checkpoint.no_last_checkpoints and path.name != LAST:
            path.unlink()
        self._cfg.checkpoint.keep_interval_updates = self._keep
        self._timed, self._saved_at = False, self._clock()
