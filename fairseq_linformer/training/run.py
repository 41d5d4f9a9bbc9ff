"""The run that this process trains: how it starts, resumes, saves, stops and ends."""

import atexit
import contextlib
import gc
import logging
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.nn.functional  # before there is a process group: its functions would keep that one
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import get_global_group, get_global_rank, get_global_world_size
from fairseq.logging import metrics
from fairseq.utils import get_perplexity
from fairseq_cli.train import should_stop_early
from omegaconf import DictConfig, OmegaConf

from ..checkpoint import (
    INHERITED,
    STALLED,
    Progress,
    check_same_vocabulary,
    mend_last_checkpoint,
    no_such_checkpoint,
    read_progress,
)
from ..checkpoint_files import BEST, LAST
from ..errors import UserError, check
from ..files import LOCK_FILE, digest_file, is_in, lock, write_whole
from .configuration import typed_command, typed_options
from .fingerprint import RunFingerprint
from .options import RESET, InitialCheckpoint, initial_checkpoint

logger = logging.getLogger(__name__)

DIVERGED = "the training diverged"  # how its last line begins then
FEWEST_LOG_LINES = 20  # of a run, so that a short one shows its progress, too
CONFIG_FILE = "config.yaml"  # in a run's folder: the configuration of the training that made its checkpoints


