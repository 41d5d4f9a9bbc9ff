"""What LSH attention alone promises: where it is exact, what more rounds bring, what it finds, whose code agrees."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.layers import D, N, build


def full_attention(reformer, x):
    """Shared-QK attention among all positions but oneself, which LSH attention approximates."""
    queries, values = reformer.split_heads(reformer.q_proj(x)), reformer.split_heads(reformer.v_proj(x))
    others = ~torch.eye(x.size(1), dtype=torch.bool)
    heads = F.scaled_dot_product_attention(queries, F.normalize(queries, dim=-1), values, others, scale=1.0)
    return reformer.out_proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("n", [64, 256])
def test_what_is_alike_is_found_however_far_away(n):
    """Equal vectors stand half a sequence apart, and the rounds find them: by one hash function each, and by two."""
    reformer = build("reformer", n=n, d=48, reformer_chunk_length=8)[0]
    assert reformer.rotations.size(2) == (1 if n == 64 else 2)
    torch.manual_seed(0)
    x = 10 * torch.randn(1, n // 2, 48).repeat(1, 2, 1)
    torch.testing.assert_close(reformer(x), full_attention(reformer, x), atol=1e-2, rtol=1e-3)


def test_a_row_hashes_with_the_buckets_of_its_length():
    reformer = build("reformer", n=1000, reformer_chunk_length=10)[0]
    lengths = torch.tensor([1, 10, 20, 100, 1000])
    buckets = (2 * reformer._columns(lengths)) ** reformer.rotations.size(2)
    assert buckets.tolist() == [4, 4, 4, 36, 256]  # two functions of an even number each, for about 2 l / m
    reformer = build("reformer", n=100, reformer_chunk_length=10)[0]
    assert (2 * reformer._columns(lengths[:4])).tolist() == [2, 2, 4, 20]


@pytest.mark.parametrize(("n", "functions"), [(60, 1), (300, 2)])
def test_longer_rows_beside_it_do_not_change_them(n, functions):
    reformer = build("reformer", n=n, reformer_chunk_length=8, reformer_hashes=1)[0]
    assert reformer.rotations.size(2) == functions
    x = torch.randn(2, n, D)
    lengths = torch.tensor([n, n // 2])
    mask = torch.arange(n) >= lengths.unsqueeze(1)
    assert len(reformer._columns(lengths).unique()) == 2
    alone = reformer(x[1:, : n // 2])[0]
    torch.testing.assert_close(reformer(x, mask)[1, : n // 2], alone, atol=1e-5, rtol=0)


def test_keys_have_no_parameters():
    reformer = build("reformer")[0]
    assert reformer.k_proj is reformer.q_proj
    assert {name.split(".")[0] for name in reformer.state_dict()} == {"q_proj", "v_proj", "out_proj", "rotations"}
    assert not any(parameter is reformer.rotations for parameter in reformer.parameters())
    reformer(torch.randn(2, N, D)).sum().backward()
    assert all(parameter.grad is not None for parameter in reformer.parameters())


def test_a_row_is_hashed_alike_alone_and_in_a_batch_in_half_precision():
    """Where the layout of a product changed with the batch, rounding did, and with it a quarter of the buckets."""
    reformer = build("reformer", heads=4, n=512, d=64)[0].bfloat16()
    x = torch.randn(2, 512, 64, dtype=torch.bfloat16)
    together, alone = reformer(x)[0].float(), reformer(x[:1])[0].float()
    assert (together - alone).norm() < 0.005 * alone.norm()
