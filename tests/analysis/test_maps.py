"""The maps are those that the mechanisms use: times the values they give what leaves each head."""

import pytest
import torch

from fairseq_linformer.analysis.maps import check_has_map, head_maps, projected_weights, projection_matrix, softmax_maps
from fairseq_linformer.errors import UserError
from tests.helpers.layers import D, N, build, configured, leaving_heads
from tests.reference.naive_attention import project

VARIANTS = [
    *({"name": "softmax", "positions": positions} for positions in ("learned", "rotary", "alibi")),
    *({"name": "linformer", "sharing": sharing} for sharing in ("none", "headwise", "key-value", "layerwise")),
    {"name": "linformer", "projection": "random", "multiplier": 0.25},
    *(
        {"name": "linformer", "projection": projection, "sharing": "key-value"}
        for projection in ("mean-pool", "attention-pool", "split-pool")
    ),
    {"name": "linformer", "projection": "attention-pool", "sharing": "headwise"},
    {"name": "linformer", "linformer_window": 4},
    {"name": "linformer", "linformer_window": 1, "projection": "split-pool", "sharing": "key-value"},
    {"name": "linformer", "linformer_window": 100, "sharing": "none"},
    {
        "name": "linformer",
        "projection": "mean-pool",
        "sharing": "key-value",
        "linformer_window": 2,
        "linformer_block": 2,
        "linformer_sinks": 1,
        "linformer_fetch": 2,
    },
    {"name": "linformer", "linformer_class_token": True},
    {"name": "linformer", "linformer_window": 4, "linformer_class_token": True},
    {"name": "linformer", "adaptive": True},
    {
        "name": "linformer",
        "adaptive": True,
        "projection": "attention-pool",
        "sharing": "key-value",
        "linformer_window": 3,
    },
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


@pytest.mark.parametrize("projection", ["linear", "attention-pool", "split-pool"])
def test_the_matrix_of_a_projection_is_what_it_does(projection):
    sharing = "none" if projection == "linear" else "key-value"
    attention = build("linformer", projection=projection, sharing=sharing)[0].double()
    x = torch.randn(1, N, D, dtype=torch.double)
    with torch.no_grad():
        for head, matrix in enumerate(projection_matrix(attention.key_projection, x)):
            torch.testing.assert_close(matrix @ x[0], project(attention.key_projection, head, x[0]))


def test_near_and_far_weights_are_one_softmax():
    attention = build("linformer", linformer_window=4)[0].double().eval()
    weights = projected_weights(attention, torch.randn(1, N, D, dtype=torch.double))
    near, positions = weights.near
    torch.testing.assert_close(weights.rows.sum(-1) + near.sum(-1), torch.ones(3, N, dtype=torch.double))
    assert positions[0, 5].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]  # its segment, 4 to 7, and two on either side
    assert positions[0, 0].tolist() == [-1, -1, 0, 1, 2, 3, 4, 5]
    assert not near[:, 0, :2].any()


def test_softmax_maps_are_those_of_full_attention_with_the_same_weights():
    attention = build("linformer")[0].double().eval()
    x = torch.randn(1, N, D, dtype=torch.double)
    queries, keys = (attention.split_heads(linear(x))[0] for linear in (attention.q_proj, attention.k_proj))
    for own, query, key in zip(softmax_maps(attention, x), queries, keys, strict=True):
        torch.testing.assert_close(own, (query @ key.T / attention.head_dim**0.5).softmax(-1))


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
