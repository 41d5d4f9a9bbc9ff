"""The revisited Linformer's relation to efficient attention, and its dropout; test_contract.py has the rest."""

import torch

from tests.helpers.layers import D, new

HEADS = 3


def test_with_identity_projection_it_is_efficient_attention_of_scaled_queries_and_keys():
    """k = n and E = F = I: both softmaxes of arXiv 1812.01243, which has no 1 / sqrt(d_h)."""
    revisited, efficient = new("revisited-linformer", n=9, k=9, sharing="key-value"), new("efficient")
    weights = {name: value for name, value in revisited.state_dict().items() if "projection" not in name}
    scale = (D // HEADS) ** -0.5
    efficient.load_state_dict({n: scale * v if n[0] in "qk" else v for n, v in weights.items()})
    with torch.no_grad():
        revisited.key_projection.weight.copy_(torch.eye(9))
    x = 3 * torch.randn(2, 9, D)
    torch.testing.assert_close(revisited(x), efficient(x), atol=1e-5, rtol=0)


def test_dropout_zeroes_weights_of_projected_keys():
    """If values are 1 the output is the sum of the weights: 1 without dropout, with it 0 or 2 per feature (k = 1)."""
    torch.manual_seed(0)
    attention = new("revisited-linformer", n=9, k=1, dropout=0.5, sharing="key-value")
    for name in ("v_proj", "q_proj"):  # of a head's features each has the same share
        torch.nn.init.zeros_(getattr(attention, name).weight)
        torch.nn.init.constant_(getattr(attention, name).bias, float(name == "v_proj"))
    attention.out_proj = torch.nn.Identity()
    heads = 4 * attention(torch.randn(1, 9, D)).unflatten(-1, (HEADS, -1))
    torch.testing.assert_close(heads, 2 * (heads / 2).round())
    assert len(heads.unique()) > 1
    torch.testing.assert_close(attention.eval()(torch.randn(1, 9, D)), torch.ones(1, 9, D))
