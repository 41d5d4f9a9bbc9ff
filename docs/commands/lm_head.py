"""Time and memory of the LM head's last product and loss, forward + backward, in parts and at once (docs/benchmark.md):

    PYTHONPATH=scripts python docs/commands/lm_head.py [TOKENS] [ROUNDS]

50,265 pieces, d = 768, float32, one thread. Time is that of the processor, so that others may use it, too.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from benchmarking.measuring import Machine
from fairseq.modules import cross_entropy
from torch import Tensor, nn

from fairseq_linformer.model.head import linear_cross_entropy

tokens, rounds = (int(word) for word in (sys.argv[1:] + ["1229", "3"][len(sys.argv) - 1 :]))
torch.set_num_threads(1)
torch.manual_seed(0)
x, weight, bias = (nn.Parameter(0.02 * torch.randn(shape)) for shape in ((tokens, 768), (50265, 768), (50265,)))
targets = torch.randint(50265, (tokens,))
losses: dict[str, Callable[[], Tensor]] = {
    "at once, as fairseq": lambda: cross_entropy(F.linear(x, weight) + bias, targets, reduction="sum"),
    "in parts": lambda: linear_cross_entropy(x, weight, bias, targets),
}
if hasattr(F, "linear_cross_entropy"):  # torch 2.13
    for size in (256, 512, None):
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=size)
        losses[f"PyTorch's, parts of {size or 'its choice'}"] = lambda options=options: F.linear_cross_entropy(
            x, weight, targets, linear_bias=bias, reduction="sum", options=options
        )


def forget() -> None:
    for parameter in (x, weight, bias):
        parameter.grad = None


seconds: dict[str, list[float]] = {name: [] for name in losses}
for _ in range(rounds + 1):  # the first warms up
    for name, own in seconds.items():
        begun = time.process_time()
        losses[name]().backward()
        own.append(time.process_time() - begun)
        forget()
for name, own in seconds.items():
    peak = Machine("cpu", "float32").peak_memory(lambda name=name: losses[name]().backward())
    forget()
    print(f"{name}: {statistics.median(own[1:]):.2f} s, {peak:,.0f} MiB")
