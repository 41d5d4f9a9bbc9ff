"""Time, memory and floating-point operations, on cases whose figures are known."""

import pytest
import torch
from benchmarking.measuring import Case, flops, in_turns, spread

from tests.helpers.benchmarks import MACHINE, SIZES


def test_floating_point_operations_are_those_of_the_formula():
    """Of the attention layer alone: 2 n d^2 + 3 n k d + 2 k d^2 multiplications (LinformerAttention)."""
    n, k, d = SIZES.length, SIZES.projected_length, SIZES.embed_dim
    case = Case("linformer", SIZES, "inference", 3, layer_alone=True)
    assert flops(case) == 3 * 2 * (2 * n * d * d + 3 * n * k * d + 2 * k * d * d)
    assert flops(Case("linformer", SIZES, "forward + backward", 3, layer_alone=True)) == 3 * flops(case)


def test_peak_memory_is_what_the_tensors_take_whatever_the_process_held():
    """By hand, in MiB: 4, 8, the 4 freed, 2 and 1 are 11 at the end, and 12 before. The 16 held before are no part."""
    held = [torch.empty(4 * 2**20)]

    def work():
        first, second = torch.empty(2**20), torch.empty(2 * 2**20)
        del first
        held.clear()
        return second, torch.empty(2**19), torch.empty(2**18)

    assert MACHINE.peak_memory(work) == 12


def test_peak_memory_sees_what_a_backward_pass_takes_and_frees():
    """x, exp(x), which it keeps, and the gradient: 3 x 4 MiB, and as many in a second call."""

    def work():
        x = torch.ones(2**20, requires_grad=True)
        y = x.exp()
        y.sum().backward()

    assert MACHINE.peak_memory(work) == pytest.approx(12, abs=1e-3)
    assert MACHINE.peak_memory(lambda: [work() for _ in range(3)]) == MACHINE.peak_memory(work)


def test_the_gemm_peak_is_that_of_numbers_as_models_have_them(monkeypatch):
    """Equal ones are faster to multiply on a GPU."""
    factors = []
    monkeypatch.setattr(torch, "mm", lambda left, right, out: factors.extend((left, right)))
    work, operations = MACHINE.gemm(64, 32)
    work()
    assert operations == 2 * 64 * 32 * 128
    for factor, scale in zip(factors, (1.0, 0.02), strict=True):
        assert factor.std().item() == pytest.approx(scale, rel=0.1) and factor.unique().numel() > 0.9 * factor.numel()


def test_calls_take_turns():
    order = []
    seconds = in_turns({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3)
    assert order == list("ababab") and {name: len(own) for name, own in seconds.items()} == {"a": 3, "b": 3}
    impatient = in_turns({"a": lambda: None}, rounds=7, patience=0.0)
    assert len(impatient["a"]) == 3, "no fewer, or there is no median"
    assert spread([3.0, 1.0, 2.0]) == {"low": 1.5, "seconds": 2.0, "high": 2.5}
