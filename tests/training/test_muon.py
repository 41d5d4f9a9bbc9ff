"""The optimizer ``muon``: which parameters take its step, the step itself, and a run that goes on."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from fairseq_linformer.model.roberta import EMBEDDINGS, IN_LAYERS
from fairseq_linformer.training.fused_adam import FairseqAdam
from fairseq_linformer.training.muon import FairseqMuon, MuonConfig, orthogonalised, stacked

CONFIG = MuonConfig(adam_betas="(0.9,0.98)", adam_eps=1e-6, weight_decay=0.1, lr=[0.01])
NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SHAPES = (12, 5), (5, 12), (9, 9)


def make(kind=FairseqMuon, **changed):
    """Three matrices, a vector and embeddings in float64, and an optimizer of them."""
    generator = torch.Generator().manual_seed(1)
    shapes = (*SHAPES, (7,), (11, 5))
    parameters = [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in shapes]
    for matrix in parameters[:3]:
        matrix.param_group = IN_LAYERS
    parameters[-1].param_group = EMBEDDINGS
    return parameters, kind(replace(CONFIG, **changed), parameters)


def train(parameters, optimizer, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        optimizer.set_lr(0.1 / (step + 1))
        optimizer.step()


@pytest.mark.parametrize("shape", SHAPES)
def test_all_directions_of_a_matrix_count_alike(shape):
    """Its singular vectors stay, and singular values that are a hundredfold apart end near 1."""
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(0, -2, min(shape), dtype=torch.float64)
    turned = u.T @ orthogonalised(u * values @ v) @ v.T
    assert turned.diagonal().min() > 0.68 and turned.diagonal().max() < 1.21
    torch.testing.assert_close(turned, turned.diagonal().diag(), rtol=0, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_A_GPU)])
def test_matrices_of_one_shape_are_taken_together(device):
    """As on a GPU, where each keeps its own norm and its place among the others."""
    shapes = (12, 5), (9, 9), (12, 5), (5, 12), (9, 9), (12, 5)
    matrices = [torch.randn(shape, dtype=torch.float64, device=device) * 10**at for at, shape in enumerate(shapes)]
    expected = [orthogonalised(matrix) for matrix in matrices]
    torch.testing.assert_close(stacked(matrices), expected, rtol=0, atol=1e-12)


def test_a_step_has_the_size_of_adams():
    """0.2 of the learning rate in quadratic mean, with the momentum looked ahead, after the weight decay."""
    parameters, optimizer = make()
    before = [matrix.detach().clone() for matrix in parameters[:3]]
    momenta = [torch.zeros_like(matrix) for matrix in before]
    for step in range(4):
        train(parameters, optimizer, step, step + 1)
        lr = 0.1 / (step + 1)
        for old, momentum, new in zip(before, momenta, parameters, strict=False):
            momentum.mul_(0.95).add_(new.grad)
            moved = orthogonalised(new.grad + 0.95 * momentum) * 0.2 * math.sqrt(max(old.shape))
            torch.testing.assert_close(new.detach(), old * (1 - 0.1 * lr) - lr * moved, rtol=0, atol=1e-12)
            assert 0.13 < moved.square().mean().sqrt() < 0.25
            old.copy_(new.detach())


def test_the_others_take_adams_steps():
    (found, muon), (expected, adam) = make(), make(FairseqAdam)
    train(found, muon, 0, 5)
    train(expected, adam, 0, 5)
    torch.testing.assert_close(found[3:], expected[3:])
    assert not torch.allclose(found[0], expected[0])


def test_a_matrix_without_a_gradient_stays():
    """A layer that LayerDrop skips has zeros in 16 bits; orthogonalised, its momentum would keep its full size."""
    parameters, optimizer = make(weight_decay=0.0)
    train(parameters, optimizer, 0, 1)
    before = [matrix.detach().clone() for matrix in parameters[:3]]
    parameters[0].grad.zero_()
    optimizer.step()
    assert [torch.equal(new, old) for new, old in zip(parameters, before, strict=False)] == [True, False, False]


def test_embeddings_have_a_learning_rate_of_their_own():
    """Ten times the others', and their weight decay. What they are given for a step is theirs no longer than that."""
    found, muon = make(embedding_lr_multiplier=10.0)
    expected, adam = make(FairseqAdam)
    for step in range(5):
        train(found, muon, step, step + 1)
        for group in adam.param_groups:
            group.update(lr=1.0 / (step + 1), weight_decay=0.01)
        for mine, same in zip(expected, found, strict=True):
            mine.grad = same.grad.clone()
        adam.step()
    torch.testing.assert_close(found[4], expected[4])
    plain, one = make()
    train(plain, one, 0, 5)
    torch.testing.assert_close(found[:4], plain[:4], rtol=0, atol=0)
    assert {(group["lr"], group["weight_decay"]) for group in muon.param_groups} == {(0.1 / 5, 0.1)}


@pytest.mark.parametrize("multiplier", [1.0, 10.0])
def test_it_goes_on_from_a_state(multiplier):
    expected, whole = make(embedding_lr_multiplier=multiplier)
    train(expected, whole, 0, 8)
    half, first = make(embedding_lr_multiplier=multiplier)
    train(half, first, 0, 3)
    state = copy.deepcopy(first.state_dict())
    resumed, second = make(embedding_lr_multiplier=multiplier)
    for parameter, value in zip(resumed, half, strict=True):
        parameter.data.copy_(value)
    second.load_state_dict(state, second.optimizer_config)
    train(resumed, second, 3, 8)
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)


def test_it_goes_on_with_another_multiplier():
    """Also from checkpoints of versions without one: groups are the same two."""
    parameters, optimizer = make()
    train(parameters, optimizer, 0, 3)
    state = copy.deepcopy(optimizer.state_dict())
    others, matrices = state["param_groups"]
    assert (len(others["params"]), len(matrices["params"])) == (2, 3) and others.pop("embedding_lr_multiplier") == 1
    (found, ten), (expected, one) = make(embedding_lr_multiplier=10.0), make()
    for resumed, optimizer in ((found, ten), (expected, one)):
        for parameter, value in zip(resumed, parameters, strict=True):
            parameter.data.copy_(value)
        optimizer.load_state_dict(copy.deepcopy(state), {"momentum": 0.9})
        train(resumed, optimizer, 3, 5)
    torch.testing.assert_close(found[:4], expected[:4], rtol=0, atol=0)
    assert not torch.allclose(found[4], expected[4])
    assert [group.get("momentum") for group in ten.param_groups] == [None, 0.9]


def test_an_overflow_of_the_loss_scale_costs_one_step():
    """With common.amp. A step with infinite gradients would leave nothing but nan in the matrices' momentum."""
    parameters, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for gradient in (math.inf, 1.0):
        before = [parameter.detach().clone() for parameter in parameters]
        scaler.scale(torch.ones(()))
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        scaler.step(optimizer.optimizer)
        scaler.update()
        moved = [not torch.equal(new, old) for new, old in zip(parameters, before, strict=True)]
        assert moved == [math.isfinite(gradient)] * len(parameters)
    assert all(parameter.isfinite().all() for parameter in parameters)
