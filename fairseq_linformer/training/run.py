"""What happens around the updates of a run: how it begins, how it is saved, what it prints at its end.

fairseq's trainer calls its task at each of these moments; ``TrainingTask`` is the common base of our tasks for that.
"""

import atexit
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed.nn.functional  # before there is a process group: its functions would keep that one
from fairseq.criterions import FairseqCriterion
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed.utils import get_global_group, get_global_rank, get_global_world_size
from fairseq.logging import metrics, progress_bar
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths
from omegaconf import DictConfig, open_dict
from torch import Tensor

from ..checkpoint import read_checkpoint
from ..config import LinformerRobertaConfig
from ..data.epochs import ElasticBatchIterator
from ..errors import UserError, check
from ..hub import architecture_options
from ..model import LinformerRobertaModel
from ..system.files import LOCK_FILE, lock
from .checkpoint_files import BEST, LAST, Progress, mend_last_checkpoint, read_progress
from .launch_checks import adapt_to_ranks, check_launch
from .origins import ORIGINS, Origin
from .record import Record, is_in
from .saving import TimedSaving
from .vocabulary import carried_fingerprint, check_same_vocabulary, fingerprint

logger = logging.getLogger(__name__)

FEWEST_LOG_LINES = 20  # of a run, so that a short one shows its progress, too


class TrainingTask(FairseqTask):
    """A task whose runs lock their folder, resume from complete checkpoints, and know when they are complete.

    Its checkpoints carry a fingerprint of the vocabulary, which is compared wherever one is read.
    """

    NEXT: ClassVar[str]  # what to type when a run, {run}, is complete
    to_train: DictConfig | None = None  # the whole configuration, where the task is set up for a training
    run: "Run | None" = None  # while it trains

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TrainingTask":
        """The task. For a training the options are checked and completed; for loading a checkpoint they are not.

        Raises:
            FileNotFoundError: the checkpoint to start from is not there.
            UserError: an option cannot work, or the checkpoint to start from cannot be read.
        """
        whole = whole_config(cfg)
        # The configuration of a checkpoint may hold objects, which fairseq allows when it reads it.
        of_checkpoint = kwargs.get("from_checkpoint") or (whole is not None and whole._get_flag("allow_objects"))
        to_train = None if of_checkpoint else whole
        if to_train is not None:
            check_launch(to_train)
            adapt_to_ranks(to_train)
            adopt_model_options(to_train)
        task = super().setup_task(cfg, **kwargs)
        task.to_train = to_train
        return task

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """The model. Where the task was set up for a training, that begins here (see ``Run``)."""
        if self.to_train is not None and not from_checkpoint:
            self.run = Run(self.to_train, self.vocabulary, self.NEXT)
        return super().build_model(cfg, from_checkpoint)

    @cached_property
    def vocabulary(self) -> dict[str, str]:
        """The fingerprint of the dictionary and the subword model of the data."""
        return fingerprint(self.source_dictionary, Path(split_paths(self.cfg.data)[0]))

    def state_dict(self) -> dict[str, Any]:
        made_of = {} if self.run is None or self.run.record is None else {"made_of": self.run.record.as_state()}
        origins = {ORIGINS: self.run.origins} if self.run is not None and self.run.origins else {}
        return {**super().state_dict(), "vocabulary": self.vocabulary, **made_of, **origins}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a checkpoint's state, without what this class adds to it.

        Raises:
            UserError: the checkpoint was trained with another vocabulary than that of the data.
        """
        check_same_vocabulary(self.vocabulary, carried_fingerprint(state_dict), self.cfg.data, "the checkpoint")
        added = ("vocabulary", "made_of", ORIGINS)
        others = {name: value for name, value in (state_dict or {}).items() if name not in added}
        super().load_state_dict(others)

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> EpochBatchIterator:
        iterator = super().get_batch_iterator(dataset, *args, **kwargs)
        if self.run is None or dataset is not self.datasets.get(self.run.cfg.dataset.train_subset):
            return iterator
        if not isinstance(iterator, ElasticBatchIterator):
            iterator = ElasticBatchIterator.of(iterator)
            if dataset in self.dataset_to_epoch_iter:  # where fairseq keeps it for the next epoch
                self.dataset_to_epoch_iter[dataset] = iterator
        self.run.iterator = iterator
        return iterator

    def before_update(self, sample: dict[str, Any], update_num: int) -> dict[str, Any]:
        """What a task changes in a batch when it is known which update it is for: nothing."""
        return sample

    def train_step(
        self,
        sample: dict[str, Any],
        model: BaseFairseqModel,
        criterion: FairseqCriterion,
        optimizer: FairseqOptimizer,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """One batch, as in every task.

        Raises:
            UserError: the training diverged (the trainer repeats the step then, to find out why gradients are not
                finite), or the batch does not fit in the GPU's memory (the trainer would leave it out, and a run whose
                batches are all too large would never end).
        """
        if self.run is not None and isinstance(sys.exc_info()[1], FloatingPointError):
            raise UserError(self.run.why_diverged(update_num))
        if self.run is not None:
            self.run.begin_batch(update_num)
        sample = self.before_update(sample, update_num)
        try:
            loss, size, logs = super().train_step(
                sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs
            )
        except torch.OutOfMemoryError as error:
            raise UserError(
                "a batch does not fit in the GPU's memory: lower dataset.batch_size and raise optimization.update_freq "
                f"by as much, or pass model.checkpoint_activations=true ({str(error).splitlines()[0]})"
            ) from error
        if self.run is not None:
            self.run.last_loss, self.run.last_size = loss.detach(), size
            logs["save_is_due"] = float(self.run.save_is_due())
            logs["stop_is_due"] = float(self.run.stopped_by is not None)
        return loss, size, logs

    def optimizer_step(self, optimizer: FairseqOptimizer, model: BaseFairseqModel, update_num: int) -> None:
        """One step. With ``common.amp`` fairseq's own would divide the gradients by the loss scale a second time.

        It clips the gradients of the inner optimizer and hands the scaler another object to step with, for which the
        scaler does not know that they are unscaled.
        """
        if isinstance(optimizer, AMPOptimizer):
            optimizer.scaler.step(optimizer.optimizer)
            optimizer.scaler.update()
        else:
            super().optimizer_step(optimizer, model, update_num)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: FairseqCriterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if self.run is not None and criterion.training:
            # With one process these are numbers. With several GPUs it waits, as the trainer does for gradient norms.
            save, stop = (
                any(logs.get(name, 0) > 0 for logs in logging_outputs) for name in ("save_is_due", "stop_is_due")
            )
            self.run.end_update(save, stop)

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Nothing to add: fairseq calls this before it writes a checkpoint, which includes the configuration."""
        if self.run is not None:
            self.run.saving.restore()
        return {}

    def post_save(self, path: str, num_updates: int) -> None:
        """Called after fairseq has saved; `path` is the first copy."""
        if self.run is not None:
            self.run.saving.saved(Path(path))
            self.run.write_record()


