"""What long-short attention alone promises; test_contract.py has the rest."""

import pytest
import torch

from tests.helpers.layers import new
from tests.helpers.models import small
from tests.reference.long_short import reference

N, D, HEADS = 15, 12, 3


def build(window, rank=2, class_token=False, conv_width=0):
    torch.manual_seed(0)
    options = {"long_short_class_token": class_token, "long_short_conv_width": conv_width}
    return new("long-short", d=D, heads=HEADS, long_short_window=window, long_short_rank=rank, **options)


@pytest.mark.parametrize("class_token", [False, True])
def test_a_convolution_of_the_values_starts_at_zero(class_token):
    """So the same weights without one give the same; drawn, it is the reference's, padded or not."""
    attention = build(window=4, class_token=class_token, conv_width=5).double()
    without = build(window=4, class_token=class_token).double()
    without.load_state_dict({name: value for name, value in attention.state_dict().items() if name != "conv.weight"})
    x = torch.randn(1, N, D, dtype=torch.float64)
    torch.testing.assert_close(attention(x), without(x), atol=0, rtol=0)
    torch.nn.init.normal_(attention.conv.weight)
    padding = torch.arange(N).unsqueeze(0) >= 11
    expected = reference(attention, x[0, :11])
    torch.testing.assert_close(attention(x, padding)[0, :11], expected, atol=1e-9, rtol=0)
    assert not torch.allclose(expected, without(x[:, :11])[0], atol=1e-2)


@pytest.mark.parametrize("whole", ["small", "alone"])
def test_a_model_starts_with_a_convolution_at_zero(whole):
    """RoBERTa draws all linear maps anew once the model is built; this is not among them."""
    module = small(attention="long-short", long_short_conv_width=3) if whole == "small" else build(4, conv_width=3)
    weights = [value for name, value in module.named_parameters() if name.endswith("conv.weight")]
    assert weights and not any(weight.any() for weight in weights)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_class_token_with_few_others_is_the_same_padded(length):
    attention = build(window=4, class_token=True, conv_width=3)
    torch.nn.init.normal_(attention.conv.weight)
    x, padding = torch.randn(1, N, D), torch.arange(N).unsqueeze(0) >= length
    torch.testing.assert_close(attention(x, padding)[:, :length], attention(x[:, :length]), atol=1e-6, rtol=0)
