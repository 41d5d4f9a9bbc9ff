"""What a batch says of itself is what its tensors say."""

import pytest
import torch
from fairseq.data import BaseWrapperDataset, ListDataset

from fairseq_linformer.data.batches import DescribedBatches

PAD = 1


class Collated(BaseWrapperDataset):
    """Batches that stand as they are."""

    def collater(self, samples):
        (batch,) = samples or [{}]
        return batch


def described(tokens, target, masked=True):
    batch = {"net_input": {"src_tokens": torch.tensor(tokens)}, "target": torch.tensor(target)}
    return DescribedBatches(Collated(ListDataset([batch])), PAD, masked).collater([batch])["net_input"]


@pytest.mark.parametrize(("tokens", "padded"), [([[0, 5, 2], [0, 6, 2]], False), ([[0, 5, 2], [0, 2, 1]], True)])
def test_padding_and_masked_positions_are_known(tokens, padded):
    target = [[PAD, 7, PAD], [9, PAD, PAD]]
    inputs = described(tokens, target)
    assert inputs["padded"] is padded
    picked = torch.tensor(target).flatten()[inputs["masked_positions"]]
    assert picked.tolist() == torch.tensor(target)[torch.tensor(target).ne(PAD)].tolist() == [7, 9]


def test_without_masks_there_are_no_positions():
    assert "masked_positions" not in described([[0, 5, 2]], [[PAD] * 3])
    assert "masked_positions" not in described([[0, 5, 2]], [[3, 4, 5]], masked=False)
    assert DescribedBatches(Collated(ListDataset([])), PAD, masked=True).collater([]) == {}
