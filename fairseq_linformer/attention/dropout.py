"""Dropout on activations that is fast on the CPU too.

On the CPU PyTorch draws masks serially, one random number per element; here four elements share the 64 bits of a draw.
On a GPU, and while PyTorch compiles, PyTorch's own kernels are used.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 2**16  # probabilities are multiples of 1 / LEVELS: 0.1 is 6554 / 65536


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Apply ``F.dropout``: in training zero elements with probability p < 1, and divide the others by 1 - p."""
    if not training or p == 0 or not runs_eagerly_on_cpu(x):
        return F.dropout(x, p, training)
    return x.masked_fill(~draw_mask(x.shape, p), 0.0) * scale(p)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by means of ``dropout``."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def runs_eagerly_on_cpu(x: Tensor) -> bool:
    """Return True for a tensor on the CPU, outside compiled models."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def draw_mask(shape: torch.Size, p: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw a mask of that shape, False with probability p."""
    number = shape.numel()
    draws = torch.empty((number + 3) // 4, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return (draws.view(torch.int16)[:number] >= _level(p) - LEVELS // 2).view(shape)


def scale(p: float) -> float:
    """Return the factor of the remaining elements."""
    return LEVELS / (LEVELS - _level(p))


def _level(p: float) -> int:
    return min(round(p * LEVELS), LEVELS - 1)
