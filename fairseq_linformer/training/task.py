"""The base of our tasks: fairseq's trainer calls its task at each moment around an update."""

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
from fairseq.models.roberta import RobertaModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths
from omegaconf import DictConfig, open_dict
from torch import Tensor

from ..checkpoint import TaskState, check_same_vocabulary, differing_parts, digest_vocabulary, read_task_state
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.epochs import NO_LIMITS, ElasticBatchIterator, Limits
from ..errors import UserError
from .options import prepare_options
from .run import Run

logger = logging.getLogger(__name__)


class TrainingTask(FairseqTask):
    """A task whose runs lock their folder, resume from complete checkpoints, and know when they are complete.

    Its checkpoints say which vocabulary they were trained with, which is compared wherever one is read.
    """

    NEXT: str  # the command to type when a run, {run}, is complete
    to_train: DictConfig | None = None  # the whole configuration, where the task is set up for a training
    run: Run | None = None  # while it trains

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> "TrainingTask":
        """Return the task. For a training the options are checked and completed; for loading a checkpoint they are not.

        Raises:
            FileNotFoundError: the checkpoint to start from is not there.
            UserError: an option cannot work, or the checkpoint to start from cannot be read.
        """
        whole = whole_config(cfg)
        # The configuration of a checkpoint may hold objects, which fairseq allows when it reads it.
        of_checkpoint = kwargs.get("from_checkpoint") or (whole is not None and whole._get_flag("allow_objects"))
        to_train = None if of_checkpoint else whole
        if to_train is not None:
            prepare_options(to_train)
        task = super().setup_task(cfg, **kwargs)
        task.to_train = to_train
        return task

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Return the model. Where the task was set up for a training, that begins here (see ``Run``)."""
        if self.to_train is not None and not from_checkpoint:
            self.run = Run(self.to_train, self.vocabulary, self.NEXT)
        return super().build_model(cfg, from_checkpoint)

    @cached_property
    def vocabulary(self) -> dict[str, str]:
        """Digests of the dictionary and the subword model of the data.

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
        """Return what checkpoints carry: fairseq's part, and what this class adds to it (``TaskState``)."""
        of_run = {} if self.run is None else self.run.task_state()
        return {**super().state_dict(), "vocabulary": self.vocabulary, **of_run}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a checkpoint's state, without what this class adds to it.

        Raises:
            UserError: the checkpoint was trained with another vocabulary than that of the data.
        """
        its = read_task_state(state_dict)["vocabulary"]
        check_same_vocabulary(self.vocabulary, its, self.cfg.data, "the checkpoint")
        added = TaskState.__annotations__
        super().load_state_dict({name: value for name, value in (state_dict or {}).items() if name not in added})

    def get_batch_iterator(self, dataset: Any, **options: Any) -> EpochBatchIterator:
        """Return batches; all rows of what is not trained on: fairseq leaves out those beyond a multiple of 8."""
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
        """Return a batch changed for the update that it is for."""
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
        """Train on one batch.

        Raises:
            UserError: the training diverged (the trainer repeats the step then, to find out why gradients are not
                finite), or the batch does not fit in the GPU's memory (the trainer would leave it out, and a run whose
                batches are all too large would never end).
        """
        if self.run is not None and is_not_finite(sys.exc_info()[1]):
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
            logs |= self.run.requests()
        return loss, size, logs

    def optimizer_step(self, optimizer: FairseqOptimizer, model: BaseFairseqModel, update_num: int) -> None:
        """Update the parameters. With ``common.amp`` fairseq's divides gradients by the loss scale twice.

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
        """Return what a checkpoint has beside fairseq's ``extra_state``; the configuration is written after this."""
        return {} if self.run is None else self.run.begin_saving()

    def post_save(self, path: str, num_updates: int) -> None:
        """Note that fairseq has saved; `path` is the first copy."""
        if self.run is not None:
            self.run.end_saving(Path(path))


def whole_config(cfg: Any) -> DictConfig | None:
    """Return the configuration of the run or checkpoint that a task's belongs to; None if it stands alone."""
    root = cfg._get_root() if isinstance(cfg, DictConfig) else None
    return root if isinstance(root, DictConfig) and {"checkpoint", "optimization", "model"} <= root.keys() else None


def is_not_finite(error: BaseException | None) -> bool:
    """Return True for gradients that are not finite; fairseq raises the same error where those of ranks differ."""
    text = str(error)
    return isinstance(error, FloatingPointError) and ("inconsistent" not in text or "= nan" in text or "inf\n" in text)


def save_interval() -> Any:
    """Return the option ``save_interval_minutes``, for the dataclass of every task."""
    text = "save a checkpoint at least every so many minutes; 0: after updates and epochs alone"
    return field(default=15.0, metadata={"help": text})


def set_options(cfg: Any, **values: Any) -> None:
    """Set options of a task, also in the configuration of the whole run, which checkpoints hold."""
    for name, value in values.items():
        setattr(cfg, name, value)
    if (whole := whole_config(cfg)) is not None:
        with open_dict(whole):
            whole.task.update(values)


def length_of_model(cfg: Any) -> int | None:
    """Return the longest row that the model of a task's run reads, in tokens; None if it is open."""
    whole = whole_config(cfg)
    return getattr(whole and whole.model, "max_positions", None)


def check_file(data: Path, name: str) -> None:
    if not data.is_dir():
        raise FileNotFoundError(f"data={data}: there is no such folder")
    if not (data / name).is_file():
        raise FileNotFoundError(f"data={data}: it holds no {name}")


def freeze_lm_head(model: RobertaModel) -> None:
    """Leave the LM head's own parameters out of the training; the embedding that it shares stays in.

    Without this several processes do not train what one trains: they average a gradient for every parameter, and for
    one that has none the optimizer would take the average, 0, and decay its weight.
    """
    embedding = model.encoder.sentence_encoder.embed_tokens.weight
    for parameter in model.encoder.lm_head.parameters():
        if parameter is not embedding:
            parameter.requires_grad_(False)
