"""Time, memory and floating-point operations of the benchmark's cases.

Cases that are compared run in turns, round after round, in one process. Memory is the peak of what PyTorch's allocator
gives out, whatever else the process holds: the same in every run.
"""

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from fairseq.optim.adam import Adam
from fairseq.utils import clip_grad_norm_
from torch import Tensor
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from fairseq_linformer.system.processes import end_with_parent

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
    """One phase of a model, or of one layer's attention, on batches of rows of these lengths."""

    model: str
    sizes: Sizes
    phase: str
    batches: tuple[tuple[int, ...], ...]
    layer_alone: bool = False
    note: str = ""  # tells it from others of its group in the tables

    @property
    def tokens(self) -> int:
        """Without padding."""
        return sum(map(sum, self.batches))

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
            **{package: _version(package) for package in ("fairseq-fixed", "transformers", "linformer")},
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
        """Builds the case's model and batches, and returns a call that runs the phase once on every batch."""
        model = case.build().to(self.device, DTYPES[self.dtype])
        batches = [[self._move(tensor) for tensor in model.draw(case.sizes, lengths)] for lengths in case.batches]
        model.train(case.phase not in ("inference", "evaluation"))
        optimizer = Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01)

        def work() -> None:
            for inputs in batches:
                with torch.set_grad_enabled(model.training):
                    result: Tensor = model.features(*inputs) if case.phase == "inference" else model.loss(*inputs)
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

    def largest_batch(self, case: Case, limit: float) -> int:
        """Rows of the largest batch that fits in the GPU's memory and takes at most `limit` seconds.

        It is measured in a new process, whose memory nothing else has used.

        Raises:
            RuntimeError: that process was killed.
        """
        # Importing fairseq may initialise CUDA, which a forked process cannot use.
        try:
            with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as process:
                return process.submit(_largest_batch, self, case, limit).result()
        except BrokenProcessPool:
            raise RuntimeError("its process was killed, probably for lack of memory") from None

    def _move(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.to(self.device)
        return tensor.detach().to(self.device, DTYPES[self.dtype]).requires_grad_(tensor.requires_grad)


def _largest_batch(machine: Machine, case: Case, limit: float) -> int:
    def fits(rows: int) -> bool:
        try:
            return timed(machine.prepare(replace(case, batches=(case.batches[0][:1] * rows,)))) <= limit
        except RuntimeError:  # no memory; or more rows than a kernel has blocks for
            return False
        finally:
            torch.cuda.empty_cache()

    return largest(fits)


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


def flops(case: Case) -> int:
    """Floating-point operations of the matrix products on one batch of rows of one length.

    One row is counted and multiplied by their number. A backward pass counts twice a forward.
    """
    ((*rows,),) = case.batches
    phase = "inference" if case.phase == "inference" else "evaluation"
    of_row = _forward_flops(replace(case, phase=phase, batches=(tuple(rows[:1]),)))
    return len(rows) * of_row * (3 if case.phase in WITH_BACKWARD else 1)


@cache
def _forward_flops(case: Case) -> int:
    model = case.build().eval()
    model.kernel = "math"  # its products are counted one by one
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        batch = [tensor.detach() for tensor in model.draw(case.sizes, case.batches[0])]
        model.features(*batch) if case.phase == "inference" else model.loss(*batch)
    return int(counter.get_total_flops())


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


def largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, to within an eighth; 0 if not even 1 does."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median ("seconds") and quartiles ("low", "high")."""
    low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
    return {"seconds": median, "low": low, "high": high}
