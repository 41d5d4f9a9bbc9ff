"""LION on long texts, and its initial decays; test_contract.py has the rest."""

import pytest
import torch

from tests.helpers.layers import D, new
from tests.helpers.models import small


def output_and_gradient(layer, x):
    x = x.clone().requires_grad_()
    out = layer(x)
    out.square().sum().backward()
    return out, x.grad


@pytest.mark.parametrize("steepness", [0.0, 300.0])
def test_long_texts_are_exact_in_single_precision(steepness):
    """18 chunks equal one, also after decays near zero."""
    torch.manual_seed(0)
    layer = new("lion", n=555, lion_chunk=32)
    whole = new("lion", n=555, lion_chunk=555).double()
    with torch.no_grad():
        layer.decay_proj.weight.mul_(steepness)
    whole.load_state_dict(layer.state_dict())
    x = torch.randn(1, 555, D)
    assert layer._log_decays(x).min() < -100 or not steepness
    results = (output_and_gradient(*pair) for pair in ((layer, x), (whole, x.double())))
    for result, exact in zip(*results, strict=True):
        torch.testing.assert_close(result.double(), exact, atol=1e-4 * float(exact.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["learned", "selective"])
def test_initial_ranges_are_2_to_128_positions(kind):
    """In a model, whose linear maps RoBERTa draws again after it has built them."""
    for layer in small(attention="lion", lion_decay=kind, attention_dropout=0.0).encoder.sentence_encoder.layers:
        decays = layer.self_attn._log_decays(torch.zeros(1, 1, 24)).exp().flatten()
        torch.testing.assert_close(1 / (1 - decays), torch.tensor([2.0, 16.0, 128.0]), rtol=1e-4, atol=0)