def whole_config(cfg: Any) -> DictConfig | None:
    """The configuration of the run or checkpoint that a task's configuration belongs to; None where it stands alone."""
    root = cfg._get_root() if isinstance(cfg, DictConfig) else None
    return root if isinstance(root, DictConfig) and {"checkpoint", "optimization", "model"} <= root.keys() else None


def adopt_model_options(cfg: DictConfig) -> None:
    """Where a run starts from a pretrained model, sets the model options that have their defaults to that model's.

    Options of training, such as dropout, stay those of the run.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        UserError: it cannot be read, or is of another model.
    """
    named = cfg.checkpoint.finetune_from_model
    if named is None or "projected_length" not in cfg.model:
        return
    # An interrupted run has them in its own checkpoint, too. That may be damaged, and is replaced only later.
    source = next((path for path in (Path(named), Path(cfg.checkpoint.save_dir, LAST)) if path.is_file()), None)
    if source is None:
        raise FileNotFoundError(f"checkpoint.finetune_from_model={named}: there is no such checkpoint")
    adopt(cfg.model, architecture_options(LinformerRobertaModel.resolve(read_checkpoint(source)["cfg"])))


def adopt(model: DictConfig, options: Mapping[str, Any]) -> None:
    """Sets the options of a model that are None or have their defaults, in place."""
    defaults = LinformerRobertaConfig()
    taken = {name: value for name, value in options.items() if model.get(name) in (None, getattr(defaults, name))}
    with open_dict(model):
        model.update(taken)
    said = ", ".join(f"{name}={value}" for name, value in taken.items() if value != getattr(defaults, name))
    logger.info(f"the model's options, from the checkpoint: {said}")


