"""Hashing of LSH attention, at several lengths and precisions; test_contract.py and test_peers.py have the rest."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.layers import D, N, build


def full_attention(reformer, x):
    """Return full attention to all other positions with queries as keys, which LSH attention approximates."""
    queries, values = reformer.split_heads(reformer.q_proj(x)), reformer.split_heads(reformer.v_proj(x))
    mask = ~torch.eye(x.size(1), dtype=torch.bool)
    heads = F.scaled_dot_product_attention(queries, F.normalize(queries, dim=-1), values, mask, scale=1.0)
    return reformer.out_proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("n", [64, 256])
def test_equal_vectors_attend_to_each_other_at_any_distance(n):
    """Half a sequence apart, with one hash function per round and with two."""
    reformer = build("reformer", n=n, d=48, reformer_chunk_length=8)[0]
    assert reformer.rotations.size(2) == (1 if n == 64 else 2)
    torch.manual_seed(0)
    x = 10 * torch.randn(1, n // 2, 48).repeat(1, 2, 1)
    torch.testing.assert_close(reformer(x), full_attention(reformer, x), atol=1e-2, rtol=1e-3)


def test_the_number_of_buckets_follows_the_length():
    reformer = build("reformer", n=1000, reformer_chunk_length=10)[0]
    lengths = torch.tensor([1, 10, 20, 100, 1000])
    buckets = (2 * reformer._columns(lengths)) ** reformer.rotations.size(2)
    assert buckets.tolist() == [4, 4, 4, 36, 256]  # two functions of an even number each, for about 2 l / m
    reformer = build("reformer", n=100, reformer_chunk_length=10)[0]
    assert (2 * reformer._columns(lengths[:4])).tolist() == [2, 2, 4, 20]


@pytest.mark.parametrize(("n", "functions"), [(60, 1), (300, 2)])
def test_a_longer_sequence_in_the_batch_does_not_change_the_hashes(n, functions):
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


def test_half_precision_hashes_do_not_depend_on_the_batch():
    """If the layout of a product depended on the batch, other rounding would change a quarter of the buckets."""
    reformer = build("reformer", heads=4, n=512, d=64)[0].bfloat16()
    x = torch.randn(2, 512, 64, dtype=torch.bfloat16)
    together, alone = reformer(x)[0].float(), reformer(x[:1])[0].float()
    assert (together - alone).norm() < 0.005 * alone.norm()


@pytest.mark.parametrize("local", [False, True])
def test_selected_keys_are_those_that_the_chunks_attend_to(local):
    reformer = build("reformer", n=61, reformer_chunk_length=4, reformer_hashes=2, reformer_local=local)[0].double()
    queries, values = torch.randn(2, 2, 3, 61, D // 3, dtype=torch.float64)
    lengths = torch.tensor([61, 40])
    padded = (F.pad(part, (0, 0, 0, 3)) for part in (queries, values))
    sparse = reformer._attend_sparsely(*padded, lengths)[:, :, :61]
    dense = reformer._attend_densely(queries, values, lengths)
    torch.testing.assert_close(sparse[0], dense[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(sparse[1, :, :40], dense[1, :, :40], atol=1e-12, rtol=0)


def test_a_random_selection_has_the_size_of_a_hashed_one_and_changes():
    reformer = build("reformer", n=64, reformer_chunk_length=4, reformer_hashes=1, reformer_selection="random")[0]
    queries, lengths = torch.randn(1, 3, 64, D // 3), torch.tensor([64])
    first, second = (reformer.selected_keys(queries, lengths) for _ in range(2))
    assert first.sum() == 3 * (64 * 12 - 2 * 16), "three chunks, but two at both ends"
    assert not torch.equal(first, second)
