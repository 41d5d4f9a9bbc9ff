"""What Performer alone promises; test_contract.py and test_linear.py have the rest."""

import copy
from itertools import pairwise

import pytest
import torch
from fairseq.models import BaseFairseqModel

from fairseq_linformer.attention.performer import orthogonal_features
from tests.helpers.layers import new


def built(features=32, redraw_interval=10, dim=12, heads=3, seed=0):
    torch.manual_seed(seed)
    options = {"performer_features": features, "performer_redraw_interval": redraw_interval}
    return new("performer", d=dim, heads=heads, **options)


@pytest.mark.slow
def test_converges_to_softmax_attention():
    """The error falls as one over the root of the number of features: to about half with four times as many."""
    softmax = new("softmax", d=64, heads=4)
    torch.manual_seed(0)
    for linear in (softmax.q_proj, softmax.k_proj, softmax.v_proj):
        torch.nn.init.normal_(linear.weight, std=0.05)
    x = torch.randn(2, 60, 64)
    exact = softmax(x)
    errors = []
    for features in (16, 64, 256, 1024, 4096):
        draws = []
        for seed in range(8):
            attention = built(features, dim=64, heads=4, seed=seed)
            attention.load_state_dict(softmax.state_dict(), strict=False)
            draws.append((attention(x) - exact).norm() / exact.norm())
        errors.append(torch.stack(draws).mean())
    assert all(more < 0.65 * fewer for fewer, more in pairwise(errors))
    assert errors[-1] < 0.02


def test_features_are_orthogonal_in_blocks_and_as_long_as_gaussian_ones():
    drawn = orthogonal_features(16 * 5000 + 3, 16, torch.Generator().manual_seed(0))
    for start in (0, 16, 16 * 5000):
        block = drawn[start : start + 16]
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-4, rtol=0)
    squares = drawn.square().sum(1)
    assert abs(squares.mean() - 16) < 0.1 and abs(squares.var() - 32) < 1, "chi squared with 16 degrees of freedom"
    assert drawn.mean(0).abs().max() < 0.02 and (drawn.var(0) - 1).abs().max() < 0.03, "N(0, I)"


def test_redraws_when_due():
    attention = built(redraw_interval=10)
    draws = []
    for update in range(31):
        attention.set_num_updates(update)
        if not draws or not torch.equal(draws[-1], attention.projection):
            draws.append(attention.projection.clone())
            assert update % 10 == 0
    assert len(draws) == 4
    never = built(redraw_interval=0)
    before = never.projection.clone()
    never.set_num_updates(1000)
    assert torch.equal(never.projection, before)


def test_fine_tuning_starts_with_the_features_of_the_checkpoint():
    """Its updates count from 0 again."""
    pretrained, tuned = built(), built(seed=7)
    pretrained.set_num_updates(30)
    tuned.load_state_dict(pretrained.state_dict())
    tuned.set_num_updates(0)
    assert torch.equal(tuned.projection, pretrained.projection)


def test_layers_and_seeds_differ():
    torch.manual_seed(0)
    first, second = (new("performer", performer_features=8, performer_redraw_interval=10) for _ in range(2))
    assert not torch.equal(first.projection, second.projection)
    assert not torch.equal(first.projection, built(8, seed=1).projection)
    assert torch.equal(first.projection, built(8, seed=0).projection)


def test_redraws_survive_half_precision_and_a_checkpoint_in_float32():
    """fairseq trains in fp16 with model.half(), and keeps copies in float32."""
    exact, half = built(), built().half()
    half.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    for attention in (exact, half):
        attention.set_num_updates(10)
    assert torch.equal(half.projection, exact.projection.half())


def test_fairseq_announces_updates():
    """Its trainer calls the model's set_num_updates before each training step, which hands the number on."""

    class Model(BaseFairseqModel):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([built()])

    model = Model()
    before = copy.deepcopy(model.layers[0].projection)
    model.set_num_updates(9)
    assert torch.equal(model.layers[0].projection, before)
    model.set_num_updates(10)
    assert not torch.equal(model.layers[0].projection, before)


@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_stabiliser_keeps_extreme_activations_finite(scale):
    attention = built()
    x = (scale * torch.randn(1, 9, 12)).requires_grad_()
    out = attention(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


def test_equals_performer_pytorch():
    peer = pytest.importorskip("performer_pytorch").FastAttention(dim_heads=4, nb_features=32)
    attention = built()
    attention.projection.copy_(peer.projection_matrix)
    x = 2 * torch.randn(2, 9, 12)
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    expected = peer(*(attention.split_heads(linear(x)) for linear in linears))
    torch.testing.assert_close(attention(x), attention.out_proj(expected.transpose(1, 2).flatten(2)))
