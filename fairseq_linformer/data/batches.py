"""Batches of training: their description for the model, their epoch in every process, and a run's position in it."""

import copy
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.data.iterators import EpochBatchIterator, ShardedIterator

from ..errors import UserError


class TrainingDataset(BaseWrapperDataset):
    """Dataset with described batches, whose epoch is the same in every process that reads it.

    The ``net_input`` of a batch gets ``padded``, a bool, and ``masked_positions``, (N,) int64, the indices in the
    flattened batch (B, n) where there is a target. They are left out if there is none, as fairseq's criterion then
    needs all logits. Both are computed on the CPU, to avoid waiting for a GPU.

    fairseq keeps its worker processes from epoch to epoch (``persistent_workers``). Each has a copy of the dataset,
    which would stay in the epoch in which the worker started. Here the epoch is in shared memory.

    Args:
        dataset: one of fairseq's, whose batches have ``net_input`` with ``src_tokens``, (B, n).
        pad: fairseq's padding index.
        masked: True if targets are tokens (B, n), ``pad`` at unmasked ones.
    """

    def __init__(self, dataset: FairseqDataset, pad: int, masked: bool) -> None:
        super().__init__(dataset)
        self._pad, self._masked = pad, masked
        self._epoch = torch.ones((), dtype=torch.int64).share_memory_()
        self._local_epoch = 0  # the epoch of this process's copy

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)
        super().set_epoch(epoch)
        self._local_epoch = epoch

    def __getitem__(self, index: int) -> Any:
        epoch = int(self._epoch)
        if epoch != self._local_epoch:
            self.dataset.set_epoch(epoch)
            self._local_epoch = epoch
        return self.dataset[index]

    def collater(self, samples: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = self.dataset.collater(samples)
        if not batch:  # at the end of an epoch in which other ranks have one more batch
            return batch
        inputs = batch["net_input"]
        inputs["padded"] = bool(inputs["src_tokens"].eq(self._pad).any())
        if self._masked:
            positions = batch["target"].ne(self._pad).flatten().nonzero().flatten()
            if len(positions):
                inputs["masked_positions"] = positions
        return batch


Limits = dict[str, int | None]  # maximum sizes of a batch, by fairseq's names
BatchesOf = Callable[[Limits], Sequence[Any]]
NO_LIMITS: Limits = {"max_tokens": None, "max_sentences": None, "required_batch_size_multiple": 1}


class ElasticBatchIterator(EpochBatchIterator):
    """Batches of an epoch in fairseq's order, with a saved position valid for any number of ranks and batch size.

    Of N ranks, rank r takes the batches r, r + N, r + 2N, … of an epoch. fairseq saves the number that each rank took,
    so a run that resumes on fewer ranks or with smaller batches silently repeats rows, and otherwise skips rows. Here
    the state also has the number that all ranks took, and the limits of the batches. If that number is no multiple of
    the new N, the first batches of the epoch are left out, so that rank 0 has the next one. An epoch that began with
    batches of another size is finished in its order: the remaining rows are put into new batches. The run reads each
    row once, in the same order.

    If the number of batches is no multiple of N, fairseq gives the last ranks an empty one. If the last batch of an
    update is empty, fairseq's trainer treats all batches of that rank and update as empty: it does not count their
    tokens, and keeps their gradients. So an empty batch is kept only if it is the first of an update.

    Args:
        iterator: one of fairseq's over the same batches, which must not be used after that.
        limits: of its batches.
        batches_of: function that returns all ranks' batches for any limits, unshuffled.
        update_freq: number of batches of a rank in an update, by epoch.
    """

    def __init__(
        self, iterator: EpochBatchIterator, limits: Limits, batches_of: BatchesOf, update_freq: Sequence[int]
    ) -> None:
        super().__init__(**{name: getattr(iterator, name) for name in inspect.signature(EpochBatchIterator).parameters})
        self.limits, self.update_freq, self._batches_of = limits, update_freq, batches_of
        self._begun_epoch = 0  # the epoch that was begun before this iterator
        self._begun: Sequence[tuple[Limits, int]] = ()  # its parts: limits of batches, and number left out

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        *earlier_parts, (_, left_out) = self._begun if self._begun_epoch == state["epoch"] else [(self.limits, 0)]
        batches = left_out + state["iterations_in_epoch"] * self.num_shards
        state |= {"batches_in_epoch": batches, "num_shards": self.num_shards, "rows": len(self.dataset)}
        return {**state, "limits": self.limits, "begun": earlier_parts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved position; in positions of fairseq and of early versions, batches of a rank are counted.

        Raises:
            UserError: the data has another number of rows, or the order of the batches depends on the number of ranks,
                which has changed.
        """
        if "rows" in state_dict:
            state_dict = {**state_dict, "iterations_in_epoch": self._restore_epoch(state_dict)}
        super().load_state_dict(state_dict)

    def _restore_epoch(self, state: dict[str, Any]) -> int:
        """Store the history of a saved epoch; return the number of its batches that each rank leaves out."""
        self.epoch, ranks, rows = state["epoch"], state["num_shards"], state["rows"]
        parts = [*state["begun"], (state["limits"], state["batches_in_epoch"])]
        if not any(position for _, position in parts):  # the epoch, perhaps one of another shard, begins
            parts = [(self.limits, 0)]
        elif rows != len(self.dataset):
            raise UserError(
                f"the checkpoint was saved within an epoch of {rows:,} rows, and the data has {len(self.dataset):,}: "
                "pass checkpoint.reset_dataloader=true to begin with its first epoch"
            )
        elif parts[-1][0] != self.limits:
            parts = [*parts, (self.limits, 0)]
        if self.grouped_shuffling and (ranks != self.num_shards or len(parts) > 1):
            raise UserError(
                f"dataset.grouped_shuffling=true orders batches by the number of processes, {ranks} when the "
                f"checkpoint was saved and now {self.num_shards}: resume with {ranks}, and batches as large"
            )
        *earlier_parts, (_, position) = parts
        # fairseq's groups of batches would end at a position within a group: rank 0 begins with the first of an update.
        updates, left_out = divmod(position, self.num_shards * self._per_update(self.epoch))
        self._begun_epoch, self._begun = self.epoch, [*earlier_parts, (self.limits, left_out)]
        return updates * self._per_update(self.epoch)

    def _per_update(self, epoch: int) -> int:
        return self.update_freq[min(epoch, len(self.update_freq)) - 1]

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """Return the batches of this rank, in the order of an epoch."""
        if self._begun_epoch == epoch:
            batches = self._remaining_batches(epoch, fix_batches_to_gpus, shuffle)
        else:
            batches = list(super().ordered_batches(epoch, fix_batches_to_gpus, shuffle))
        if batches and len(batches[-1]) == 0 and (len(batches) - 1) % self._per_update(epoch):
            batches.pop()
        return batches

    def _remaining_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """Return this rank's batches of an epoch that was begun before this iterator."""
        (limits, index), *later = self._begun
        full = copy.copy(self)
        full.num_shards, full.shard_id, full._begun_epoch = 1, 0, 0
        if limits != self.limits:
            full._frozen_batches = tuple(self._batches_of(limits))
        batches = full.ordered_batches(epoch, fix_batches_to_gpus, shuffle)[index:]
        for limits, index in later:
            rows = np.fromiter(itertools.chain.from_iterable(batches), np.int64)
            batches = list(self.dataset.batch_by_size(rows, **limits))[index:]
        return list(ShardedIterator(batches, self.num_shards, self.shard_id, fill_value=[]))
