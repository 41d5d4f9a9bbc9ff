"""What BigBird alone promises: which blocks see which, how they are drawn, agreement with Hugging Face transformers."""

import sys

import numpy as np
import pytest
import torch

from fairseq_linformer.attention.bigbird import NO_BLOCK, draw_random_blocks
from tests.helpers.layers import D, N, assert_finite_with_nothing_real_in_reach, build


@pytest.mark.parametrize("length", [1, 4, N])
@pytest.mark.parametrize(
    "options",
    [
        {"bigbird_block": 64},
        {"bigbird_block": 4, "bigbird_random_blocks": 0},  # four blocks: the window and the ends are all of them
        {"bigbird_block": 1, "bigbird_random_blocks": N},
        {
            "bigbird_block": 2,
            "bigbird_random_blocks": 4,
        },  # eight blocks: block 1 has three in its window and one at the far end
    ],
    ids=str,
)
def test_with_every_block_seen_it_is_softmax_attention(length, options):
    bigbird, softmax = build("bigbird", **options)[0], build("softmax")[0]
    softmax.load_state_dict({name: value for name, value in bigbird.state_dict().items() if name != "random_blocks"})
    x = torch.randn(3, length, D, dtype=torch.float64)
    torch.testing.assert_close(bigbird.double()(x), softmax.double()(x), atol=1e-12, rtol=0)


def seen_blocks(attention, length, block, padded=0):
    """Blocks that the outputs of a block depend on, by gradient."""
    x = torch.randn(1, length + padded, D, requires_grad=True)
    mask = torch.arange(length + padded).unsqueeze(0) >= length
    size = attention.block
    attention(x, mask)[0, block * size : min((block + 1) * size, length)].sum().backward()
    return set((x.grad[0].abs().sum(1).nonzero().flatten() // size).tolist())


def test_window_ends_and_random_blocks_are_seen_and_no_others():
    attention = build("bigbird", bigbird_block=2, bigbird_random_blocks=1, heads=1, n=40)[0]
    for block in (1, 2, 7, 12, 18):
        expected = {0, block - 1, block, block + 1, 19, *attention.random_blocks[block, 0].tolist()}
        assert len(expected) in (5, 6)  # the windows of blocks 1 and 18 hold an end
        assert seen_blocks(attention, 40, block) == expected
    assert seen_blocks(attention, 40, 0) == seen_blocks(attention, 40, 19) == set(range(20))


@pytest.mark.parametrize("padded", [0, 1, 12])
def test_the_last_block_of_the_text_is_global_and_not_that_of_the_batch(padded):
    attention = build("bigbird", bigbird_block=2, bigbird_random_blocks=0, n=40)[0]
    assert seen_blocks(attention, 27, 5, padded) == {0, 4, 5, 6, 13}
    assert seen_blocks(attention, 27, 13, padded) == set(range(14))


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


def test_padding_with_nothing_real_in_reach_is_finite_in_both_directions():
    assert_finite_with_nothing_real_in_reach(build("bigbird", bigbird_block=2, bigbird_random_blocks=0)[0])


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