class Run:
    """One training: its whole configuration, its folder and its progress.

    Args:
        cfg: the whole configuration.
        vocabulary: the digests of the data's vocabulary.
        next_command: what to type when it is complete, with {run} for its folder.

    Raises:
        FileNotFoundError: the checkpoint to start from is not there.
        SystemExit: with status 0: the run is already complete.
        UserError: another process trains in the folder; it holds a run of another fingerprint; the checkpoint to start
            from has another vocabulary, or is damaged and there is no complete one.
    """

    def __init__(self, cfg: DictConfig, vocabulary: dict[str, str], next_command: str) -> None:
        self.cfg = cfg
        self.folder = Path(cfg.checkpoint.save_dir)
        self.saving = TimedSaving(cfg, cfg.task.save_interval_minutes)
        self.iterator: EpochBatchIterator | None = None  # over the training data
        self.inherited: dict[str, Any] = {}  # of the checkpoint that it starts from
        self.fingerprint: RunFingerprint | None = None  # of the first rank
        self.updates = 0
        self.last_loss, self.last_size = torch.zeros(()), 1  # of the last batch: a sum, which may be on a GPU
        self.stopped_by: signal.Signals | None = None  # the signal that asked this process to save and stop
        self._next_command = next_command
        self._resumed_from: Progress | None = None
        self._inherits_best = False  # another run's, from whose checkpoint this one starts
        self._first_update: tuple[float, int] | None = None  # of this process: when it ended, and its number
        self._microbatch_index = -1  # of a batch among those that this rank computes for an update
        self._stops = False  # whether any rank was asked to stop
        self._compares_initial = True  # whether the checkpoint that it starts from is part of the fingerprint
        self._has_config = False  # whether config.yaml is written
        self._is_first_rank = get_global_rank() == 0
        if get_global_world_size() > 1 and not torch.cuda.is_available():
            atexit.register(_join_gloo_threads)
        with _synchronized():
            self._take_folder()
        with _synchronized():
            self._read_source(vocabulary)
        resumed = None if cfg.checkpoint.reset_optimizer else self._resumed_from  # else it counts from 0 again
        if resumed is not None and self._is_complete(resumed):
            self._report(resumed.updates)
            sys.exit(0)
        updates = cfg.optimization.max_update
        if updates > 0 and "log_interval" not in typed_options("common"):
            cfg.common.log_interval = max(1, min(cfg.common.log_interval, updates // FEWEST_LOG_LINES))
        if self._is_first_rank:
            atexit.register(self._report_at_exit)
        self._stop_on_signal()

    # Start

    def _take_folder(self) -> None:
        """Lock the folder for as long as this process lives, and mend what a killed run of this training left."""
        if not self._is_first_rank:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.folder}: another process is training there")
        initial = initial_checkpoint(self.cfg.checkpoint)
        # A run resumes also if the checkpoint that it started from is gone, or from an earlier one of its own.
        is_elsewhere = initial is not None and initial.path.is_file() and not is_in(self.folder, initial.path)
        self._compares_initial = initial is None or is_elsewhere
        digest = digest_file(initial.path) if initial is not None and is_elsewhere else None
        self.fingerprint = RunFingerprint.of_training(self.cfg, digest)
        mend_last_checkpoint(self.folder, not self.cfg.checkpoint.no_last_checkpoints, self.check_fingerprint)

    def _read_source(self, vocabulary: dict[str, str]) -> None:
        """Read the checkpoint that fairseq will load, and compare it with this training."""
        options, source = self.cfg.checkpoint, checkpoint_to_load(self.cfg)
        resumes = source is not None and is_in(self.folder, source)
        if not resumes:
            self._check_unused()
        if source is None:
            return
        progress, most = read_progress(source), self.cfg.optimization.max_update
        if initial_checkpoint(options) == InitialCheckpoint("restore_file", source) and not options.reset_optimizer:
            has_updates = not 0 < most <= progress.updates  # fairseq would train one more, each time
            allowed = f"more than {progress.updates:,}, the updates of {source}"
            check("optimization.max_update", most, has_updates, allowed)
        carried: dict[str, Any] = {**progress.task_state}
        other_run = ", or another checkpoint.save_dir for a new run" if resumes else ""
        check_same_vocabulary(vocabulary, carried["vocabulary"], self.cfg.task.data, str(source), other_run)
        self.inherited = {name: carried[name] for name in INHERITED if carried[name]}
        self._inherits_best = not resumes
        if not resumes:
            return
        self.check_fingerprint(source, progress)
        self._resumed_from = progress
        if options.patience > 0 and math.isfinite(progress.best):  # where fairseq counts
            should_stop_early.best, should_stop_early.num_runs = progress.best, progress.stalled

    def check_fingerprint(self, checkpoint: Path, progress: Progress) -> None:
        """Compare this training with the one that a checkpoint in its folder is of.

        Raises:
            UserError: they differ in more than what may differ.
        """
        recorded = progress.task_state["made_of"]
        if recorded is None or self.fingerprint is None:
            return  # it was written by fairseq alone; or this is not the first rank
        before = RunFingerprint.of_json(recorded)
        if not self._compares_initial:
            self.fingerprint = replace(self.fingerprint, checkpoint=before.checkpoint)
        if differences := before.differences(self.fingerprint):
            raise UserError(
                f"{self.folder} holds a run with other settings ({differences}): name another checkpoint.save_dir "
                f"(checkpoint.restore_file={checkpoint} continues from this run there)"
            )

    def _check_unused(self) -> None:
        """Raise an error for a folder with checkpoints of a run that kept no last one: they would be written over."""
        kept = max(self.folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, default=None)
        if kept is not None:
            raise UserError(
                f"checkpoint.save_dir={self.folder}: it holds {kept.name} of another run, but no {LAST} to go on from; "
                f"train in another folder, or go on with checkpoint.restore_file={shlex.quote(str(kept))}"
            )

    def _is_complete(self, progress: Progress) -> bool:
        limits = self.cfg.optimization
        return bool(
            0 < limits.max_update <= progress.updates
            or 0 < limits.max_epoch < progress.next_epoch
            or 0 < limits.stop_time_hours < progress.seconds / 3600
            or 0 < self.cfg.checkpoint.patience <= progress.stalled
        )

    # Updates

    def begin_batch(self, done: int) -> None:
        """Seed dropout for a batch of an update; `done` updates are complete.

        The same microbatch of an update draws the same dropout masks whichever rank computes it, and other ones draw
        others. fairseq seeds each update, which is the seed of the first microbatch, and gives all ranks the same
        masks.

        Raises:
            SystemExit: the run was asked to stop, and has saved.
        """
        if self._stops:
            self._stop(done)
        self._microbatch_index = self._microbatch_index + 1 if self.updates == done + 1 else 0
        index = self._microbatch_index * get_global_world_size() + get_global_rank()
        if index > 0:
            # Not by fairseq's set_torch_seed, which first reads the state of a GPU's generator, and waits for it.
            torch.manual_seed(int(np.random.SeedSequence([self.cfg.common.seed, done, index]).generate_state(1)[0]))
        if self._resumed_from is not None:  # fairseq loads the state of a clock that does not run
            metrics.get_meter("default", "wall").start_time = time.perf_counter() - self._resumed_from.seconds
            self._resumed_from = None
        if self._inherits_best:  # of other data or options: perhaps no checkpoint here would ever be the best
            vars(checkpoint_utils.save_checkpoint).pop("best", None)
            self._inherits_best = False
        self.updates = done + 1
        self.saving.restore()

    def end_update(self, save_is_due: bool, stop_is_due: bool) -> None:
        """Request a checkpoint after an update if one is due; both arguments are the same on all ranks."""
        self._stops = stop_is_due
        if save_is_due or stop_is_due or self.saving.is_last(self.iterator):
            self.saving.request(self.updates, self.iterator, stops=stop_is_due)
        if self._first_update is None:
            self._first_update = time.monotonic(), self.updates
        if self.cfg.optimization.max_update > 0:
            metrics.log_derived("updates_left", lambda meters: self._updates_left(), priority=2000)
            metrics.log_derived("time_left", lambda meters: self._time_left(), priority=2001)

    def requests(self) -> dict[str, float]:
        """Return what this rank asks for, to be summed over ranks: a save, by the clock of the first, and a stop."""
        save = self._is_first_rank and self.saving.is_due()
        return {"save_is_due": float(save), "stop_is_due": float(self.stopped_by is not None)}

    def why_diverged(self, done: int) -> str:
        """Return the message for gradients that are not finite after `done` updates."""
        loss = float(self.last_loss) / max(1.0, float(self.last_size)) / math.log(2)
        return (
            f"{DIVERGED}: after update {done:,} the loss is {loss:g} and the gradients are not finite; "
            "lower optimization.lr, raise lr_scheduler.warmup_updates, or set optimization.clip_norm=1.0"
        )

    def _updates_left(self) -> int:
        return max(0, self.cfg.optimization.max_update - self.updates)

    def _time_left(self) -> str:
        """Return hours, minutes and seconds, at the pace of this process so far, without its first update."""
        begun, first = self._first_update or (0.0, 0)
        if self.updates <= first:
            return "unknown"
        pace = (time.monotonic() - begun) / (self.updates - first)
        return str(timedelta(seconds=round(self._updates_left() * pace)))

    # Checkpoints

    def task_state(self) -> dict[str, Any]:
        """Return what this run adds to the ``task_state`` of its checkpoints."""
        made_of = self.fingerprint and {**self.fingerprint.as_json(), "command": typed_command()}
        return ({"made_of": made_of} if made_of else {}) | self.inherited

    def begin_saving(self) -> dict[str, Any]:
        """Return what a checkpoint has beside fairseq's ``extra_state``; the configuration is written after this."""
        self.saving.restore()
        stalled = getattr(should_stop_early, "num_runs", 0) if self.cfg.checkpoint.patience > 0 else 0
        return {STALLED: stalled}

    def end_saving(self, path: Path) -> None:
        """Restart the clock after a save, and write config.yaml once, when the folder is surely this training's."""
        self.saving.saved(path)
        if self.fingerprint is not None and not self._has_config:
            write_whole(self.folder / CONFIG_FILE, OmegaConf.to_yaml(self.cfg))
            self._has_config = True

    # End

    def _stop_on_signal(self) -> None:
        """Make SIGUSR1, which Slurm can send before a job's time is over, and Ctrl-C save a checkpoint and stop.

        A second Ctrl-C ends it at once, but not under torchrun, which passes each on to the ranks that have it already.
        The processes that load data inherit the handlers, and so live on until the checkpoint is written.
        """
        main, by_torchrun = os.getpid(), "TORCHELASTIC_RUN_ID" in os.environ

        def handle(number: int, frame: Any) -> None:
            self.stopped_by = signal.Signals(number)
            if number == signal.SIGINT and os.getpid() == main and not by_torchrun:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.write(2, b"\nstopping after this update; Ctrl-C again ends the run at once, without a checkpoint\n")

        if threading.current_thread() is not threading.main_thread():
            return
        for number, default in ((signal.SIGUSR1, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
            if signal.getsignal(number) is default:  # not that of a launcher
                signal.signal(number, handle)

    def _stop(self, updates: int) -> None:
        """End the process once the checkpoint is written: a launcher that notices one rank end kills the others."""
        last = self.folder / LAST
        if self._is_first_rank:
            outcome = f"the same command goes on from {last}" if last.is_file() else "nothing was saved"
            by = "Ctrl-C" if self.stopped_by == signal.SIGINT else signal.SIGUSR1.name
            print(f"stopped by {by} after update {updates:,}: {outcome}", flush=True)
        if get_global_world_size() > 1:
            torch.distributed.barrier()
        sys.exit(128 + (self.stopped_by or signal.SIGUSR1))  # as a shell names the status of a signal

    def _report_at_exit(self) -> None:
        last = self.folder / LAST
        if self.updates and last.is_file() and self._is_complete(progress := read_progress(last)):
            self._report(progress.updates)

    def _report(self, updates: int) -> None:
        """Print what the run made, and what to type next."""
        if not self._is_first_rank:
            return
        print(f"complete: {updates:,} updates")
        best, metric = self.folder / BEST, self.cfg.checkpoint.best_checkpoint_metric
        if best.is_file():
            value = read_progress(best).best
            of_text = metric == "loss" and str(self.cfg.criterion._name).startswith("masked_lm")
            score = f"perplexity {get_perplexity(value, 10):.4g}" if of_text else f"{metric} {value:g}"
            print(f"best checkpoint: {best}" + (f", {score}" if math.isfinite(value) else ""))
            print(f"next: {self._next_command.format(run=shlex.quote(str(self.folder)))}")


def checkpoint_to_load(cfg: DictConfig) -> Path | None:
    """Return the checkpoint that fairseq will load; None if it begins with new weights.

    A run that started from ``restore_file`` resumes from its own last checkpoint, as one from ``finetune_from_model``
    does: fairseq would start again each time that the command is repeated.

    Raises:
        FileNotFoundError: the user names one that is not there. fairseq would train from scratch.
    """
    options, last = cfg.checkpoint, Path(cfg.checkpoint.save_dir, LAST)
    initial = initial_checkpoint(options)
    if last.is_file():
        if initial is not None and initial.option == "restore_file":
            elsewhere = f"to begin at checkpoint.restore_file={initial.path} name another checkpoint.save_dir"
            logger.info(f"the run goes on from {last}; {elsewhere}")
            options.update({"restore_file": LAST, "optimizer_overrides": "{}"})
            options.update({f"reset_{part}": False for part in RESET})
        return last
    if initial is not None and not initial.path.is_file():
        raise no_such_checkpoint(*initial)
    return initial and initial.path


@contextlib.contextmanager
def _synchronized() -> Iterator[None]:
    """Let no rank continue before all have done this; if one raises an error, the others end, and it alone is shown."""
    raised = None
    try:
        yield
    except (UserError, OSError) as error:
        raised = error
    failed = [raised is not None] * get_global_world_size()
    if len(failed) > 1:
        torch.distributed.all_gather_object(failed, raised is not None)
    if raised is not None:
        raise raised
    if any(failed):
        sys.exit(1)


def _join_gloo_threads() -> None:
    """End the threads of Gloo's process groups while Python is alive.

    They release a collective's tensors after it, and need Python for that. Where Python is at its end, they abort the
    process (github.com/pytorch/pytorch/pull/179291), and the launcher takes a complete run for a failed one. A group
    joins its threads when nothing refers to it: fairseq does, and what is left of the trainer.
    """
    vars(get_global_group).clear()
    gc.collect()
    if torch.distributed.is_initialized():  # still, and not left by another run of this process
        torch.distributed.destroy_process_group()


class TimedSaving:
    """Make fairseq save when some minutes have passed since its last save; it saves by updates or epochs alone.

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
        """Return True if this rank has waited long enough."""
        return 0 < self._seconds <= self._clock() - self._saved_at

    def is_last(self, iterator: EpochBatchIterator | None) -> bool:
        """Return True if the last epoch of ``optimization.max_epoch`` has ended, after which fairseq need not save."""
        epochs = self._cfg.optimization.max_epoch
        return iterator is not None and 0 < epochs <= iterator.epoch and iterator.end_of_epoch()

    def request(self, updates: int, iterator: EpochBatchIterator | None, stops: bool = False) -> None:
        """Make fairseq save after `updates`, unless it saves then anyway.

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
        """Restore the settings, before they are saved in the checkpoint and before the next update."""
        if self._given is not None:
            checkpoint, dataset = self._cfg.checkpoint, self._cfg.dataset
            checkpoint.save_interval_updates, dataset.validate_after_updates, dataset.disable_validation = self._given
            self._given = None

    def saved(self, path: Path) -> None:
        """Restart the clock. Of a timed save's two copies, the one named after the update is removed."""
        if self._timed and not self._cfg.checkpoint.no_last_checkpoints and path.name != LAST:
            path.unlink()
        self._cfg.checkpoint.keep_interval_updates = self._keep
        self._timed, self._saved_at = False, self._clock()
