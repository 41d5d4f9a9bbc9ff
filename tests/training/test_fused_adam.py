"""Optimizer ``fused_adam``: the steps of fairseq's Adam, and resumption from its state."""

import copy
import dataclasses
import itertools

import pytest
import torch
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from fairseq_linformer.training.fused_adam import FairseqAdam as FusedFairseqAdam

CONFIG = FairseqAdamConfig(adam_betas="(0.9,0.98)", adam_eps=1e-3, weight_decay=0.1, lr=[0.01])
SHAPES = (7, 5), (3,), ()


def make(kind):
    """Parameters in float64, and an optimizer of them."""
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in SHAPES]
    return parameters, kind(CONFIG, parameters)


def train(parameters, optimizer, first, last):
    """Steps with gradients below and above epsilon, each with its own learning rate."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            noise = torch.randn(2, *parameter.shape, generator=generator, dtype=torch.float64)
            parameter.grad = noise[0] * 10 ** noise[1].sub(2)
        optimizer.set_lr(0.01 / (step + 1))
        optimizer.step()


def test_each_step_is_that_of_fairseqs_adam():
    (expected, adam), (parameters, fused) = make(FairseqAdam), make(FusedFairseqAdam)
    for step in range(12):
        train(expected, adam, step, step + 1)
        train(parameters, fused, step, step + 1)
        torch.testing.assert_close(parameters, expected, rtol=0, atol=1e-12)
    assert fused.state_dict().keys() == {"state", "param_groups"}  # no copies in 32 bits
    assert FusedFairseqAdam.__name__ == FairseqAdam.__name__  # fairseq compares names before it resumes


@pytest.mark.parametrize(("before", "after"), list(itertools.product([FairseqAdam, FusedFairseqAdam], repeat=2))[1:])
def test_it_resumes_from_a_state(before, after):
    expected, adam = make(FairseqAdam)
    train(expected, adam, 0, 12)
    parameters, optimizer = make(before)
    train(parameters, optimizer, 0, 5)
    state = copy.deepcopy(optimizer.state_dict())
    resumed, optimizer = make(after)
    for parameter, value in zip(resumed, parameters, strict=True):
        parameter.data.copy_(value)
    optimizer.load_state_dict(state, {})
    assert optimizer.optimizer.param_groups[0]["fused"] or after is FairseqAdam
    train(resumed, optimizer, 5, 12)
    rounding = 1e-12 if after is FusedFairseqAdam else 1e-8  # fairseq's powers of beta are in the type of the counter
    torch.testing.assert_close(resumed, expected, rtol=0, atol=rounding)


def test_its_options_are_those_of_the_configuration():
    """They replace those of a loaded state, as the run's fingerprint has them; fairseq's overrides apply."""
    _, optimizer = make(FusedFairseqAdam)
    state = copy.deepcopy(optimizer.state_dict())
    config = dataclasses.replace(CONFIG, adam_betas="(0.5,0.6)", adam_eps=1e-4, weight_decay=0.3)
    other = FusedFairseqAdam(config, make(FusedFairseqAdam)[0])
    for overrides, decay in ((None, 0.3), ({"weight_decay": 0.2, "momentum": 0.8}, 0.2)):
        other.load_state_dict(state, overrides)
        (group,) = other.param_groups
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.5, 0.6), 1e-4, decay)
        assert "momentum" not in group and group["fused"]


def of_copies(weights):
    """A parameter and its optimizer as in fairseq's 16 bits: with a gradient."""
    parameter = torch.nn.Parameter(weights.clone())
    parameter.grad = torch.zeros_like(parameter)
    return parameter, FusedFairseqAdam(CONFIG, [parameter])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_in_32_bits_are_loaded_unless_the_model_has_others(kind):
    """An average of checkpoints has the optimizer's state of one of them."""
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * torch.logspace(-9, 1, 1000)
    _, optimizer = of_copies(weights)
    state = copy.deepcopy(optimizer.state_dict())
    rounded = weights.to(kind).float()
    for loaded, expected in ((rounded, weights), (1.1 * rounded, 1.1 * rounded)):
        parameter, optimizer = of_copies(loaded)
        optimizer.load_state_dict(state)
        assert torch.equal(parameter.detach(), expected)


def test_moments_in_16_bits_are_rejected():
    config = dataclasses.replace(CONFIG, fp16_adam_stats=True)
    with pytest.raises(ValueError, match=r"^optimizer\.fp16_adam_stats=True"):
        FusedFairseqAdam(config, [torch.nn.Parameter(torch.zeros(2))])
