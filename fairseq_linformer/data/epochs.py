"""Epochs of training data: which one a dataset is in, and how far a run has come in it."""

import copy
import inspect
from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from fairseq.data.iterators import EpochBatchIterator, ShardedIterator

from ..errors import UserError


class SharedEpochDataset(BaseWrapperDataset):
    """Sets the epoch of a dataset in every process that reads it.

    fairseq keeps its worker processes from epoch to epoch (``persistent_workers``). Each has its own copy of the
    dataset, which would stay in the epoch in which the worker started. Here the epoch is in shared memory.
    """

    def __init__(self, dataset: FairseqDataset) -> None:
        super().__init__(dataset)
        self._epoch = torch.ones((), dtype=torch.int64).share_memory_()
        self._told = 0  # the epoch that this process's copy is in

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)
        super().set_epoch(epoch)
        self._told = epoch

    def __getitem__(self, index: int) -> Any:
        epoch = int(self._epoch)
        if epoch != self._told:
            self.dataset.set_epoch(epoch)
            self._told = epoch
        return self.dataset[index]


class ElasticBatchIterator(EpochBatchIterator):
    """Batches of an epoch, in fairseq's order, whose saved place holds for any number of ranks.

    Of N ranks, rank r takes the batches r, r + N, r + 2N, … of an epoch. fairseq saves how many each took, so that a
    run that resumes on fewer ranks repeats batches, and on more ranks skips some, in silence. Here the state also says
    how many all took together. Where that is no multiple of the new N, the first batches of the epoch are left out, so
    that rank 0 has the next one: the run sees each batch once, in the same order.
    """

    _left_out = (0, 0)  # an epoch, and how many of its batches are left out before they are dealt to the ranks

    @classmethod
    def of(cls, iterator: EpochBatchIterator) -> "ElasticBatchIterator":
        """The same batches; `iterator` is not used after that."""
        names = list(inspect.signature(EpochBatchIterator).parameters)
        return cls(**{name: getattr(iterator, name) for name in names})

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        epoch, left_out = self._left_out
        place = state["iterations_in_epoch"] * self.num_shards + (left_out if epoch == state["epoch"] else 0)
        return {**state, "batches_in_epoch": place, "num_shards": self.num_shards}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a saved place; one that fairseq saved counts the batches of a rank.

        Raises:
            UserError: the order of the batches depends on the number of ranks, which has changed.
        """
        if "batches_in_epoch" in state_dict:
            before = state_dict["num_shards"]
            if self.grouped_shuffling and before != self.num_shards:
                raise UserError(
                    f"dataset.grouped_shuffling=true orders batches by the number of processes, {before} when the "
                    f"checkpoint was saved and now {self.num_shards}: resume with {before}"
                )
            iterations, left_out = divmod(state_dict["batches_in_epoch"], self.num_shards)
            self._left_out = state_dict["epoch"], left_out
            state_dict = {**state_dict, "iterations_in_epoch": iterations}
        super().load_state_dict(state_dict)

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """The batches of this rank, in the order of an epoch."""
        if self._left_out[0] != epoch:
            return super().ordered_batches(epoch, fix_batches_to_gpus, shuffle)
        whole = copy.copy(self)
        whole.num_shards, whole.shard_id, whole._left_out = 1, 0, (0, 0)
        batches = whole.ordered_batches(epoch, fix_batches_to_gpus, shuffle)[self._left_out[1] :]
        return list(ShardedIterator(batches, self.num_shards, self.shard_id, fill_value=[]))
