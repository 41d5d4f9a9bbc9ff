"""Numerical range of kernel attention, and the draws of random features; test_contract.py has the rest."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.layers import new


def seeded(name, **options):
    torch.manual_seed(0)
    return new(name, **options)


KERNELS = [("linear", {}), ("linear", {"linear_feature_map": "hedgehog"}), ("lion", {})]
KERNELS += [("performer", {"performer_features": 32}), ("rfa", {"rfa_features": 256})]


@pytest.mark.parametrize(("name", "options"), KERNELS)
def test_sums_do_not_overflow_under_autocast(name, options):
    """The sum of 1,024 values near 100 is beyond half precision; their mean is not."""
    attention = seeded(name, **options)
    torch.nn.init.constant_(attention.v_proj.bias, 100.0)
    x = torch.randn(1, 1024, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        half = attention(x).float()
    torch.testing.assert_close(half, attention(x), atol=0.5, rtol=0)


@pytest.mark.parametrize(
    ("name", "options", "error"), [("performer", {}, 0.04), ("rfa", {}, 0.1), ("rfa", {"rfa_temperature": 0.7}, 0.1)]
)
def test_random_features_converge_to_softmax_attention(name, options, error):
    """The error falls as one over the root of the number of features: to about half with four times as many.

    RFA's queries and keys have length 1, and scores are divided by the square of the temperature.
    """
    x = 0.7 * torch.randn(2, 60, 64, generator=torch.Generator().manual_seed(0))
    errors = []
    for number in (64, 256, 1024):
        draws = []
        for seed in range(8):
            torch.manual_seed(seed)
            attention = new(name, d=64, heads=4, **{f"{name}_features": number, **options})
            queries, keys, values = (attention.split_heads(part) for part in attention.project(x))
            if name == "rfa":
                queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
            scale = attention.temperature**-2 if name == "rfa" else None
            exact = attention.join_heads(F.scaled_dot_product_attention(queries, keys, values, scale=scale))
            draws.append((attention(x) - exact).norm() / exact.norm())
        errors.append(torch.stack(draws).mean())
    assert all(more < 0.65 * fewer for fewer, more in pairwise(errors))
    assert errors[-1] < error


BUFFERS = [("performer", "projection"), ("rfa", "draws")]


@pytest.mark.parametrize(("name", "buffer"), BUFFERS)
@pytest.mark.parametrize(("interval", "changes"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (0, [])])
def test_redraws_when_due(name, buffer, interval, changes):
    attention = seeded(name, **{f"{name}_redraw_interval": interval})
    draws = [getattr(attention, buffer).clone()]
    for update in range(7):
        attention.set_num_updates(update)
        draws.append(getattr(attention, buffer).clone())
    assert [update for update in range(7) if not torch.equal(draws[update], draws[update + 1])] == changes
    assert len({float(draw.sum()) for draw in draws}) == len(changes) + 1


@pytest.mark.parametrize(("name", "buffer"), BUFFERS)
def test_redraws_depend_on_the_seed_and_the_update_alone(name, buffer):
    """A resumed run, another worker and a batch in several passes have the same features; dropout's seed stays."""
    options = {f"{name}_features": 32, f"{name}_redraw_interval": 10}
    attention, worker = seeded(name, **options), seeded(name, **options)
    torch.manual_seed(7)
    resumed = new(name, **options)
    attention.set_num_updates(10)
    resumed.load_state_dict(attention.state_dict())
    drawn, state = getattr(attention, buffer).clone(), torch.get_rng_state()
    assert torch.equal(getattr(resumed, buffer), drawn)
    for layer in (attention, resumed, worker, worker):
        layer.set_num_updates(20)
        assert torch.equal(getattr(layer, buffer), getattr(attention, buffer))
    assert torch.equal(torch.get_rng_state(), state) and not torch.equal(getattr(attention, buffer), drawn)


def test_hedgehogs_large_logits_leave_finite_output_and_gradients():
    """exp(300) is beyond single precision."""
    attention = seeded("linear", linear_feature_map="hedgehog")
    with torch.no_grad():
        attention.feature_map.weight.mul_(300.0)
    x = torch.randn(2, 5, 12, requires_grad=True)
    out = attention(x, torch.tensor([[False] * 5, [False, *[True] * 4]]))
    out.sum().backward()
    assert x.grad.isfinite().all()
    exact = attention.double()(x.double())
    torch.testing.assert_close(out[0].double(), exact[0], atol=1e-3, rtol=0)


def test_keys_without_weight_leave_finite_output_and_gradients():
    """elu(-100) + 1 is 0 in float32."""
    attention = seeded("linear")
    torch.nn.init.constant_(attention.k_proj.bias, -100.0)
    x = torch.randn(1, 5, 12, requires_grad=True)
    attention(x).sum().backward()
    assert attention(x).isfinite().all() and x.grad.isfinite().all()
