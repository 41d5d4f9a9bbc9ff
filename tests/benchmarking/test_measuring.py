"""Time, memory and floating-point operations, on cases whose figures are known."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from benchmarking import measuring
from benchmarking.measuring import Case, flops, in_turns, largest, spread

from tests.helpers.benchmarks import MACHINE, SIZES
from tests.helpers.commands import PROCESSES
from tests.helpers.processes import running_in_group, wait_until


def test_floating_point_operations_are_those_of_the_formula():
    """Of the attention layer alone: 2 n d^2 + 3 n k d + 2 k d^2 multiplications (LinformerAttention)."""
    n, k, d = SIZES.length, SIZES.projected_length, SIZES.embed_dim
    case = Case("linformer", SIZES, "inference", ((n, n, n),), layer_alone=True)
    assert flops(case) == 3 * 2 * (2 * n * d * d + 3 * n * k * d + 2 * k * d * d)
    assert flops(Case("linformer", SIZES, "forward + backward", case.batches, layer_alone=True)) == 3 * flops(case)


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


def test_peak_memory_of_a_model_is_the_same_in_every_run_and_grows_with_the_batch():
    few, many = (Case("softmax", SIZES, "forward + backward", ((64,) * rows,)) for rows in (64, 256))
    work = MACHINE.prepare(few)
    work()
    peaks = [MACHINE.peak_memory(call) for call in (work, work, MACHINE.prepare(few), MACHINE.prepare(many))]
    assert peaks[0] == peaks[1] == peaks[2]
    assert 0 < 3 * peaks[0] < peaks[3]


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


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (7, 7), (1000, 1000)])
def test_the_largest_batch_that_fits(limit, found):
    tried = []
    assert limit * 7 / 8 <= largest(lambda rows: (tried.append(rows), rows <= limit)[1]) <= found
    assert len(tried) < 20


@pytest.fixture
def forked(monkeypatch):
    """The process for the largest batch is forked from one that has imported torch and fairseq."""
    monkeypatch.setattr(measuring, "get_context", lambda method: PROCESSES)


def _kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_for_memory_is_an_error(monkeypatch, forked):
    monkeypatch.setattr(measuring, "_largest_batch", _kill)
    with pytest.raises(RuntimeError, match="its process was killed"):
        MACHINE.largest_batch(Case("softmax", SIZES, "forward + backward", ((64,),)), 1.0)


def _touch_and_sleep(machine, started, limit):
    started.touch()
    time.sleep(300)


def _benchmark(started):
    os.setsid()
    measuring._largest_batch = _touch_and_sleep
    MACHINE.largest_batch(started, 1.0)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc to find processes in")
def test_the_process_of_a_killed_benchmark_ends_too(tmp_path):
    process = PROCESSES.Process(target=_benchmark, args=(tmp_path / "started",))
    process.start()
    try:
        wait_until((tmp_path / "started").is_file)
        assert len(running_in_group(process.pid)) > 1
        process.kill()
        process.join()
        wait_until(lambda: not running_in_group(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
