"""Relative positions: what they promise beyond the naive references, with which test_contract.py compares them."""

import pytest
import torch

from fairseq_linformer.attention.positions import alibi_slopes
from tests.helpers.layers import D, N, build
from tests.reference.naive_attention import softmax
from tests.reference.positions import slopes

KINDS = [{"positions": "rotary"}, {"positions": "rotary", "share": 0.5}, {"positions": "alibi"}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_full_attention_depends_on_distances_alone(options):
    attention, x = build("softmax", **options)[0].double(), torch.randn(7, D, dtype=torch.float64)
    torch.testing.assert_close(attention(x[None])[0], softmax(attention, x, first=1000), atol=1e-9, rtol=0)
    assert not torch.allclose(attention(x[None])[0], build("softmax")[0].double()(x[None])[0], atol=1e-3)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_window_sees_the_same_wherever_it_stands(options):
    """In blocks of other boundaries: x after 3 positions of another text and after 8 of them."""
    attention = build("longformer", longformer_window=4, longformer_global_tokens=0, **options)[0].double()
    x, before = torch.randn(1, N, D, dtype=torch.float64), torch.randn(1, 8, D, dtype=torch.float64)
    rows = [attention(torch.cat([before[:, :first], x], dim=1))[:, first:] for first in (3, 8)]
    torch.testing.assert_close(rows[0][:, 2:], rows[1][:, 2:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_slopes_are_the_authors(heads):
    torch.testing.assert_close(alibi_slopes(heads, torch.device("cpu")), torch.tensor(slopes(heads)))


def test_agrees_with_the_rotation_of_transformers():
    """ModernBERT's, which is LLaMA's."""
    theirs = pytest.importorskip("transformers.models.modernbert.modeling_modernbert")
    attention, length = build("softmax", positions="rotary", d=48, heads=3)[0], 9
    queries = torch.randn(2, 3, length, 16)
    angles = torch.arange(length)[:, None] * 20.0 ** (-torch.arange(0, 16, 2) / 16)
    angles = torch.cat([angles, angles], dim=1)[None]
    expected = theirs.apply_rotary_pos_emb(queries, queries, angles.cos(), angles.sin())[0]
    torch.testing.assert_close(attention.rotated(queries), expected)
    rows = queries.transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.split_heads(attention.rotated(rows)), expected, msg="as (B, n, d)")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_are_exact_in_half_precision(dtype):
    """At position 4,000 bfloat16 itself counts in sixteens."""
    attention = build("softmax", positions="rotary", d=16, heads=1)[0]
    rows = torch.randn(1, 4096, 16).to(dtype)
    assert attention.rotated(rows).dtype == dtype
    torch.testing.assert_close(attention.rotated(rows).double(), attention.rotated(rows.double()), atol=0.02, rtol=0.01)


def test_what_is_no_position_is_scored_by_what_does_not_turn():
    attention = build("softmax", positions="rotary", share=0.5)[0]  # d_h = 4
    rows = torch.ones(1, 3, 5, 4)
    assert attention.content(rows).sum(-1).eq(2).all() and attention.content(rows)[..., 2:].eq(1).all()
    assert torch.equal(attention.content(torch.ones(1, 5, D)), attention.content(rows).transpose(1, 2).flatten(2))


def test_no_position_has_parameters():
    names = set(build("softmax")[0].state_dict())
    assert all(set(build("softmax", **options)[0].state_dict()) == names for options in KINDS)
