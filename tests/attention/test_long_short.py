"""What long-short attention alone promises; test_contract.py has the rest."""

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf

from fairseq_linformer.attention.long_short import LongShortAttention
from fairseq_linformer.resolve import resolve_config

N, D, HEADS = 15, 12, 3


def build(window, rank=2):
    torch.manual_seed(0)
    return LongShortAttention(D, HEADS, 0.0, window, rank)


def hide_summaries(attention):
    """Gives the summaries' keys a feature that every query scores far below any other key: their weights are 0."""
    first = slice(0, None, D // HEADS)  # of each head
    with torch.no_grad():
        attention.q_proj.weight[first] = 0.0
        attention.q_proj.bias[first] = 1.0
        attention.global_norm.weight.zero_()
        attention.global_norm.bias[first] = -1e4
    return attention


def reached(attention, n=N):
    """(n, n), True where the output at the row's position depends on the input at the column's."""
    x = torch.randn(1, n, D)
    gradient = torch.autograd.functional.jacobian(lambda x: attention(x)[0].sum(-1), x)[:, 0]  # (n, n, d)
    return gradient.abs().amax(-1) > 0


@pytest.mark.parametrize("window", [N, 4 * N])
def test_one_segment_without_summaries_is_softmax_attention_over_normalised_keys_and_values(window):
    attention = hide_summaries(build(window))
    x = torch.randn(2, N, D)
    keys, values = (F.layer_norm(linear(x), (D,)) for linear in (attention.k_proj, attention.v_proj))
    heads = F.scaled_dot_product_attention(*map(attention.split_heads, (attention.q_proj(x), keys, values)))
    expected = attention.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [1, 4, 5])
def test_without_summaries_a_segment_sees_itself_and_half_a_window_on_either_side(window):
    position = torch.arange(N)
    start = (position - position % window).unsqueeze(1)
    beside = max(1, window // 2)
    expected = (position >= start - beside) & (position < start + window + beside)
    assert torch.equal(reached(hide_summaries(build(window))), expected)


def test_summaries_carry_every_position_to_every_other():
    assert reached(build(window=2, rank=1)).all()


def test_equal_scores_make_a_summary_the_mean_of_the_real_positions():
    attention = build(window=4, rank=2)
    torch.nn.init.zeros_(attention.dynamic_projection.weight)
    x, padding = torch.randn(1, N, D), torch.arange(N).unsqueeze(0) >= 9
    means = attention.projection(x, ~padding) @ attention.split_heads(x)
    torch.testing.assert_close(means, attention.split_heads(x[:, :9].mean(1, keepdim=True)).expand(-1, -1, 2, -1))


@pytest.mark.parametrize("name", ["window", "rank"])
def test_options_that_cannot_work_are_refused(name):
    with pytest.raises(ValueError, match=f"long_short_{name}=0 is not allowed: it must be at least 1"):
        resolve_config(OmegaConf.create({"attention": "long-short", f"long_short_{name}": 0}), 64)
