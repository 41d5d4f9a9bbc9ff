"""What BigBird alone promises: how its blocks are drawn, and agreement with Hugging Face transformers."""

import sys

import numpy as np
import pytest
import torch

from fairseq_linformer.attention.bigbird import NO_BLOCK, draw_random_blocks
from tests.helpers.layers import D, build


def test_random_blocks_are_distinct_and_new_to_their_queries():
    blocks, heads, count = 11, 4, 3
    drawn = draw_random_blocks(blocks, heads, count)
    assert drawn.shape == (blocks, heads, count)
    for block in range(blocks):
        unseen = set(range(1, blocks - 1)) - {block - 1, block, block + 1}
        for chosen in drawn[block].tolist():
            assert len(set(chosen)) == count
            assert set(chosen) <= unseen
    assert len({tuple(chosen) for chosen in drawn[5].tolist()}) > 1, "heads draw for themselves"


def test_where_too_few_blocks_are_left_all_of_them_are_taken():
    drawn = draw_random_blocks(6, 2, 3)
    assert [sorted(chosen) for chosen in drawn[1].tolist()] == [[NO_BLOCK, 3, 4]] * 2
    assert [sorted(chosen) for chosen in drawn[2].tolist()] == [[NO_BLOCK, NO_BLOCK, 4]] * 2


def test_every_block_is_drawn_as_often_as_any_other():
    drawn = draw_random_blocks(10, 4000, 3)[4]
    often = torch.bincount(drawn.flatten(), minlength=10) / 4000
    torch.testing.assert_close(often[[1, 2, 6, 7, 8]], torch.full((5,), 3 / 5), atol=0.04, rtol=0)
    assert often[[0, 3, 4, 5, 9]].eq(0).all()


def test_layers_draw_for_themselves_and_the_seed_decides():
    first, second = build("bigbird", bigbird_block=1, bigbird_random_blocks=3, n=40)
    again, _ = build("bigbird", bigbird_block=1, bigbird_random_blocks=3, n=40)
    other, _ = build("bigbird", bigbird_block=1, bigbird_random_blocks=3, n=40, seed=1)
    assert torch.equal(first.random_blocks, again.random_blocks)
    assert not torch.equal(first.random_blocks, second.random_blocks)
    assert not torch.equal(first.random_blocks, other.random_blocks)


@pytest.mark.parametrize("padded", [0, 3])
def test_agrees_with_hugging_face(monkeypatch, padded):
    """With our random blocks, which they draw anew in every step, and padding within the last block alone.

    They take the last block of the batch for global. Theirs is cut before the last linear map.
    """
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # they import it, if they find it, for other models
    theirs = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    block, blocks, count = 4, 12, 2
    length = block * blocks
    attention = build("bigbird", bigbird_block=block, bigbird_random_blocks=count, n=length)[0].eval()
    config = theirs.BigBirdConfig(
        hidden_size=D, num_attention_heads=3, block_size=block, num_random_blocks=count, max_position_embeddings=length
    )
    peer = theirs.BigBirdBlockSparseAttention(config).eval()
    for name, full_name in (("q", "query"), ("k", "key"), ("v", "value")):
        getattr(peer, full_name).load_state_dict(getattr(attention, f"{name}_proj").state_dict())
    ours = list(np.array(attention.random_blocks[1:-1].transpose(0, 1).tolist()))  # (h, N - 2, r)
    assert min(drawn.min() for drawn in ours) > 0
    monkeypatch.setattr(peer, "_bigbird_block_rand_mask_with_head", lambda **_: ours)

    x = torch.randn(2, length, D)
    padding = torch.arange(length) >= torch.tensor([[length], [length - padded]])
    masks = theirs.BigBirdModel.create_masks_for_block_sparse_attn((~padding).float(), block)
    blocked_mask, band_mask, from_mask, to_mask = masks
    heads = peer(x, band_mask, from_mask, to_mask, blocked_mask, blocked_mask)[0]
    torch.testing.assert_close(attention(x, padding)[~padding], attention.out_proj(heads)[~padding], atol=1e-5, rtol=0)
