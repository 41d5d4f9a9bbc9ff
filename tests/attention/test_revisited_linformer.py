"""What the revisited Linformer alone promises; test_contract.py has the rest, over E and F of every kind."""

import torch

from tests.helpers.layers import new

D, HEADS = 12, 3


def build(name, n, k, d=D, dropout=0.0):
    """One matrix for keys and values."""
    torch.manual_seed(0)
    return new(name, n=n, k=k, d=d, dropout=dropout, heads=HEADS, sharing="key-value", initialisation="normal")


def test_with_identity_projection_it_is_efficient_attention_of_scaled_queries_and_keys():
    """k = n and E = F = I: both softmaxes of arXiv 1812.01243, which has no 1 / sqrt(d_h)."""
    revisited, efficient = build("revisited-linformer", n=9, k=9), new("efficient", d=D, heads=HEADS)
    weights = {name: value for name, value in revisited.state_dict().items() if "projection" not in name}
    scale = (D // HEADS) ** -0.5
    efficient.load_state_dict({n: scale * v if n[0] in "qk" else v for n, v in weights.items()})
    with torch.no_grad():
        revisited.key_projection.weight.copy_(torch.eye(9))
    x = 3 * torch.randn(2, 9, D)
    torch.testing.assert_close(revisited(x), efficient(x), atol=1e-5, rtol=0)


def test_its_parameters_are_linformers():
    ours, theirs = (build(name, n=9, k=4).named_parameters() for name in ("revisited-linformer", "linformer"))
    assert [(name, value.shape) for name, value in ours] == [(name, value.shape) for name, value in theirs]


def test_dropout_zeroes_whole_weights_of_projected_rows():
    """With values all alike the weights' sum comes out: 1 without dropout, and with it a sum of rows kept or not."""
    attention = build("revisited-linformer", n=9, k=1, dropout=0.5)
    torch.nn.init.zeros_(attention.v_proj.weight)
    torch.nn.init.ones_(attention.v_proj.bias)
    torch.nn.init.zeros_(attention.q_proj.weight)  # of a head's features each has the same share
    torch.nn.init.zeros_(attention.q_proj.bias)
    attention.out_proj = torch.nn.Identity()
    heads = 4 * attention(torch.randn(1, 9, D)).unflatten(-1, (HEADS, -1))  # k = 1: each of 4 features weighs 0 or 2
    torch.testing.assert_close(heads, 2 * (heads / 2).round())
    assert len(heads.unique()) > 1
    torch.testing.assert_close(attention.eval()(torch.randn(1, 9, D)), torch.ones(1, 9, D))
