"""What our tasks have in common: fairseq's trainer calls its task at each moment around an update."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data.iterators import EpochBatchIterator
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths
from omegaconf import DictConfig, open_dict
from torch import Tensor

from ..checkpoint import STALLED, TaskState, check_same_vocabulary, differing_parts, digest_vocabulary, read_task_state
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.epochs import NO_LIMITS, ElasticBatchIterator, Limits
from ..errors import UserError
from .active_run import ActiveRun
from .option_checks import adapt, check_launch
from .run_start import adopt_model_options

logger = logging.getLogger(__name__)


class TrainingTask(FairseqTask):
    """A task whose runs lock their folder, resume from complete checkpoints, and know when they are complete.

    Its checkpoints say which vocabulary they were trained with, which is compared wherever one is read.
    """

    NEXT: str  # what to type when a run, {run}, is complete
    to_train: DictConfig | None = None  # the whole configuration, where the task is set up for a training
    run: ActiveRun | None = None  # while it trains

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
            adopt_model_options(to_train)
            adapt(to_train)
        task = super().setup_task(cfg, **kwargs)
        task.to_train = to_train
        return task

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """The model. Where the task was set up for a training, that begins here (see ``ActiveRun``)."""
        if self.to_train is not None and not from_checkpoint:
            self.run = ActiveRun(self.to_train, self.vocabulary, self.NEXT)
        return super().build_model(cfg, from_checkpoint)

    @cached_property
    def vocabulary(self) -> dict[str, str]:
        """The digests of the dictionary and the subword model of the data.

        Raises:
            UserError: of several folders one has others than the first.
        """
        first, *others = map(Path, split_paths(self.cfg.data))
        digests = digest_vocabulary(self.source_dictionary, first)
        for folder in others:
            if not (file := folder / DICTIONARY_FILE).is_file():  # ours has one in each
                continue
            if differing_parts(digests, digest_vocabulary(load_dictionary(file), folder)):
                raise UserError(f"{folder} has another vocabulary than {first}: prepare it again")
        return digests

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints carry (``TaskState``): fairseq's part, and what this class adds to it."""
        carried: dict[str, Any] = {"vocabulary": self.vocabulary}
        if self.run is not None and self.run.record is not None:
            carried["made_of"] = self.run.record.as_state()
        if self.run is not None:
            carried |= self.run.inherited
        return {**super().state_dict(), **carried}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a checkpoint's state, without what this class adds to it.

        Raises:
            UserError: the checkpoint was trained with another vocabulary than that of the data.
        """
        its = read_task_state(state_dict)["vocabulary"]
        check_same_vocabulary(self.vocabulary, its, self.cfg.data, "the checkpoint")
        added = TaskState.__annotations__
        super().load_state_dict({name: value for name, value in (state_dict or {}).items() if name not in added})

    def get_batch_iterator(self, dataset: Any, **options: Any) -> EpochBatchIterator:
        """Batches. What is not trained on is whole in them: fairseq leaves out rows beyond a multiple of 8."""
        if self.run is None or dataset is not self.datasets.get(self.run.cfg.dataset.train_subset):
            return super().get_batch_iterator(dataset, **{**options, "required_batch_size_multiple": 1})
        iterator = super().get_batch_iterator(dataset, **options)
        if not isinstance(iterator, ElasticBatchIterator):

            def batches_of(limits: Limits) -> Sequence[Any]:
                anew = {**options, **limits, "disable_iterator_cache": True}
                return super(TrainingTask, self).get_batch_iterator(dataset, **anew).frozen_batches

            given = {name: options.get(name, default) for name, default in NO_LIMITS.items()}
            iterator = ElasticBatchIterator.of(iterator, given, batches_of, self.run.cfg.optimization.update_freq)
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
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """One batch, as in every task.

        Raises:
            UserError: the training diverged (the trainer repeats the step then, to find out why gradients are not
                finite), or the batch does not fit in the GPU's memory (the trainer would leave it out, and a run whose
                batches are all too large would never end).
        """
        if self.run is not None and says_not_finite(sys.exc_info()[1]):
            raise UserError(self.run.why_diverged(update_num))
        if self.run is not None:
            self.run.begin_batch(update_num)
        sample = self.before_update(sample, update_num)
        try:
            loss, size, logs = super().train_step(sample, model, criterion, optimizer, update_num, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise UserError(
                "a batch does not fit in the GPU's memory: lower dataset.batch_size (and dataset.max_tokens) and raise "
                "optimization.update_freq by as much, or pass model.checkpoint_activations=true "
                f"({str(error).splitlines()[0]})"
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
            due = [any(logs.get(f"{what}_is_due", 0) > 0 for logs in logging_outputs) for what in ("save", "stop")]
            self.run.end_update(*due)

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """What a checkpoint carries beside fairseq's ``extra_state``; the configuration is written after this call."""
        if self.run is None:
            return {}
        self.run.saving.restore()
        return {STALLED: self.run.stalled()}

    def post_save(self, path: str, num_updates: int) -> None:
        """Called after fairseq has saved; `path` is the first copy."""
        if self.run is not None:
            self.run.saving.saved(Path(path))
            self.run.write_record()


def whole_config(cfg: Any) -> DictConfig | None:
    """The configuration of the run or checkpoint that a task's configuration belongs to; None where it stands alone."""
    root = cfg._get_root() if isinstance(cfg, DictConfig) else None
    return root if isinstance(root, DictConfig) and {"checkpoint", "optimization", "model"} <= root.keys() else None


def says_not_finite(error: BaseException | None) -> bool:
    """Whether fairseq found gradients that are not finite: by the same error it says that ranks' gradients differ."""
    said = str(error)
    return isinstance(error, FloatingPointError) and ("inconsistent" not in said or "= nan" in said or "inf\n" in said)


def save_interval() -> Any:
    """The option of every task of ours, for its dataclass."""
    text = "save a checkpoint at least every so many minutes; 0: after updates and epochs alone"
    return field(default=15.0, metadata={"help": text})


def set_options(cfg: Any, **values: Any) -> None:
    """Sets options of a task, also in the configuration of the whole run, which checkpoints hold."""
    for name, value in values.items():
        setattr(cfg, name, value)
    if (whole := whole_config(cfg)) is not None:
        with open_dict(whole):
            whole.task.update(values)


def length_of_model(cfg: Any) -> int | None:
    """The longest row that the model of a task's run reads, in tokens; None where nothing says it."""
    whole = whole_config(cfg)
    return getattr(whole and whole.model, "max_positions", None)


def check_file(data: Path, name: str) -> None:
    if not data.is_dir():
        raise FileNotFoundError(f"data={data}: there is no such folder")
    if not (data / name).is_file():
        raise FileNotFoundError(f"data={data}: it holds no {name}")
