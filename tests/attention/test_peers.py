"""Agreement with transformers on copied weights."""

import sys

import numpy as np
import pytest
import torch

from tests.helpers.layers import D, build

HEADS = 3


@pytest.fixture(autouse=True)
def without_torchaudio(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio", None)  # transformers imports it, where it is, for other models


def transformers_module(name):
    return pytest.importorskip(f"transformers.models.{name}.modeling_{name}")


def copy_qkv(attention, peer, ours="_proj", theirs=""):
    for short, full in (("q", "query"), ("k", "key"), ("v", "value")):
        getattr(peer, full + theirs).load_state_dict(getattr(attention, short + ours).state_dict())


def assert_equal_heads(attention, x, heads, padding=None, **tolerance):
    """Compare with heads (B, n, d) before the last linear map."""
    real = torch.ones(x.shape[:2], dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(attention(x, padding)[real], attention.out_proj(heads)[real], **tolerance)


@pytest.mark.parametrize("padded", [0, 3])
def test_bigbird(monkeypatch, padded):
    """With our random blocks, and padding within the last block alone, as theirs is the last one of the batch."""
    theirs, block, blocks, count = transformers_module("big_bird"), 4, 12, 2
    length = block * blocks
    attention = build("bigbird", bigbird_block=block, bigbird_random_blocks=count, n=length)[0].eval()
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "max_position_embeddings": length}
    config = theirs.BigBirdConfig(**sizes, block_size=block, num_random_blocks=count)
    peer = theirs.BigBirdBlockSparseAttention(config).eval()
    copy_qkv(attention, peer)
    ours = list(np.array(attention.random_blocks[1:-1].transpose(0, 1).tolist()))  # (h, N - 2, r)
    assert min(drawn.min() for drawn in ours) > 0
    monkeypatch.setattr(peer, "_bigbird_block_rand_mask_with_head", lambda **_: ours)
    x = torch.randn(2, length, D)
    padding = torch.arange(length) >= torch.tensor([[length], [length - padded]])
    masks = theirs.BigBirdModel.create_masks_for_block_sparse_attn((~padding).float(), block)
    blocked_mask, band_mask, from_mask, to_mask = masks
    heads = peer(x, band_mask, from_mask, to_mask, blocked_mask, blocked_mask)[0]
    assert_equal_heads(attention, x, heads, padding, atol=1e-5, rtol=0)


@pytest.mark.parametrize("global_tokens", [0, 1, 3])
def test_longformer(global_tokens):
    """Two windows and more, with padding."""
    theirs, window, length, real = transformers_module("longformer"), 6, 24, 17
    options = {"longformer_window": window, "longformer_global_tokens": global_tokens}
    attention = build("longformer", **options, n=length)[0].eval()
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "attention_window": [window]}
    peer = theirs.LongformerSelfAttention(
        theirs.LongformerConfig(**sizes, attention_probs_dropout_prob=0.0), layer_id=0
    ).eval()
    copy_qkv(attention, peer)
    if global_tokens:
        for part in "qkv":
            torch.nn.init.normal_(getattr(attention, f"{part}_proj_global").weight, std=0.5)
        copy_qkv(attention, peer, "_proj_global", "_global")
    x = torch.randn(2, length, D)
    padding = torch.arange(length) >= torch.tensor([[length], [real]])
    is_global = (torch.arange(length) < global_tokens).expand(2, length)
    mask = is_global * 10000.0 - padding * 10000.0
    heads = peer(x, mask, padding, is_global, bool(global_tokens))[0]
    assert_equal_heads(attention, x, heads, padding, atol=1e-5, rtol=0)


def test_nystrom():
    """With the norms of each matrix ("exact"), where its default are those of the whole batch."""
    theirs = transformers_module("nystromformer")
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "num_landmarks": 5, "segment_means_seq_len": 60}
    peer = theirs.NystromformerSelfAttention(theirs.NystromformerConfig(**sizes, conv_kernel_size=9)).eval()
    peer.init_option = "exact"
    attention = build("nystrom", n=60, nystrom_landmarks=5, nystrom_conv_width=9)[0].eval()
    copy_qkv(attention, peer)
    peer.conv.load_state_dict(attention.conv.state_dict())
    x = torch.randn(2, 60, D)
    assert_equal_heads(attention, x, peer(x)[0], atol=1e-4, rtol=1e-4)


def test_reformer():
    """One round, weights and rotations copied, in all chunks but the first and the last.

    There they differ, because its chunks wrap around. Over several rounds it counts a pair in each round.
    """
    theirs, m, chunks = transformers_module("reformer"), 8, 5
    sizes = {"hidden_size": D, "num_attention_heads": HEADS, "attention_head_size": D // HEADS, "num_hashes": 1}
    sizes |= {"lsh_attn_chunk_length": m, "lsh_num_chunks_before": 1, "lsh_num_chunks_after": 1}
    sizes |= {"num_buckets": 2 * chunks, "hash_seed": 3, "is_decoder": False, "lsh_attention_probs_dropout_prob": 0.0}
    peer = theirs.LSHSelfAttention(theirs.ReformerConfig(**sizes)).eval()
    ours = build("reformer", n=m * chunks, reformer_chunk_length=m, reformer_hashes=1)[0].eval()
    with torch.no_grad():
        ours.q_proj.bias.zero_()
        ours.v_proj.bias.zero_()
        ours.out_proj.bias.zero_()
        ours.out_proj.weight.copy_(torch.eye(D))
        peer.query_key.weight.copy_(ours.q_proj.weight)
        peer.value.weight.copy_(ours.v_proj.weight)
    x = torch.randn(2, m * chunks, D)
    torch.manual_seed(3)
    drawn = torch.randn(HEADS, D // HEADS, 1, chunks)  # as it draws them
    ours.rotations.copy_(drawn.permute(0, 2, 1, 3).unsqueeze(2))
    expected = peer(x)
    chunk = expected.buckets.squeeze(2).sort(stable=True).indices.argsort(-1) // m  # (B, h, n)
    inner = (chunk > 0) & (chunk < chunks - 1)
    outputs = (ours.split_heads(out)[inner] for out in (ours(x), expected.hidden_states))
    torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
