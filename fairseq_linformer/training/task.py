"""Base class of our tasks, whose methods fairseq's trainer calls around each update."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.utils import split_paths
from omegaconf import DictConfig
from torch import Tensor

from ..checkpoint import TaskState, check_same_vocabulary, differing_parts, digest_vocabulary, read_task_state
from ..data.batches import NO_LIMITS, ElasticBatchIterator, Limits
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..errors import UserError
from ..precision import with_bfloat16_products
from ..processes import use_idle_cores
from .configuration import set_options, whole_config
from .options import adopt_model_options, check_options, choose_precision, override_defaults
from .run import Run

logger = logging.getLogger(__name__)


class TrainingTask(FairseqTask):
    """Base class of tasks whose runs lock their folder, resume from complete checkpoints, and detect completion.

    Their checkpoints contain digests of the vocabulary, which are compared when a checkpoint is read.
    """

    NEXT: str  # the command to suggest when a run, {run}, is complete
    to_train: DictConfig | None = None  # the whole configuration of a training
    run: Run | None = None  # during a training

    @classmethod
    def setup_task(cls, cfg: FairseqDataclass, **kwargs: Any) -> "TrainingTask":
        """Return the task; for a training, check and complete its options first.

        Raises:
            FileNotFoundError: the initial checkpoint does not exist.
            UserError: an option is not allowed, or the initial checkpoint cannot be read.
        """
        config = whole_config(cfg)
        # fairseq allows objects in the configuration of a checkpoint that it loads.
        loads_checkpoint = kwargs.get("from_checkpoint") or (config is not None and config._get_flag("allow_objects"))
        to_train = None if loads_checkpoint else config
        if to_train is not None:
            use_idle_cores()
            set_options(cfg, bfloat16=choose_precision(to_train, cfg.bfloat16))
            check_options(to_train)
            adopt_model_options(to_train)
            override_defaults(to_train)
        task = super().setup_task(cfg, **kwargs)
        task.to_train = to_train
        return task

    def build_model(self, cfg: FairseqDataclass, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Return the model; for a training, begin the ``Run`` first."""
        if self.to_train is not None and not from_checkpoint:
            self.run = Run(self.to_train, self.vocabulary, self.NEXT)
        return super().build_model(cfg, from_checkpoint)

    @cached_property
    def vocabulary(self) -> dict[str, str]:
        """Digests of the data's dictionary and subword model.

        Raises:
            UserError: one of several folders has another vocabulary than the first.
        """
        first, *other_folders = map(Path, split_paths(self.cfg.data))
        digests = digest_vocabulary(self.source_dictionary, first)
        for folder in other_folders:
            if not (file := folder / DICTIONARY_FILE).is_file():  # our corpora have one in each folder
                continue
            if differing_parts(digests, digest_vocabulary(load_dictionary(file), folder)):
                raise UserError(f"{folder} has another vocabulary than {first}: prepare it again")
        return digests

    def state_dict(self) -> dict[str, Any]:
        """Return the task's state for checkpoints: fairseq's entries and those of ``TaskState``."""
        run_state = {} if self.run is None else self.run.task_state()
        return {**super().state_dict(), "vocabulary": self.vocabulary, **run_state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint's state without the entries of ``TaskState``.

        Raises:
            UserError: the checkpoint has another vocabulary than the data.
        """
        vocabulary = read_task_state(state_dict)["vocabulary"]
        check_same_vocabulary(self.vocabulary, vocabulary, self.cfg.data, "the checkpoint")
        added = TaskState.__annotations__
        super().load_state_dict({name: value for name, value in (state_dict or {}).items() if name not in added})

    def get_batch_iterator(self, dataset: FairseqDataset, **options: Any) -> EpochBatchIterator:
        """Return batches; outside the training data, of all rows: fairseq drops those beyond a multiple of 8."""
        if self.run is None or dataset is not self.datasets.get(self.run.cfg.dataset.train_subset):
            return super().get_batch_iterator(dataset, **{**options, "required_batch_size_multiple": 1})
        iterator = super().get_batch_iterator(dataset, **options)
        if not isinstance(iterator, ElasticBatchIterator):

            def batches_of(limits: Limits) -> Sequence[Any]:
                iterator_options = {**options, **limits, "disable_iterator_cache": True}
                return super(TrainingTask, self).get_batch_iterator(dataset, **iterator_options).frozen_batches

            call_limits = {name: options.get(name, default) for name, default in NO_LIMITS.items()}
            update_freq = self.run.cfg.optimization.update_freq
            iterator = ElasticBatchIterator(iterator, call_limits, batches_of, update_freq)
            if dataset in self.dataset_to_epoch_iter:  # fairseq's cache for the next epoch
                self.dataset_to_epoch_iter[dataset] = iterator
        self.run.updates.iterator = iterator
        return iterator

    def before_update(self, sample: dict[str, Any], update_num: int) -> dict[str, Any]:
        """Return the batch, changed for its update if a task needs that."""
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
            SystemExit: the run was asked to stop, and has saved.
            UserError: the training diverged, or the batch does not fit in the GPU's memory (the trainer would skip it,
                and a run whose batches are all too large would never end).
        """
        if self.run is not None:
            if self.run.updates.stops:
                self.run.stop(update_num)
            self.run.updates.begin_batch(update_num)
        sample = self.before_update(sample, update_num)
        criterion = self._in_precision(criterion)
        try:
            loss, size, logs = super().train_step(sample, model, criterion, optimizer, update_num, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            raise UserError(
                "a batch does not fit in the GPU's memory: lower dataset.batch_size (and dataset.max_tokens) and raise "
                "optimization.update_freq by as much, or pass model.checkpoint_activations=true "
                f"({str(error).splitlines()[0]})"
            ) from error
        if self.run is not None:
            logs |= self.run.updates.end_batch(loss, size, stop=self.run.stopped_by is not None)
        return loss, size, logs

    def valid_step(self, sample: dict[str, Any], model: BaseFairseqModel, criterion: FairseqCriterion) -> Any:
        return super().valid_step(sample, model, self._in_precision(criterion))

    def _in_precision(self, call: Callable[..., Any]) -> Any:
        """Return a criterion or an optimizer's step, on a CPU with products in bfloat16 if ``task.bfloat16`` is yes."""
        is_on = getattr(self.cfg, "bfloat16", "no") == "yes"  # earlier checkpoints lack it
        return with_bfloat16_products(call) if is_on else call

    def optimizer_step(self, optimizer: FairseqOptimizer, model: BaseFairseqModel, update_num: int) -> None:
        """Update the parameters; with ``common.amp``, avoid that fairseq divides gradients by the loss scale twice.

        fairseq clips the gradients of the inner optimizer, but passes another object to the scaler's step, which does
        not know that they are unscaled.
        """
        if isinstance(optimizer, AMPOptimizer):
            optimizer.scaler.step(optimizer.optimizer)
            optimizer.scaler.update()
        else:
            self._in_precision(super().optimizer_step)(optimizer, model, update_num)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: FairseqCriterion) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        if self.run is not None and criterion.training:
            self.run.updates.end_update(logging_outputs)

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Return entries for a checkpoint's ``extra_state``; the trainer saves the configuration after this call."""
        return {} if self.run is None else self.run.begin_saving()

    def post_save(self, path: str, num_updates: int) -> None:
        """Tell the run that fairseq has saved; `path` is the first copy."""
        if self.run is not None:
            self.run.end_saving(Path(path))