def _checkpoint_to_read(cfg: DictConfig) -> Path | None:
    """The checkpoint that fairseq will read; None where it begins with new weights.

    A run that started from ``restore_file`` goes on from its own last checkpoint, as one from ``finetune_from_model``
    does: fairseq would start again. Only an earlier checkpoint of the folder itself is read instead of the last.

    Raises:
        FileNotFoundError: the user names one that is not there. fairseq would train from scratch.
    """
    options, last = cfg.checkpoint, Path(cfg.checkpoint.save_dir, LAST)
    name = "finetune_from_model" if options.restore_file == LAST else "restore_file"
    named = options[name] and Path(options[name])
    if last.is_file() and (name == "finetune_from_model" or not is_in(last.parent, named)):
        if name == "restore_file":
            options.update({"restore_file": LAST, "optimizer_overrides": "{}"})
            options.update({f"reset_{part}": False for part in ("optimizer", "lr_scheduler", "dataloader", "meters")})
        return last
    if named is None:
        return None
    if not named.is_file():
        raise FileNotFoundError(f"checkpoint.{name}={named}: there is no such checkpoint")
    return named


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


class Run:
    """One training: its whole configuration, its folder and its progress.

    Args:
        cfg: the whole configuration.
        vocabulary: the fingerprint of the data's vocabulary.
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
        self.origins: list[Origin] = []  # of the model that it starts from
        self.updates = 0
        self.last_loss, self.last_size = torch.zeros(()), 1  # of the last batch: a sum, which may be on a GPU
        self._then = then
        self._resumed_from: Progress | None = None
        self._first_update: tuple[float, int] | None = None  # of this process: when it ended, and its number
        self._place = -1  # of a batch among those that this rank computes for an update
        self.stopped_by: signal.Signals | None = None  # the signal that asked this process to save and stop
        self._stops = False  # whether any rank was
        self._is_master = get_global_rank() == 0
        if get_global_world_size() > 1 and not torch.cuda.is_available():
            atexit.register(_join_gloo_threads)
        asynchronous = cfg.checkpoint.write_checkpoints_asynchronously
        check("checkpoint.write_checkpoints_asynchronously", asynchronous, not asynchronous, "false")
        self._take_folder()
        self.record = Record(cfg) if self._is_master else None
        self._check_source(vocabulary)
        self._log_often_enough()
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
        """Locks the folder for as long as this process lives, and mends what a killed run left there."""
        if self._is_master:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK_FILE).open("a", encoding="utf-8")
            lock(self._lock, f"{self.folder}: another process is training there")
            mend_last_checkpoint(self.folder)
        if get_global_world_size() > 1:
            torch.distributed.barrier()

    def _check_source(self, vocabulary: dict[str, str]) -> None:
        source = _checkpoint_to_read(self.cfg)
        if source is None:
            return
        progress = read_progress(source)
        check_same_vocabulary(vocabulary, progress.vocabulary, self.cfg.task.data, str(source))
        self.origins = progress.origins
        if not is_in(self.folder, source):
            return
        if self.record is not None:
            self.record.check_same(source, progress)
        resumes = source == self.folder / LAST and not self.cfg.checkpoint.reset_optimizer
        if resumes and self._is_complete(progress):
            self._report(progress.updates)
            sys.exit(0)
        self._resumed_from = progress

    def _log_often_enough(self) -> None:
        updates = self.cfg.optimization.max_update
        if updates > 0:
            self.cfg.common.log_interval = max(1, min(self.cfg.common.log_interval, updates // FEWEST_LOG_LINES))

    def _is_complete(self, progress: Progress) -> bool:
        limits = self.cfg.optimization
        return bool(
            0 < limits.max_update <= progress.updates
            or 0 < limits.max_epoch < progress.next_epoch
            or 0 < limits.stop_time_hours < progress.seconds / 3600
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

    def write_record(self) -> None:
        if self.record is not None:
            self.record.write()

    def save_is_due(self) -> bool:
        """Whether it is time for a checkpoint. The clock of the first rank decides for all."""
        return self._is_master and self.saving.is_due()

    def end_update(self, save_is_due: bool, stop_is_due: bool) -> None:
        """Called after an update; both are the same on all ranks."""
        self._stops = stop_is_due
        if save_is_due or stop_is_due:
            self.saving.request(self.updates, self.iterator)
        if self._first_update is None:
            self._first_update = time.monotonic(), self.updates
        if self.cfg.optimization.max_update > 0:
            metrics.log_derived("updates_left", lambda meters: self._updates_left(), priority=2000)
            metrics.log_derived("time_left", lambda meters: self._time_left(), priority=2001)

    def why_diverged(self, done: int) -> str:
        """What to tell the user where gradients are not finite after `done` updates."""
        loss = float(self.last_loss) / max(1.0, float(self.last_size)) / math.log(2)
        return (
            f"the training diverged: after update {done:,} the loss is {loss:g} and the gradients are not finite; "
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
            known = f"{metric} {value:g}" if metric != "loss" else f"perplexity {2**value:.2f}"
            print(f"best checkpoint: {best}" + (f", {known}" if math.isfinite(value) else ""))
            print(f"next: {self._then.format(run=self.folder)}")
