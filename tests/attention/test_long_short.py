"""Long-short attention's convolution and class token; test_contract.py has the rest."""

import pytest
import torch

from tests.helpers.layers import D, N, new
from tests.helpers.models import small
from tests.reference.long_short import reference


def build(**options):
    torch.manual_seed(0)
    return new("long-short", long_short_window=4, long_short_rank=2, **options)


@pytest.mark.parametrize("class_token", [False, True])
def test_a_convolution_of_the_values_starts_at_zero(class_token):
    """Initially it changes nothing; with other weights it equals the reference, padded or not."""
    attention = build(long_short_class_token=class_token, long_short_conv_width=5).double()
    without = build(long_short_class_token=class_token).double()
    without.load_state_dict({name: value for name, value in attention.state_dict().items() if name != "conv.weight"})
    x = torch.randn(1, N, D, dtype=torch.float64)
    torch.testing.assert_close(attention(x), without(x), atol=0, rtol=0)
    torch.nn.init.normal_(attention.conv.weight)
    for length in (1, 2, 11):
        padding, expected = torch.arange(N).unsqueeze(0) >= length, reference(attention, x[0, :length])
        torch.testing.assert_close(attention(x, padding)[0, :length], expected, atol=1e-9, rtol=0)
    assert not torch.allclose(expected, without(x[:, :11])[0], atol=1e-2)


def test_a_models_convolution_starts_at_zero():
    """RoBERTa draws all linear maps again after it has built the model; the convolution is not among them."""
    module = small(attention="long-short", long_short_conv_width=3)
    weights = [value for name, value in module.named_parameters() if name.endswith("conv.weight")]
    assert weights and not any(weight.any() for weight in weights)
