"""What random feature attention alone promises; test_contract.py and test_linear.py have the rest."""

import torch

from tests.helpers.layers import new


def built(features=32, temperature=1.0, dim=12, heads=3, seed=0, redraw_interval=1):
    torch.manual_seed(seed)
    options = {"rfa_features": features, "rfa_temperature": temperature, "rfa_redraw_interval": redraw_interval}
    return new("rfa", d=dim, heads=heads, **options)


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
