"""The denominators of random feature attention; test_contract.py and test_linear.py have the rest."""

import torch

from tests.helpers.layers import new


def test_denominators_near_zero_or_below_are_raised():
    """One random vector w with w.(q - k) = pi: the only weight is cos(pi) = -1, and the denominator 10 / 1 for it."""
    attention = new("rfa", d=1, heads=1, rfa_features=1)
    with torch.no_grad():
        attention.draws.fill_(torch.pi / 2)
        for linear, value in ((attention.q_proj, 1.0), (attention.k_proj, -1.0), (attention.v_proj, 5.0)):
            linear.weight.zero_()
            linear.bias.fill_(value)
        attention.out_proj.weight.fill_(1.0)
        attention.out_proj.bias.zero_()
    torch.testing.assert_close(attention(torch.zeros(1, 1, 1)), torch.full((1, 1, 1), -5.0 / 10))
