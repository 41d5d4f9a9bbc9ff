"""The maps are those that the mechanisms use: times the values they give what leaves each head."""

import pytest
import torch

from fairseq_linformer.analysis.maps import check_has_map, head_maps, projected_weights
from fairseq_linformer.errors import UserError
from tests.helpers.layers import D, N, build, configured, leaving_heads

LINFORMER = {"name": "linformer"}
SHARED = {**LINFORMER, "sharing": "key-value"}
FETCHING = {"linformer_window": 2, "linformer_block": 2, "linformer_sinks": 1, "linformer_fetch": 2}
VARIANTS = [
    *({"name": "softmax", "positions": positions} for positions in ("learned", "rotary", "alibi")),
    *({**LINFORMER, "sharing": sharing} for sharing in ("none", "headwise", "key-value", "layerwise")),
    {**LINFORMER, "projection": "random", "multiplier": 0.25},
    *({**SHARED, "projection": projection} for projection in ("mean-pool", "attention-pool", "split-pool")),
    {**LINFORMER, "projection": "attention-pool", "sharing": "headwise"},
    {**LINFORMER, "linformer_window": 4},
    {**SHARED, "linformer_window": 1, "projection": "split-pool"},
    {**LINFORMER, "linformer_window": 100, "sharing": "none"},
    {**SHARED, "projection": "mean-pool", **FETCHING},
    {**LINFORMER, "linformer_class_token": True},
    {**LINFORMER, "linformer_window": 4, "linformer_class_token": True},
    {**LINFORMER, "adaptive": True},
    {**SHARED, "adaptive": True, "projection": "attention-pool", "linformer_window": 3},
    {"name": "revisited-linformer", "sharing": "none"},
    {"name": "revisited-linformer", "projection": "mean-pool", "sharing": "key-value"},
]


@pytest.fixture(params=VARIANTS, ids=lambda options: "-".join(map(str, options.values())))
def attention(request):
    return build(**request.param)[0].double().eval()


@pytest.mark.parametrize("length", [N, 7, 1])
def test_a_map_times_the_values_is_what_leaves_a_head(attention, length):
    torch.manual_seed(1)
    x = torch.randn(1, length, D, dtype=torch.double)
    with torch.no_grad():
        heads = leaving_heads(attention, x)
        values = attention.split_heads(attention.v_proj(x) - attention.v_proj.bias)[0]
        bias = attention.v_proj.bias.view(attention.num_heads, 1, attention.head_dim)
        maps = list(head_maps(attention, x))
    assert len(maps) == attention.num_heads
    for own, value, constant, expected in zip(maps, values, bias, heads[0], strict=True):
        torch.testing.assert_close(own @ value + constant, expected, rtol=1e-12, atol=1e-12)


def test_near_and_far_weights_are_one_softmax():
    """Which positions are near, the maps above have."""
    attention = build("linformer", linformer_window=4)[0].double().eval()
    weights = projected_weights(attention, torch.randn(1, N, D, dtype=torch.double))
    near, _ = weights.near
    torch.testing.assert_close(weights.rows.sum(-1) + near.sum(-1), torch.ones(3, N, dtype=torch.double))


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("performer", {}, "attention=performer is not allowed: it must be one of softmax, linformer, revisited-linf"),
        ("linformer", {"projection": "max-pool"}, "projection=max-pool is not allowed: it must be another than conv"),
        ("linformer", {"projection": "conv"}, "projection=conv is not allowed"),
    ],
)
def test_what_has_no_map_is_refused_by_name(name, options, message):
    with pytest.raises(UserError, match=message):
        check_has_map(name, configured(**options))
    check_has_map("softmax", configured(projection="max-pool"))  # an option that it does not read
