"""What efficient attention alone promises; test_contract.py has the rest."""

import pytest
import torch

from tests.helpers.layers import new


def test_dropout_keeps_the_mean():
    """Dropped weights over positions are made up for by the others, so the mean over draws is the undropped output."""
    torch.manual_seed(0)
    attention = new("efficient", dropout=0.5)
    rows = torch.randn(1, 5, 12).expand(20000, 5, 12)
    mean = attention(rows).mean(0)
    torch.testing.assert_close(mean, attention.eval()(rows[:1])[0], atol=0.01, rtol=0)


def test_equals_performer_pytorch():
    """Its FastAttention without projection is this mechanism; there the weights are divided by their sum, 1, again."""
    peer = pytest.importorskip("performer_pytorch").FastAttention(dim_heads=4, nb_features=4, no_projection=True)
    attention = new("efficient")
    x = 3 * torch.randn(2, 9, 12)
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    expected = peer(*(attention.split_heads(linear(x)) for linear in linears))
    torch.testing.assert_close(attention(x), attention.out_proj(expected.transpose(1, 2).flatten(2)))
