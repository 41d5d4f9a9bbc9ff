"""Performer's random features and their range; test_contract.py and test_linear.py have the rest."""

import pytest
import torch

from fairseq_linformer.attention.performer import orthogonal_features
from tests.helpers.layers import new


def seeded():
    torch.manual_seed(0)
    return new("performer", performer_features=32, performer_redraw_interval=10)


def test_features_are_orthogonal_in_blocks_and_as_long_as_gaussian_ones():
    drawn = orthogonal_features(16 * 2000 + 3, 16, torch.Generator().manual_seed(0))
    for start in (0, 16, 16 * 2000):
        block = drawn[start : start + 16]
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-4, rtol=0)
    squares = drawn.square().sum(1)
    assert abs(squares.mean() - 16) < 0.1 and abs(squares.var() - 32) < 1, "chi squared with 16 degrees of freedom"
    assert drawn.mean(0).abs().max() < 0.02 and (drawn.var(0) - 1).abs().max() < 0.03, "N(0, I)"


def test_redraws_survive_half_precision_and_a_checkpoint_in_float32():
    """fairseq trains in fp16 with model.half(), and keeps copies in float32."""
    exact, half = seeded(), seeded().half()
    half.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    for attention in (exact, half):
        attention.set_num_updates(10)
    assert torch.equal(half.projection, exact.projection.half())


@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_stabiliser_keeps_extreme_activations_finite(scale):
    x = (scale * torch.randn(1, 9, 12)).requires_grad_()
    out = seeded()(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
