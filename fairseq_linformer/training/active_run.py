"""The run that this process trains: how it begins, how it is saved, how it stops, what it prints at its end."""

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
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.nn.functional  # before there is a process group: its functions would keep that one
from fairseq import checkpoint_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import get_global_group, get_global_rank, get_global_world_size
from fairseq.logging import metrics, progress_bar
from fairseq.utils import get_perplexity
from fairseq_cli.train import should_stop_early
from omegaconf import DictConfig

from ..checkpoint import INHERITED, Progress, check_same_vocabulary, mend_last_checkpoint, read_progress
from ..checkpoint_files import BEST, LAST
from ..errors import UserError, check
from ..files import LOCK_FILE, is_in, lock
from .configuration import typed_options
from .provenance import Record
from .run_start import Start, checkpoint_to_read, named_start
from .timed_saving import TimedSaving

logger = logging.getLogger(__name__)

DIVERGED = "the training diverged"  # how its last line begins then
FEWEST_LOG_LINES = 20  # of a run, so that a short one shows its progress, too


def _join_gloo_threads() -> None:
    """Ends the threads of Gloo's process groups while Python is alive.

    They let go of a collective's tensors after it, and need Python for that. Where Python is at its end, they abort the
    process (github.com/pytorch/pytorch/pull/179291), and the launcher takes a complete run for a failed one. A group
    joins its threads when nothing refers to it: fairseq does, and what is left of the trainer.
    """
    vars(get_global_group).clear()
    gc.collect()
    if torch.distributed.is_initialized():  # still, and not left by another run of this process
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Lets no rank go on before all have done this; where one is refused, the others end, and it alone says why."""
    refused = None
    try:
        yield
    except (UserError, OSError) as error:
        refused = error
    of_ranks = [refused is not None] * get_global_world_size()
    if len(of_ranks) > 1:
        torch.distributed.all_gather_object(of_ranks, refused is not None)
    if refused is not None:
        raise refused
    if any(of_ranks):
        sys.exit(1)


class ActiveRun:
    """One training: its whole configuration, its folder and its progress.

    Args:
        cfg: the whole configuration.
        vocabulary: the digests of the data's vocabulary.
        then: what to type when it is complete, with {run} for its folder.

    Raises:
        FileNotFoundError: the checkpoint to start from is not there.
        SystemExit: with status 0: the run is already complete.
        UserError: an option cannot work; another process trains in the folder; the checkpoint to start from has
            another vocabulary, or is damaged and there is no complete one.
    """

    def __init__(self, cfg: DictConfig, vocabulary: dict[str, str], then: str) -> None:
        self.cfg = cfg
        self.folder = Path(cfg.checkpoint.save_dir)
        self.saving = TimedSaving(cfg, cfg.task.save_interval_minutes)
        self.iterator: EpochBatchIterator | None = None  # over the training data
        self.inherited: dict[str, Any] = {}  # of the checkpoint that it starts from
        self.updates = 0
        self.last_loss, self.last_size = torch.zeros(()), 1  # of the last batch: a sum, which may be on a GPU
        self._then = then
        self._resumed_from: Progress | None = None
        self._inherits_best = False  # another run's, from whose checkpoint this one starts
        self._first_update: tuple[float, int] | None = None  # of this process: when it ended, and its number
        self._place = -1  # of a batch among those that this rank computes for an update
        self.stopped_by: signal.Signals | None = None  # the signal that asked this process to save and stop
        self._stops = False  # whether any rank was
        self._is_master = get_global_rank() == 0
        if get_global_world_size() > 1 and not torch.cuda.is_available():
            atexit.register(_join_gloo_threads)
        for name, why in (
            ("write_checkpoints_asynchronously", ""),
            ("no_save_optimizer_state", ", or no run could go on"),
        ):
            check(f"checkpoint.{name}", cfg.checkpoint[name], not cfg.checkpoint[name], f"false{why}")
        self.record: Record | None = None  # of the first rank
        with _together():
            self._take_folder()
        with _together():
            self._check_source(vocabulary)
        resumed = None if cfg.checkpoint.reset_optimizer else self._resumed_from  # else it counts from 0 again
        if resumed is not None and self._is_complete(resumed):
            self._report(resumed.updates)
            sys.exit(0)
        updates = cfg.optimization.max_update
        if updates > 0 and "log_interval" not in typed_options("common"):
            cfg.common.log_interval = max(1, min(cfg.common.log_interval, updates // FEWEST_LOG_LINES))
        if self._is_master:
            atexit.register(self._report_at_exit)
        self._stop_on_signal()

    def _stop_on_signal(self) -> None:
        """SIGUSR1, which Slurm can send before a job's time is over, and Ctrl-C save a checkpoint and end the run.

        A second Ctrl-C ends it at once, but not under torchrun, which passes each on to the ranks that have it already.
        The processes that load data inherit what is done with a signal, and so live on until the checkpoint is written.
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

    def _take_folder(self) -> None:
        """Locks the folder for as long as this process lives, and mends what a killed run of this training left."""
        if self._is_master:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK_FILE).open("a", encoding="utf-8")
            lock(self._lock, f"{self.folder}: another process is training there")
            self.record = Record(self.cfg)
            kept = not self.cfg.checkpoint.no_last_checkpoints
            mend_last_checkpoint(self.folder, kept, self.record.check_same)

    def _check_source(self, vocabulary: dict[str, str]) -> None:
        source, options = checkpoint_to_read(self.cfg), self.cfg.checkpoint
        if source is None or not is_in(self.folder, source):
            self._check_unused()
        if source is None:
            return
        progress, most = read_progress(source), self.cfg.optimization.max_update
        if named_start(options) == Start("restore_file", source) and not options.reset_optimizer:
            room = not 0 < most <= progress.updates  # fairseq would train one more, each time
            check("optimization.max_update", most, room, f"more than {progress.updates:,}, the updates of {source}")
        its = progress.task_state["vocabulary"]
        other_run = ", or another checkpoint.save_dir for a new run" if is_in(self.folder, source) else ""
        check_same_vocabulary(vocabulary, its, self.cfg.task.data, str(source), other_run)
        carried: dict[str, Any] = {**progress.task_state}
        self.inherited = {name: carried[name] for name in INHERITED if carried[name]}
        if not is_in(self.folder, source):
            self._inherits_best = True
            return
        if self.record is not None:
            self.record.check_same(source, progress)
        self._resumed_from = progress
        if self.cfg.checkpoint.patience > 0 and math.isfinite(progress.best):
            should_stop_early.best, should_stop_early.num_runs = progress.best, progress.stalled  # where fairseq counts

    def _check_unused(self) -> None:
        """Refuses a folder with checkpoints of a run that kept no last one: they would be written over."""
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

    def begin_batch(self, done: int) -> None:
        """Called before each batch of an update; `done` updates are complete.

        The same place of an update draws the same dropout masks whichever rank computes it, and other places draw
        others. fairseq seeds each update, which is the seed of the first place, and gives all ranks the same masks.

        Raises:
            SystemExit: the run was asked to stop, and has saved.
        """
        if self._stops:
            self._stop(done)
        self._place = self._place + 1 if self.updates == done + 1 else 0
        place = self._place * get_global_world_size() + get_global_rank()
        if place > 0:
            # Not by fairseq's set_torch_seed, which first reads the state of a GPU's generator, and waits for it.
            torch.manual_seed(int(np.random.SeedSequence([self.cfg.common.seed, done, place]).generate_state(1)[0]))
        if self._resumed_from is not None:
            self._go_on(self._resumed_from)
        if self._inherits_best:  # of other data or options: perhaps no checkpoint here would ever be the best
            vars(checkpoint_utils.save_checkpoint).pop("best", None)
            self._inherits_best = False
        self.updates = done + 1
        self.saving.restore()

    def _go_on(self, progress: Progress) -> None:
        """Lets what is logged go on where the checkpoint was written: the clock, and TensorBoard's curves.

        fairseq loads the state of a clock that does not run. The points that a killed run drew after its checkpoint are
        hidden, or each would be there twice.
        """
        self._resumed_from = None
        wall = metrics.get_meter("default", "wall")
        wall.start_time = time.perf_counter() - progress.seconds
        logs = self.cfg.common.tensorboard_logdir
        if self._is_master and logs and Path(logs).is_dir() and progress_bar.SummaryWriter is not None:
            for curves in filter(Path.is_dir, Path(logs).iterdir()):
                writer = progress_bar.SummaryWriter(str(curves), purge_step=progress.updates + 1)
                progress_bar._tensorboard_writers[curves.name] = writer

    def stalled(self) -> int:
        """The validations since the best one, as fairseq counts them for ``checkpoint.patience``."""
        return getattr(should_stop_early, "num_runs", 0) if self.cfg.checkpoint.patience > 0 else 0

    def write_record(self) -> None:
        if self.record is not None:
            self.record.write()

    def save_is_due(self) -> bool:
        """Whether it is time for a checkpoint. The clock of the first rank decides for all."""
        return self._is_master and self.saving.is_due()

    def end_update(self, save_is_due: bool, stop_is_due: bool) -> None:
        """Called after an update; both are the same on all ranks."""
        self._stops = stop_is_due
        if save_is_due or stop_is_due or self.saving.is_last(self.iterator):
            self.saving.request(self.updates, self.iterator, stops=stop_is_due)
        if self._first_update is None:
            self._first_update = time.monotonic(), self.updates
        if self.cfg.optimization.max_update > 0:
            metrics.log_derived("updates_left", lambda meters: self._updates_left(), priority=2000)
            metrics.log_derived("time_left", lambda meters: self._time_left(), priority=2001)

    def why_diverged(self, done: int) -> str:
        """What to tell the user where gradients are not finite after `done` updates."""
        loss = float(self.last_loss) / max(1.0, float(self.last_size)) / math.log(2)
        return (
            f"{DIVERGED}: after update {done:,} the loss is {loss:g} and the gradients are not finite; "
            "lower optimization.lr, raise lr_scheduler.warmup_updates, or set optimization.clip_norm=1.0"
        )

    def _updates_left(self) -> int:
        return max(0, self.cfg.optimization.max_update - self.updates)

    def _time_left(self) -> str:
        """Hours, minutes and seconds, at the pace of this process so far, without its first update."""
        begun, first = self._first_update or (0.0, 0)
        if self.updates <= first:
            return "unknown"
        pace = (time.monotonic() - begun) / (self.updates - first)
        return str(timedelta(seconds=round(self._updates_left() * pace)))

    def _report_at_exit(self) -> None:
        last = self.folder / LAST
        if self.updates and last.is_file() and self._is_complete(progress := read_progress(last)):
            self._report(progress.updates)

    def _stop(self, updates: int) -> None:
        """Ends the process once the checkpoint is written: a launcher that sees one rank end kills the others."""
        last = self.folder / LAST
        if self._is_master:
            then = f"the same command goes on from {last}" if last.is_file() else "nothing was saved"
            by = "Ctrl-C" if self.stopped_by == signal.SIGINT else signal.SIGUSR1.name
            print(f"stopped by {by} after update {updates:,}: {then}", flush=True)
        if get_global_world_size() > 1:
            torch.distributed.barrier()
        sys.exit(128 + (self.stopped_by or signal.SIGUSR1))  # as a shell names the status of a signal

    def _report(self, updates: int) -> None:
        """Prints what the run made, and what to type next."""
        if not self._is_master:
            return
        print(f"complete: {updates:,} updates")
        best, metric = self.folder / BEST, self.cfg.checkpoint.best_checkpoint_metric
        if best.is_file():
            value = read_progress(best).best
            of_text = metric == "loss" and str(self.cfg.criterion._name).startswith("masked_lm")
            known = f"perplexity {get_perplexity(value, 10):.4g}" if of_text else f"{metric} {value:g}"
            print(f"best checkpoint: {best}" + (f", {known}" if math.isfinite(value) else ""))
            print(f"next: {self._then.format(run=shlex.quote(str(self.folder)))}")
