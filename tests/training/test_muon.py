"""Optimizer ``muon``: its step, the step of other parameters, and resumption."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from fairseq_linformer.model.roberta import EMBEDDINGS, IN_LAYERS
from fairseq_linformer.precision import with_bfloat16_products
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
def test_singular_values_become_about_one(shape):
    """Singular vectors stay, and singular values from 0.01 to 1 end near 1."""
    u, _, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    values = torch.logspace(0, -2, min(shape), dtype=torch.float64)
    product = u.T @ orthogonalised(u * values @ v) @ v.T
    assert product.diagonal().min() > 0.68 and product.diagonal().max() < 1.21
    torch.testing.assert_close(product, product.diagonal().diag(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(128, 48), (48, 128), (64, 64)])
def test_bfloat16_products_change_a_direction_by_their_rounding(shape):
    matrix = torch.randn(shape)
    rounded = with_bfloat16_products(orthogonalised)(matrix)
    assert rounded.dtype == torch.bfloat16 and orthogonalised(matrix).dtype == torch.float32
    assert (rounded - orthogonalised(matrix)).norm() < 0.02 * matrix.new_tensor(min(shape)).sqrt()


@pytest.mark.cuda
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_A_GPU)])
def test_matrices_of_one_shape_are_computed_together(device):
    shapes = (12, 5), (9, 9), (12, 5), (5, 12)
    matrices = [torch.randn(shape, dtype=torch.float64, device=device) * 10**at for at, shape in enumerate(shapes)]
    expected = [orthogonalised(matrix) for matrix in matrices]
    torch.testing.assert_close(stacked(matrices), expected, rtol=0, atol=1e-12)


def test_a_step_has_the_size_of_adams():
    """0.2 of the learning rate in quadratic mean, with Nesterov's momentum, after the weight decay."""
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


def test_other_parameters_take_adams_steps():
    (parameters, muon), (expected, adam) = make(), make(FairseqAdam)
    train(parameters, muon, 0, 5)
    train(expected, adam, 0, 5)
    torch.testing.assert_close(parameters[3:], expected[3:])
    assert not torch.allclose(parameters[0], expected[0])


def test_a_matrix_without_a_gradient_stays():
    """A layer that LayerDrop skips has zeros in 16 bits; orthogonalised, its momentum would keep its full size."""
    parameters, optimizer = make(weight_decay=0.0)
    train(parameters, optimizer, 0, 1)
    before = [matrix.detach().clone() for matrix in parameters[:3]]
    parameters[0].grad.zero_()
    optimizer.step()
    assert [torch.equal(new, old) for new, old in zip(parameters, before, strict=False)] == [True, False, False]


def test_embeddings_have_a_separate_learning_rate():
    """Ten times the other one, with the same product of learning rate and weight decay."""
    parameters, muon = make(embedding_lr_multiplier=10.0)
    expected, adam = make(FairseqAdam)
    for step in range(5):
        train(parameters, muon, step, step + 1)
        for group in adam.param_groups:
            group.update(lr=1.0 / (step + 1), weight_decay=0.01)
        for parameter, source in zip(expected, parameters, strict=True):
            parameter.grad = source.grad.clone()
        adam.step()
    torch.testing.assert_close(parameters[4], expected[4])
    plain, one = make()
    train(plain, one, 0, 5)
    torch.testing.assert_close(parameters[:4], plain[:4], rtol=0, atol=0)
    assert {(group["lr"], group["weight_decay"]) for group in muon.param_groups} == {(0.1 / 5, 0.1)}


def resume(state, parameters, **options):
    """An optimizer that resumes from a state, and a copy of the parameters of that state."""
    copies, optimizer = make(**options)
    for parameter, value in zip(copies, parameters, strict=True):
        parameter.data.copy_(value)
    optimizer.load_state_dict(copy.deepcopy(state), {"momentum": 0.95})
    return copies, optimizer


def test_it_resumes_from_a_state_also_with_another_multiplier():
    """Also from checkpoints of versions without one: groups are the same two."""
    expected, whole = make()
    train(expected, whole, 0, 8)
    parameters, optimizer = make()
    train(parameters, optimizer, 0, 3)
    state = copy.deepcopy(optimizer.state_dict())
    assert [len(group["params"]) for group in state["param_groups"]] == [2, 3]
    assert state["param_groups"][0].pop("embedding_lr_multiplier") == 1
    resumed, optimizer = resume(state, parameters)
    train(resumed, optimizer, 3, 8)
    torch.testing.assert_close(resumed, expected, rtol=0, atol=0)
    changed, optimizer = resume(state, parameters, embedding_lr_multiplier=10.0)
    train(changed, optimizer, 3, 8)
    torch.testing.assert_close(changed[:4], expected[:4], rtol=0, atol=0)
    assert not torch.allclose(changed[4], expected[4])


def test_an_overflow_of_the_loss_scale_costs_one_step():
    """With common.amp. A step with infinite gradients would make the matrices' momentum nan."""
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
