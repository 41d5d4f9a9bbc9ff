"""What random feature attention alone promises; test_contract.py and test_linear.py have the rest."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.layers import new


def built(features=32, temperature=1.0, dim=12, heads=3, seed=0, redraw_interval=1):
    torch.manual_seed(seed)
    options = {"rfa_features": features, "rfa_temperature": temperature, "rfa_redraw_interval": redraw_interval}
    return new("rfa", d=dim, heads=heads, **options)


def softmax_of_unit_vectors(attention, x):
    """softmax(Q' K'^T / t^2) V, where the rows of Q' and K' have length 1."""
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    queries, keys, values = (attention.split_heads(linear(x)) for linear in linears)
    units = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    heads = F.scaled_dot_product_attention(*units, values, scale=attention.temperature**-2)
    return attention.out_proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_converges_to_softmax_attention_of_unit_vectors(temperature):
    """The error falls as one over the root of the number of features: to about half with four times as many."""
    x = torch.randn(2, 60, 64, generator=torch.Generator().manual_seed(0))
    errors = []
    for features in (64, 256, 1024):
        draws = []
        for seed in range(8):
            attention = built(features, temperature, dim=64, heads=4, seed=seed)
            exact = softmax_of_unit_vectors(attention, x)
            draws.append((attention(x) - exact).norm() / exact.norm())
        errors.append(torch.stack(draws).mean())
    assert all(more < 0.65 * fewer for fewer, more in pairwise(errors))
    assert errors[-1] < 0.1


def test_denominators_near_zero_or_below_are_raised():
    """One random vector w with w.(q - k) = pi: the only weight is cos(pi) = -1, and the denominator 10 / 1 for it."""
    attention = built(features=1, dim=1, heads=1)
    with torch.no_grad():
        attention.draws.fill_(torch.pi / 2)
        for linear, value in ((attention.q_proj, 1.0), (attention.k_proj, -1.0), (attention.v_proj, 5.0)):
            linear.weight.zero_()
            linear.bias.fill_(value)
        attention.out_proj.weight.fill_(1.0)
        attention.out_proj.bias.zero_()
    torch.testing.assert_close(attention(torch.zeros(1, 1, 1)), torch.full((1, 1, 1), -5.0 / 10))


def test_a_negative_denominator_does_not_make_the_output_explode():
    """A query opposite to all keys, with a low temperature: where the estimate of its denominator is below zero."""
    for seed in range(20):
        attention = built(features=64, temperature=0.7, dim=16, heads=1, seed=seed)
        with torch.no_grad():
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
                linear.weight.copy_(torch.eye(16))
                linear.bias.zero_()
        x = torch.randn(512, 16, generator=torch.Generator().manual_seed(seed)) + 3
        x[0] = -x[1:].mean(0)
        assert attention((x / x.norm(dim=1, keepdim=True)).unsqueeze(0)).norm(dim=-1).max() < 30


def test_draws_are_of_the_seed_and_no_pass_changes_them():
    """A pass may be computed again (``checkpoint_activations``): it must meet the same features."""
    attention, same, other = built(), built(), built(seed=1)
    before = attention.draws.clone()
    attention.train()(torch.randn(2, 9, 12)).sum().backward()
    assert torch.equal(attention.draws, before) and torch.equal(same.draws, before)
    assert not torch.equal(other.draws, before)
    assert "draws" in attention.state_dict() and "draws" not in dict(attention.named_parameters())


@pytest.mark.parametrize(("interval", "changes"), [(1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (0, [])])
def test_each_update_has_features_of_its_own(interval, changes):
    attention = built(redraw_interval=interval)
    draws = [attention.draws.clone()]
    for update in range(7):
        attention.set_num_updates(update)
        draws.append(attention.draws.clone())
    assert [update for update in range(7) if not torch.equal(draws[update], draws[update + 1])] == changes
    drawn = torch.stack([draws[0], *(draws[update + 1] for update in changes)])
    assert len({float(draw.sum()) for draw in drawn}) == len(changes) + 1
    assert drawn.mean().abs() < 0.2 and abs(drawn.std() - 1) < 0.2, "N(0, I)"
