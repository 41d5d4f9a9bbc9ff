"""Run of a training in this process: start, resumption, saves, stop and end."""

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
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.nn.functional  # before there is a process group, as its functions would keep a reference to it
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import get_global_group, get_global_rank, get_global_world_size
from fairseq.logging import metrics
from fairseq.utils import get_perplexity
from fairseq_cli.train import should_stop_early
from omegaconf import DictConfig, OmegaConf

from ..checkpoint import (
    INHERITED,
    PATIENCE_KEY,
    Progress,
    check_same_vocabulary,
    mend_last_checkpoint,
    read_progress,
)
from ..checkpoint_files import BEST, LAST
from ..errors import UserError, check
from ..files import LOCK_FILE, digest_file, is_in, lock, write_whole
from .configuration import CONFIG_FILE, typed_command, typed_options
from .fingerprint import RunFingerprint
from .options import InitialCheckpoint, checkpoint_to_load, initial_checkpoint

logger = logging.getLogger(__name__)

DIVERGED = "the training diverged"  # beginning of the last line of such a run
FEWEST_LOG_LINES = 20  # per run, so that a short run shows its progress, too


class Run:
    """One training: its whole configuration, its folder and its progress.

    Args:
        cfg: the whole configuration.
        vocabulary: the digests of the data's vocabulary.
        next_command: the command to suggest when the run is complete, with {run} for its folder.

    Raises:
        FileNotFoundError: the initial checkpoint does not exist.
        SystemExit: the run is already complete; the status is 0.
        UserError: another process trains in the folder; the folder contains a run with another fingerprint; the
            initial checkpoint has another vocabulary; all checkpoints are damaged.
    """

    def __init__(self, cfg: DictConfig, vocabulary: dict[str, str], next_command: str) -> None:
        self.cfg = cfg
        self.folder = Path(cfg.checkpoint.save_dir)
        self.saving = TimedSaving(cfg, cfg.task.save_interval_minutes)
        self.iterator: EpochBatchIterator | None = None  # over the training data
        self.inherited: dict[str, Any] = {}  # task state of the initial checkpoint
        self.fingerprint: RunFingerprint | None = None  # of the first rank
        self.updates = 0
        self.last_loss, self.last_size = torch.zeros(()), 1  # of the last batch; the sum may be on a GPU
        self.stopped_by: signal.Signals | None = None  # the signal that asked this process to save and stop
        self._next_command = next_command
        self._resumed_from: Progress | None = None
        self._inherits_best = False  # True while fairseq has the best value of the initial checkpoint
        self._first_update: tuple[float, int] | None = None  # of this process: time of its end, and its number
        self._microbatch_index = -1  # index within an update's gradient accumulation
        self._stops = False  # True if any rank was asked to stop
        self._compares_initial = True  # True if the fingerprint includes the initial checkpoint
        self._is_first_rank = get_global_rank() == 0
        if get_global_world_size() > 1 and not torch.cuda.is_available():
            atexit.register(_join_gloo_threads)
        with _synchronized():
            self._lock_folder()
        with _synchronized():
            self._read_checkpoint(vocabulary)
        resumed = None if cfg.checkpoint.reset_optimizer else self._resumed_from  # a reset restarts from 0
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

    def _lock_folder(self) -> None:
        """Lock the folder for the lifetime of this process, and replace a damaged last checkpoint."""
        if not self._is_first_rank:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.folder}: another process is training there")
        initial = initial_checkpoint(self.cfg.checkpoint)
        # A run also resumes if its initial checkpoint no longer exists, or is an earlier checkpoint of the run itself.
        is_readable = initial is not None and initial.path.is_file() and not is_in(self.folder, initial.path)
        self._compares_initial = initial is None or is_readable
        digest = digest_file(initial.path) if initial is not None and is_readable else None
        self.fingerprint = RunFingerprint.of_training(self.cfg, digest)
        mend_last_checkpoint(self.folder, not self.cfg.checkpoint.no_last_checkpoints, self.check_fingerprint)

    def _read_checkpoint(self, vocabulary: dict[str, str]) -> None:
        """Read the task state of the checkpoint that fairseq will load, and compare it with this training."""
        options, checkpoint = self.cfg.checkpoint, checkpoint_to_load(self.cfg)
        resumes = checkpoint is not None and is_in(self.folder, checkpoint)
        if not resumes:
            self._check_unused()
        if checkpoint is None:
            return
        progress, max_update = read_progress(checkpoint), self.cfg.optimization.max_update
        if initial_checkpoint(options) == InitialCheckpoint("restore_file", checkpoint) and not options.reset_optimizer:
            has_updates = not 0 < max_update <= progress.updates  # fairseq would train one more each time
            allowed = f"more than {progress.updates:,}, the updates of {checkpoint}"
            check("optimization.max_update", max_update, has_updates, allowed)
        task_state: dict[str, Any] = {**progress.task_state}
        remedy = ", or another checkpoint.save_dir for a new run" if resumes else ""
        check_same_vocabulary(vocabulary, task_state["vocabulary"], self.cfg.task.data, str(checkpoint), remedy)
        self.inherited = {name: task_state[name] for name in INHERITED if task_state[name]}
        self._inherits_best = not resumes
        if not resumes:
            return
        self.check_fingerprint(checkpoint, progress)
        self._resumed_from = progress
        if options.patience > 0 and math.isfinite(progress.best):  # fairseq's counters
            should_stop_early.best, should_stop_early.num_runs = progress.best, progress.stalled

    def check_fingerprint(self, checkpoint: Path, progress: Progress) -> None:
        """Raise an error if the fingerprints of this training and of a checkpoint in its folder differ."""
        recorded = progress.task_state["made_of"]
        if recorded is None or self.fingerprint is None:
            return  # another fairseq task wrote it, or this is not the first rank
        saved = RunFingerprint.of_json(recorded)
        if not self._compares_initial:
            self.fingerprint = replace(self.fingerprint, checkpoint=saved.checkpoint)
        if differences := saved.differences(self.fingerprint):
            raise UserError(
                f"{self.folder} holds a run with other settings ({differences}): name another checkpoint.save_dir "
                f"(checkpoint.restore_file={checkpoint} continues this run in that folder, or, for another model, "
                f"checkpoint.finetune_from_model=FILE of linformer convert {checkpoint})"
            )

    def _check_unused(self) -> None:
        """Raise an error for a folder with checkpoints but no last one, as the run would overwrite them."""
        file = max(self.folder.glob("checkpoint*.pt"), key=lambda path: path.stat().st_mtime, default=None)
        if file is not None:
            raise UserError(
                f"checkpoint.save_dir={self.folder}: it has {file.name} of another run, but no {LAST} to resume from; "
                f"train in another folder, or continue with checkpoint.restore_file={shlex.quote(str(file))}"
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

        Dropout masks depend on the microbatch of an update, not on the rank that computes it. fairseq seeds only each
        update, so that all ranks and microbatches would start with the same seed; the first microbatch keeps it.

        Raises:
            SystemExit: the run was asked to stop, and has saved.
        """
        if self._stops:
            self._stop(done)
        self._microbatch_index = self._microbatch_index + 1 if self.updates == done + 1 else 0
        index = self._microbatch_index * get_global_world_size() + get_global_rank()
        if index > 0:
            # fairseq's set_torch_seed would read the state of a GPU's generator, and wait for it.
            torch.manual_seed(int(np.random.SeedSequence([self.cfg.common.seed, done, index]).generate_state(1)[0]))
        if self._resumed_from is not None:  # fairseq loads the clock stopped
            metrics.get_meter("default", "wall").start_time = time.perf_counter() - self._resumed_from.seconds
            self._resumed_from = None
        if self._inherits_best:  # measured with other data or options
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
        """Return this rank's requests, to be summed over ranks: a save, by the first rank's clock, and a stop."""
        save = self._is_first_rank and self.saving.is_due()
        return {"save_is_due": float(save), "stop_is_due": float(self.stopped_by is not None)}

    def why_diverged(self, done: int) -> str:
        """Return the message for non-finite gradients after `done` updates."""
        loss = float(self.last_loss) / max(1.0, float(self.last_size)) / math.log(2)
        return (
            f"{DIVERGED}: after update {done:,} the loss is {loss:g} and the gradients are not finite; "
            "lower optimization.lr, raise lr_scheduler.warmup_updates, or set optimization.clip_norm=1.0"
        )

    def _updates_left(self) -> int:
        return max(0, self.cfg.optimization.max_update - self.updates)

    def _time_left(self) -> str:
        """Return the estimated time left, from the speed of this process so far without its first update."""
        start_time, first_update = self._first_update or (0.0, 0)
        if self.updates <= first_update:
            return "unknown"
        pace = (time.monotonic() - start_time) / (self.updates - first_update)
        return str(timedelta(seconds=round(self._updates_left() * pace)))

    # Checkpoints

    def task_state(self) -> dict[str, Any]:
        """Return the entries of this run in the ``task_state`` of its checkpoints."""
        made_of = self.fingerprint and {**self.fingerprint.as_json(), "command": typed_command()}
        return ({"made_of": made_of} if made_of else {}) | self.inherited

    def begin_saving(self) -> dict[str, Any]:
        """Return entries for a checkpoint's ``extra_state``, and restore the configuration before it is saved."""
        self.saving.restore()
        stalled = getattr(should_stop_early, "num_runs", 0) if self.cfg.checkpoint.patience > 0 else 0
        return {PATIENCE_KEY: stalled}

    def end_saving(self, path: Path) -> None:
        """Restart the clock after a save, and write config.yaml, as the folder is now this training's."""
        self.saving.saved(path)
        if self.fingerprint is not None:
            write_whole(self.folder / CONFIG_FILE, OmegaConf.to_yaml(self.cfg))

    # End

    def _stop_on_signal(self) -> None:
        """Save a checkpoint and stop on Ctrl-C, or on SIGUSR1, which Slurm can send before a job's time limit.

        A second Ctrl-C ends the run at once, except under torchrun, which sends ranks each Ctrl-C a second time.
        Data loading processes inherit the handlers, and so stay alive until the checkpoint is written.
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
        """Exit when all ranks have saved, as a launcher kills the other ranks when one ends."""
        last = self.folder / LAST
        if self._is_first_rank:
            outcome = f"the same command resumes from {last}" if last.is_file() else "nothing was saved"
            cause = "Ctrl-C" if self.stopped_by == signal.SIGINT else signal.SIGUSR1.name
            print(f"stopped by {cause} after update {updates:,}: {outcome}", flush=True)
        if get_global_world_size() > 1:
            torch.distributed.barrier()
        sys.exit(128 + (self.stopped_by or signal.SIGUSR1))  # a shell's exit status for a signal

    def _report_at_exit(self) -> None:
        last = self.folder / LAST
        if self.updates and last.is_file() and self._is_complete(progress := read_progress(last)):
            self._report(progress.updates)

    def _report(self, updates: int) -> None:
        """Print the updates, the best checkpoint and the next command."""
        if not self._is_first_rank:
            return
        print(f"complete: {updates:,} updates")
        best, metric = self.folder / BEST, self.cfg.checkpoint.best_checkpoint_metric
        if best.is_file():
            value = read_progress(best).best
            is_masked_lm = metric == "loss" and str(self.cfg.criterion._name).startswith("masked_lm")
            score = f"perplexity {get_perplexity(value, 10):.4g}" if is_masked_lm else f"{metric} {value:g}"
            print(f"best checkpoint: {best}" + (f", {score}" if math.isfinite(value) else ""))
            print(f"next: {self._next_command.format(run=shlex.quote(str(self.folder)))}")


@contextlib.contextmanager
def _synchronized() -> Iterator[None]:
    """Wait for all ranks at the end of the body; if it raises an error on a rank, the others exit silently."""
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
    """End the threads of Gloo's process groups before Python exits.

    These threads need Python to release a collective's tensors. While Python exits, they would abort the process
    (github.com/pytorch/pytorch/pull/179291), and a complete run would count as failed. A group joins its threads when
    no reference to it is left: fairseq and the remains of the trainer hold some.
    """
    vars(get_global_group).clear()
    gc.collect()
    if torch.distributed.is_initialized():  # unless another run of this process has destroyed it
        torch.distributed.destroy_process_group()


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
