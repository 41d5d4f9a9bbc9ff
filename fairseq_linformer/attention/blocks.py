"""Sequences cut into blocks: what windows, chunks and segments have in common.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def leading(x: Tensor, length: int, dim: int) -> Tensor:
    """The first entries of a dimension: a view; while PyTorch compiles a copy.

    A slice may be the whole tensor, for some lengths and not for others: that would tie an exported graph to either.
    """
    if torch.compiler.is_compiling():
        return x.index_select(dim, torch.arange(length, device=x.device))
    return x.narrow(dim, 0, length)


def block_size(longest: int, length: int) -> int:
    """b: a sequence that is shorter than a block is a block, except where PyTorch compiles for any length."""
    return longest if torch.compiler.is_compiling() else min(longest, length)


def into_blocks(x: Tensor, size: int, beyond: int = 0) -> Tensor:
    """(B, n, ...) -> (B, N, b, ...), zeros (False) after the end; with `beyond` more blocks of them at each end."""
    zeros = (0, 0) * (x.dim() - 2) + (beyond * size, (beyond + 1) * size - 1)
    blocks = (x.size(1) + (2 * beyond + 1) * size - 1) // size
    return leading(F.pad(x, zeros), blocks * size, dim=1).unflatten(1, (blocks, size))


def out_of_blocks(blocks: Tensor, length: int) -> Tensor:
    """(B, N, b, ...) -> (B, n, ...), the inverse."""
    return leading(blocks.flatten(1, 2), length, dim=1)


def with_neighbours(blocks: Tensor) -> Tensor:
    """(B, N, b, ...) -> (B, N, 3 b, ...): each block between those before and after it; zeros beyond both ends."""
    one_at_each_end = (0, 0) * (blocks.dim() - 2) + (1, 1)
    padded = F.pad(blocks, one_at_each_end)
    return torch.cat([padded[:, :-2], blocks, padded[:, 2:]], dim=2)


def margins(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each block between e positions on either side: (B, n, ...) -> (B, N, e, ...), (B, N, b, ...), (B, N, e, ...).

    e = floor(b / 2), and 1 beside b = 1, as Long-Short's authors have it. Beyond the ends are zeros (False). All three
    are views of one tensor.
    """
    beside = max(1, size // 2)
    padded = into_blocks(x, size, beyond=1)
    return padded[:, :-2, size - beside :], padded[:, 1:-1], padded[:, 2:, :beside]


def with_margins(x: Tensor, size: int) -> Tensor:
    """``margins``, joined: (B, n, ...) -> (B, N, b + 2 e, ...)."""
    return torch.cat(margins(x, size), dim=2)


def convolution_per_head(heads: int, width: int) -> nn.Conv2d:
    """A depthwise convolution along the sequence, one kernel per head: (B, h, n, d_h) -> (B, h, n, d_h).

    Heads are the channels of an image of n by d_h.
    """
    return nn.Conv2d(heads, heads, (width, 1), padding=(width // 2, 0), groups=heads, bias=False)
