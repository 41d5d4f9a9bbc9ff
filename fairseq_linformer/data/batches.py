"""What a batch says of itself, found where it is made, on the CPU: asked of a GPU, the host would have to wait."""

from typing import Any

from fairseq.data import BaseWrapperDataset, FairseqDataset


class DescribedBatches(BaseWrapperDataset):
    """Adds to ``net_input`` of each batch whether it is padded, and where its masked tokens are.

    ``padded`` is a bool. ``masked_positions`` (N,) int64 are the numbers, row by row, of the positions of (B, n) that
    have a target. Where there is none, as fairseq's criterion then asks for all logits, they are left out.

    Args:
        dataset: one of fairseq's, whose batches have ``net_input`` with ``src_tokens``.
        pad: fairseq's padding index.
        masked: whether targets are tokens (B, n), ``pad`` where none is masked.
    """

    def __init__(self, dataset: FairseqDataset, pad: int, masked: bool) -> None:
        super().__init__(dataset)
        self._pad, self._masked = pad, masked

    def collater(self, samples: list[Any]) -> dict[str, Any]:
        batch: dict[str, Any] = self.dataset.collater(samples)
        if not batch:  # what a rank has at the end of an epoch when the others have a batch more
            return batch
        inputs = batch["net_input"]
        inputs["padded"] = bool(inputs["src_tokens"].eq(self._pad).any())
        if self._masked:
            positions = batch["target"].ne(self._pad).flatten().nonzero().flatten()
            if len(positions):
                inputs["masked_positions"] = positions
        return batch
