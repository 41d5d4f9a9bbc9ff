"""What linear attention, and what Performer, RFA and LION share with it, promise; test_contract.py has the rest."""

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.layers import new


def built(name, **options):
    torch.manual_seed(0)
    return new(name, **options)


KERNELS = [
    pytest.param(lambda: built("linear"), id="linear"),
    pytest.param(lambda: built("linear", linear_feature_map="hedgehog"), id="hedgehog"),
    pytest.param(lambda: built("lion"), id="lion"),
    pytest.param(lambda: built("performer", performer_features=32, performer_redraw_interval=0), id="performer"),
    pytest.param(lambda: built("rfa", rfa_features=256, rfa_redraw_interval=0), id="rfa"),
]


@pytest.mark.parametrize("make", KERNELS)
def test_sums_do_not_overflow_under_autocast(make):
    """The sum of 4,096 values near 100 is beyond half precision; their mean is not."""
    attention = make()
    torch.nn.init.constant_(attention.v_proj.bias, 100.0)
    x = torch.randn(1, 4096, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        half = attention(x).float()
    torch.testing.assert_close(half, attention(x), atol=0.5, rtol=0)


@pytest.mark.parametrize("make", KERNELS)
def test_a_row_of_padding_alone_is_finite(make):
    x = torch.randn(2, 5, 12, requires_grad=True)
    out = make()(x, torch.tensor([[False] * 5, [True] * 5]))
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize(("name", "buffer", "interval"), [("performer", "projection", 10), ("rfa", "draws", 1)])
def test_redraws_do_not_depend_on_what_happened_between(name, buffer, interval):
    """A resumed run, another worker and a batch in several passes have the same features, and none disturbs dropout."""
    options = {f"{name}_features": 32, f"{name}_redraw_interval": interval}
    straight, other = built(name, **options), built(name, **options)
    torch.manual_seed(7)
    resumed = new(name, **options)
    straight.set_num_updates(interval)
    resumed.load_state_dict(straight.state_dict())
    drawn = getattr(straight, buffer).clone()
    assert torch.equal(getattr(resumed, buffer), drawn)
    torch.rand(5)
    state = torch.get_rng_state()
    for attention in (straight, resumed, other, other):
        attention.set_num_updates(2 * interval)
        assert torch.equal(getattr(attention, buffer), getattr(straight, buffer))
    assert torch.equal(torch.get_rng_state(), state) and not torch.equal(straight.get_buffer(buffer), drawn)


def test_hedgehogs_large_logits_leave_finite_output_and_gradients():
    """exp(300) is beyond single precision, and the largest feature of a query may be none of the largest keys'."""
    attention = built("linear", linear_feature_map="hedgehog")
    with torch.no_grad():
        attention.feature_map.weight.mul_(300.0)
    x = torch.randn(2, 5, 12, requires_grad=True)
    out = attention(x, torch.tensor([[False] * 5, [False, *[True] * 4]]))
    out.sum().backward()
    assert x.grad.isfinite().all()
    exact = attention.double()(x.double())
    torch.testing.assert_close(out[0].double(), exact[0], atol=1e-3, rtol=0)


def test_keys_that_all_features_ignore_leave_finite_output_and_gradients():
    """elu(-100) + 1 is 0 in float32, and so is every weight."""
    attention = built("linear")
    torch.nn.init.constant_(attention.k_proj.bias, -100.0)
    x = torch.randn(1, 5, 12, requires_grad=True)
    attention(x).sum().backward()
    assert attention(x).isfinite().all() and x.grad.isfinite().all()


def test_equals_performer_pytorch():
    """Its linear_attention takes the features; the map is the paper's."""
    peer = pytest.importorskip("performer_pytorch.performer_pytorch")
    attention = built("linear")
    x = 3 * torch.randn(2, 9, 12)
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    queries, keys, values = (attention.split_heads(linear(x)) for linear in linears)
    expected = peer.linear_attention(F.elu(queries) + 1, F.elu(keys) + 1, values)
    torch.testing.assert_close(attention(x), attention.out_proj(expected.transpose(1, 2).flatten(2)))
