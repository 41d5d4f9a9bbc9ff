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
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn.functional  # before there is a process group, as its functions would keep a reference to it
from fairseq.distributed.utils import get_global_group, get_global_rank, get_global_world_size
from fairseq.utils import get_perplexity
from fairseq_cli.train import should_stop_early
from omegaconf import DictConfig, OmegaConf

from ..checkpoint import INHERITED, PATIENCE_KEY, Progress, check_same_vocabulary, mend_last_checkpoint, read_progress
from ..checkpoint_files import BEST, LAST
from ..digests import digest_file
from ..errors import UserError, check
from ..files import LOCK_FILE, lock, write_whole
from .configuration import CONFIG_FILE, typed_command, typed_options
from .fingerprint import RunFingerprint
from .options import InitialCheckpoint, checkpoint_to_load, initial_checkpoint
from .updates import Updates

logger = logging.getLogger(__name__)

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
        self.inherited: dict[str, Any] = {}  # task state of the initial checkpoint
        self.fingerprint: RunFingerprint | None = None  # of the first rank
        self.stopped_by: signal.Signals | None = None  # the signal that asked this process to save and stop
        self._next_command = next_command
        self._compares_initial = True  # True if the fingerprint includes the initial checkpoint
        self._is_first_rank = get_global_rank() == 0
        if get_global_world_size() > 1 and not torch.cuda.is_available():
            atexit.register(_join_gloo_threads)
        with _synchronized():
            self._lock_folder()
        with _synchronized():
            resumed = self._read_checkpoint(vocabulary)
        # A reset restarts from update 0.
        if resumed is not None and not cfg.checkpoint.reset_optimizer and self._is_complete(resumed):
            self._report(resumed.updates)
            sys.exit(0)
        self.updates = Updates(cfg, None if resumed is None else resumed.seconds)
        max_update = cfg.optimization.max_update
        if max_update > 0 and "log_interval" not in typed_options("common"):
            cfg.common.log_interval = max(1, min(cfg.common.log_interval, max_update // FEWEST_LOG_LINES))
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
        is_readable = initial is not None and initial.path.is_file() and not self._holds(initial.path)
        self._compares_initial = initial is None or is_readable
        digest = digest_file(initial.path) if initial is not None and is_readable else None
        self.fingerprint = RunFingerprint.of_training(self.cfg, digest)
        mend_last_checkpoint(self.folder, not self.cfg.checkpoint.no_last_checkpoints, self.check_fingerprint)

    def _holds(self, checkpoint: Path) -> bool:
        """Return True for a file that is directly in the folder, after links are resolved."""
        return checkpoint.absolute().parent.resolve() == self.folder.resolve()

    def _read_checkpoint(self, vocabulary: dict[str, str]) -> Progress | None:
        """Compare the checkpoint that fairseq will load with this training; return the progress if the run resumes."""
        options, checkpoint = self.cfg.checkpoint, checkpoint_to_load(self.cfg)
        resumes = checkpoint is not None and self._holds(checkpoint)
        if not resumes:
            self._check_unused()
        if checkpoint is None:
            return None
        progress, max_update = read_progress(checkpoint), self.cfg.optimization.max_update
        if initial_checkpoint(options) == InitialCheckpoint("restore_file", checkpoint) and not options.reset_optimizer:
            has_updates = not 0 < max_update <= progress.updates  # fairseq would train one more each time
            allowed = f"more than {progress.updates:,}, the updates of {checkpoint}"
            check("optimization.max_update", max_update, has_updates, allowed)
        task_state: dict[str, Any] = {**progress.task_state}
        remedy = ", or another checkpoint.save_dir for a new run" if resumes else ""
        check_same_vocabulary(vocabulary, task_state["vocabulary"], self.cfg.task.data, str(checkpoint), remedy)
        self.inherited = {name: task_state[name] for name in INHERITED if task_state[name]}
        if not resumes:
            return None
        self.check_fingerprint(checkpoint, progress)
        if options.patience > 0 and math.isfinite(progress.best):  # fairseq's counters
            should_stop_early.best, should_stop_early.num_runs = progress.best, progress.stalled
        return progress

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

    # Checkpoints

    def task_state(self) -> dict[str, Any]:
        """Return the entries of this run in the ``task_state`` of its checkpoints."""
        made_of = self.fingerprint and {**self.fingerprint.as_json(), "command": typed_command()}
        return ({"made_of": made_of} if made_of else {}) | self.inherited

    def begin_saving(self) -> dict[str, Any]:
        """Return entries for a checkpoint's ``extra_state``, and restore the configuration before it is saved."""
        self.updates.saving.restore()
        stalled = getattr(should_stop_early, "num_runs", 0) if self.cfg.checkpoint.patience > 0 else 0
        return {PATIENCE_KEY: stalled}

    def end_saving(self, path: Path) -> None:
        """Restart the clock after a save, and write config.yaml, as the folder is now this training's."""
        self.updates.saving.saved(path)
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

    def stop(self, updates: int) -> None:
        """Exit after so many updates, when all ranks have saved, as a launcher kills the other ranks when one ends."""
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
        if self.updates.count and last.is_file() and self._is_complete(progress := read_progress(last)):
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
