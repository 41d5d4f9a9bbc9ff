"""Dropout on the CPU: its rate, scale and seed."""

import pytest
import torch

from fairseq_linformer.attention.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.9])
def test_rate_and_scale(p):
    torch.manual_seed(0)
    x = torch.full((1000, 1001), 2.0)
    dropped = dropout(x, p, training=True)
    zeros = (dropped == 0).float()
    assert zeros.mean() == pytest.approx(p, abs=4 * (p * (1 - p) / x.numel()) ** 0.5 + 2**-17)
    assert dropped[dropped != 0].unique().numel() == 1
    assert dropped.max() == pytest.approx(2 / (1 - p), rel=1e-3 if p < 0.9 else 1e-2)
    both = (zeros[:, :-1] * zeros[:, 1:]).mean()
    assert both == pytest.approx(p * p, abs=2e-3), "neighbours, whose bits come from one draw, are independent"


def test_the_seed_gives_the_mask_and_evaluation_has_none():
    layer, x = Dropout(0.3), torch.ones(7, 3)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first) and not torch.equal(layer(x), first)
    assert torch.equal(layer.eval()(x), x) and torch.equal(Dropout(0.0)(x), x)
