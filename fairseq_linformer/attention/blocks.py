"""Sequences cut into blocks: what windows, chunks and segments have in common.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, m keys, d embedding, h heads, d_h = d / h.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention


def holds(condition: bool) -> bool:
    """A condition on sizes; while PyTorch compiles for any of them, whether it holds for all."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(condition)
    return condition


def smaller(one: int, other: int) -> int:
    """The smaller of two sizes. ``torch.sym_min`` of two numbers cuts a compiled graph before PyTorch 2.13."""
    known = isinstance(one, int) and isinstance(other, int)
    return min(one, other) if known else cast(int, torch.sym_min(one, other))


def leading(x: Tensor, length: int, dim: int) -> Tensor:
    """The first entries of a dimension: a view; while PyTorch compiles for any length a copy.

    A slice may be the whole tensor, for some lengths and not for others: that would tie an exported graph to either.
    """
    if holds(length < x.size(dim)) or holds(length == x.size(dim)):
        return x.narrow(dim, 0, length)
    return x.index_select(dim, torch.arange(length, device=x.device))


def block_size(longest: int, length: int) -> int:
    """b: a sequence that is shorter than a block is a block, except where PyTorch compiles for any length."""
    return longest if torch.compiler.is_compiling() else min(longest, length)


def into_blocks(x: Tensor, size: int, beyond: int = 0) -> Tensor:
    """(B, n, ...) -> (B, N, b, ...), zeros (False) after the end; with `beyond` more blocks of them at each end.

    A view where the blocks fill the sequence.
    """
    if beyond == 0 and holds(x.size(1) % size == 0):
        return x.unflatten(1, (x.size(1) // size, size))
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


def margins(x: Tensor, size: int, beside: int) -> list[Tensor]:
    """Each block between e positions on either side, in parts: (B, n, ...) -> (B, N, ..., ...), b + 2 e in all.

    Beyond the ends are zeros (False). All are views of one tensor.

    Args:
        x: the sequence.
        size: b.
        beside: e, at least 1.
    """
    beyond = (beside + size - 1) // size
    padded = into_blocks(x, size, beyond)
    parts = [padded[:, place : padded.size(1) - 2 * beyond + place] for place in range(2 * beyond + 1)]
    cut = beyond * size - beside  # of the outermost
    parts[0], parts[-1] = parts[0][:, :, cut:], parts[-1][:, :, : size - cut]
    return parts


def with_margins(x: Tensor, size: int, beside: int) -> Tensor:
    """``margins``, joined: (B, n, ...) -> (B, N, b + 2 e, ...)."""
    return torch.cat(margins(x, size, beside), dim=2)


def half_window(window: int) -> int:
    """e beside a segment of w positions, floor(w / 2), and 1 beside w = 1, as Long-Short's authors have it."""
    return max(1, window // 2)


def attend_in_blocks(
    attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor, size: int
) -> Tensor:
    """``Attention.attend`` for queries in N blocks, each with keys of its own, which attend as rows of a larger batch.

    Args:
        attention: whose heads and dropout.
        queries: (B, n, d).
        keys, values: (B N, h, m, d_h).
        attn_mask: (B, N, h or 1, b or 1, m): of each block as ``Attention.attend`` takes it.
        size: b.

    Returns:
        (B, h, n, d_h).
    """
    blocks = into_blocks(queries, size).flatten(0, 1)  # (B N, b, d)
    heads = attention.attend(attention.split_heads(blocks), keys, values, attn_mask.flatten(0, 1))
    positions = heads.transpose(1, 2).flatten(0, 1).unflatten(0, (queries.size(0), -1))  # (B, N b, h, d_h)
    return leading(positions, queries.size(1), dim=1).transpose(1, 2)


def convolution_per_head(heads: int, width: int) -> nn.Conv2d | None:
    """A depthwise convolution along the sequence, one kernel per head: (B, h, n, d_h) -> (B, h, n, d_h).

    Heads are the channels of an image of n by d_h. None for a width of 0.
    """
    if width == 0:
        return None
    return nn.Conv2d(heads, heads, (width, 1), padding=(width // 2, 0), groups=heads, bias=False)
