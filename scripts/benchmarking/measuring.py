"""Time, memory and floating-point operations: of the benchmark's cases, and of the studies' updates.

What is compared runs in turns, round after round, in one process. Memory is the peak of what PyTorch's allocator gives
out, whatever else the process holds: the same in every run.
"""

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from fairseq.optim.adam import Adam
from fairseq.utils import clip_grad_norm_
from torch import Tensor
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from .baselines import LAYERS, MODELS, Candidate, Sizes

Key = TypeVar("Key")

PHASES = (
    "inference",  # features of all positions, without gradients
    "evaluation",  # loss at masked positions, without gradients
    "forward",  # loss at masked positions, in training mode
    "forward + backward",  # the same, and its gradients
    "training step",  # forward + backward, clipping and Adam
)
WITH_BACKWARD = ("forward + backward", "training step")
LEAST_ROUNDS = 3  # a median and something on both sides
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Case:
    """One phase of a model, or of one layer's attention, on a batch of rows of n tokens."""

    model: str
    sizes: Sizes
    phase: str
    rows: int
    layer_alone: bool = False
    note: str = ""  # tells it from others of its group in the tables

    @property
    def tokens(self) -> int:
        return self.rows * self.sizes.length

    @property
    def compiles(self) -> bool:
        return ("compile_layers", True) in self.sizes.options

    def build(self) -> Candidate:
        torch.manual_seed(1)
        return (LAYERS if self.layer_alone else MODELS)[self.model](self.sizes)


@dataclass(frozen=True)
class Machine:
    """The device and the number format of the cases."""

    device: str
    dtype: str

    def describe(self) -> dict[str, Any]:
        about = {
            "device": self.device,
            "dtype": self.dtype,
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{package: _version(package) for package in ("fairseq-fixed", "transformers")},
        }
        if self.device != "cpu":
            properties = torch.cuda.get_device_properties(0)
            gib = round(properties.total_memory / 2**30)
            return {**about, "name": properties.name, "GiB": gib, "cuda": torch.version.cuda}
        gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
        instructions = torch.backends.cpu.get_cpu_capability()
        threads = torch.get_num_threads()
        return {**about, "name": _processor(), "instructions": instructions, "threads": threads, "GiB": gib}

    def prepare(self, case: Case) -> Callable[[], None]:
        """Builds the case's model and batch, and returns a call that runs the phase once."""
        candidate = case.build()
        model = candidate.module.to(self.device, DTYPES[self.dtype])
        inputs = [self._move(tensor) for tensor in candidate.draw(case.sizes, case.rows)]
        model.train(case.phase not in ("inference", "evaluation"))
        optimizer = Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01)

        def work() -> None:
            with torch.set_grad_enabled(model.training):
                result = candidate.run(case.phase == "inference", inputs)
            if case.phase in WITH_BACKWARD:
                result.backward()
            if case.phase == "training step":
                clip_grad_norm_(list(model.parameters()), 1.0)
                optimizer.step()
            for tensor in (*model.parameters(), *inputs):
                tensor.grad = None
            self.finish()

        return work

    def finish(self) -> None:
        """Waits until the device has done all that it was asked for."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def gemm(self, rows: int, embed_dim: int) -> tuple[Callable[[], None], int]:
        """A product of the feed-forward network, (rows, d) (d, 4 d), and its floating-point operations per call.

        It is the benchmark's measure of the GEMM peak. The factors are random, as those of a model: a GPU multiplies
        equal numbers faster, because they draw less power. On a GPU each call has several products, so that the time to
        start one does not count.
        """
        products = 10 if self.device != "cpu" else 1
        generator = torch.Generator().manual_seed(1)
        left = self._move(torch.randn(rows, embed_dim, generator=generator))
        right = self._move(0.02 * torch.randn(embed_dim, 4 * embed_dim, generator=generator))
        out = left.new_empty(rows, 4 * embed_dim)

        def work() -> None:
            for _ in range(products):
                torch.mm(left, right, out=out)
            self.finish()

        return work, products * 8 * rows * embed_dim**2

    def peak_memory(self, work: Callable[[], None]) -> float:
        """MiB of PyTorch's allocator that a call holds at its peak, beyond what was held before it.

        Call `work` once before. Memory that libraries allocate themselves is not counted, such as the packed operands
        of a matrix product on the CPU.
        """
        if self.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            work()
            return (torch.cuda.max_memory_allocated() - held) / 2**20
        with profile(profile_memory=True) as recorded:
            work()
        events = recorded.kineto_results.events()  # in order of time; recorded.events() has sums alone
        changes = [event.nbytes() for event in events if event.name() == "[memory]"]
        return max(accumulate(changes, initial=0)) / 2**20

    def _move(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        return tensor.detach().to(self.device, DTYPES[self.dtype]).requires_grad_(tensor.requires_grad)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()


@cache
def flops(case: Case) -> int:
    """Floating-point operations of the matrix products of a batch.

    One row is counted and multiplied by their number. A backward pass counts twice a forward.
    """
    candidate = replace(case.build(), kernel="math")  # its products are counted one by one
    candidate.module.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        candidate.run(case.phase == "inference", candidate.draw(case.sizes, 1))
    return case.rows * int(counter.get_total_flops()) * (3 if case.phase in WITH_BACKWARD else 1)


def in_turns(
    calls: Mapping[Key, Callable[[], None]],
    rounds: int,
    patience: float = math.inf,
    leave_out: Callable[[Key, str], None] | None = None,
) -> dict[Key, list[float]]:
    """Seconds of each call in each round.

    Args:
        calls: by name.
        rounds: how many.
        patience: after so many seconds no further round begins, but at least three run.
        leave_out: is told the name and the reason of a call for which no memory is left beside the others, and which
            does not run again; by default that is an error.
    """
    seconds: dict[Key, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for number in range(rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - start > patience:
            break
        for name in [*seconds]:
            try:
                seconds[name].append(timed(calls[name]))
                continue
            except torch.OutOfMemoryError as error:
                if leave_out is None:
                    raise
                said = reason(error)
            del seconds[name]
            leave_out(name, said)  # now that the error holds nothing any more
    return seconds


def reason(error: Exception) -> str:
    """The first line of an error."""
    return (str(error) or type(error).__name__).splitlines()[0]


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median ("seconds") and quartiles ("low", "high")."""
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return {"seconds": median, "low": low, "high": high}
