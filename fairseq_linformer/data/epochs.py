"""The epoch of datasets that draw new masks or crops in each epoch."""

from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset


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
