"""attention/blocks.py: what is a view where it can be, and the same where it cannot."""

import pytest
import torch
from torch.nn import functional as F

from fairseq_linformer.attention.blocks import into_blocks
from tests.helpers.layers import build


@pytest.mark.parametrize("length", [12, 13])
def test_blocks_that_fill_a_sequence_are_a_view(length):
    x = torch.randn(2, length, 3)
    blocks = into_blocks(x, 4)
    assert torch.equal(blocks.flatten(1, 2), F.pad(x, (0, 0, 0, -length % 4)))
    assert (blocks.data_ptr() == x.data_ptr()) == (length == 12)


@pytest.mark.parametrize("length", [16, 19, 3])
def test_windows_of_a_text_without_padding_are_those_of_one_that_might_have_some(length):
    """The first are views where they divide the text."""
    layer = build("linformer", n=32, k=8, projection="mean-pool", sharing="key-value", adaptive=True)[0]
    x = torch.randn(2, length, 24)
    found, sizes = layer.key_projection.windows(x, None)
    expected, also_sizes = layer.key_projection.windows(x, torch.zeros(2, length, dtype=torch.bool))
    assert torch.equal(found, expected)
    assert torch.equal(sizes.long().expand_as(also_sizes), also_sizes)
    assert (found.data_ptr() == x.data_ptr()) == (length in (16, 3))
