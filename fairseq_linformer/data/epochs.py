"""Epochs for datasets that draw anew in each: masks, crops."""

from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset


class SharedEpochDataset(BaseWrapperDataset):
    """Tells a dataset the epoch wherever it is read.

    fairseq keeps its worker processes from epoch to epoch (``persistent_workers``), and each has its own copy of the
    dataset, which would stay in the epoch that the worker was started in. Here the epoch lies in shared memory.
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
