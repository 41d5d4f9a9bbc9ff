"""What LION alone promises: its variants, its start, and long texts; test_contract.py has the rest."""

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
    """A decay that lets almost nothing pass must not cost what follows its precision: 35 chunks against one."""
    torch.manual_seed(0)
    layer = new("lion", n=1111, lion_chunk=32)
    whole = new("lion", n=1111, lion_chunk=1111).double()
    with torch.no_grad():
        layer.decay_proj.weight.mul_(steepness)
    whole.load_state_dict(layer.state_dict())
    x = torch.randn(1, 1111, D)
    assert layer._log_decays(x).min() < -100 or not steepness
    found, expected = (output_and_gradient(*pair) for pair in ((layer, x), (whole, x.double())))
    for part, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(part.double(), exact, atol=1e-4 * float(exact.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["learned", "selective"])
def test_heads_begin_with_reaches_from_2_to_128(kind):
    """In a model, too, where RoBERTa draws all linear maps anew once they are built."""
    for layer in small(attention="lion", lion_decay=kind, attention_dropout=0.0).encoder.sentence_encoder.layers:
        decays = layer.self_attn._log_decays(torch.zeros(1, 1, 24)).exp().flatten()
        torch.testing.assert_close(1 / (1 - decays), torch.tensor([2.0, 16.0, 128.0]), rtol=1e-4, atol=0)
