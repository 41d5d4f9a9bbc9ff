"""Relative positions beyond the naive references, with which test_contract.py compares them."""

import pytest
import torch

from fairseq_linformer.attention.positions import alibi_slopes
from tests.helpers.layers import D, build
from tests.reference.naive_attention import softmax
from tests.reference.positions import slopes

KINDS = [{"positions": "rotary"}, {"positions": "rotary", "share": 0.5}, {"positions": "alibi"}]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_full_attention_depends_on_distances_alone(options):
    attention, x = build("softmax", **options)[0].double(), torch.randn(7, D, dtype=torch.float64)
    torch.testing.assert_close(attention(x[None])[0], softmax(attention, x, first=1000), atol=1e-9, rtol=0)
    assert not torch.allclose(attention(x[None])[0], build("softmax")[0].double()(x[None])[0], atol=1e-3)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_slopes_equal_the_authors(heads):
    torch.testing.assert_close(alibi_slopes(heads, torch.device("cpu")), torch.tensor(slopes(heads)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_are_exact_in_half_precision(dtype):
    """At position 4,000 bfloat16 itself counts in sixteens."""
    attention = build("softmax", positions="rotary", d=16, heads=1)[0]
    rows = torch.randn(1, 4096, 16).to(dtype)
    assert attention.rotated(rows).dtype == dtype
    torch.testing.assert_close(attention.rotated(rows).double(), attention.rotated(rows.double()), atol=0.02, rtol=0.01)
