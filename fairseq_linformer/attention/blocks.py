"""Sequences cut into blocks, as windows, chunks and segments need them.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, m keys, d embedding, h heads, d_h = d / h.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention


def statically_true(condition: bool) -> bool:
    """Return a condition on sizes; while PyTorch compiles for any size, True only if it holds for all."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        return statically_known_true(condition)
    return condition


def sym_min(size: int, limit: int) -> int:
    """Return the smaller of two sizes. ``torch.sym_min`` of two numbers breaks a compiled graph before PyTorch 2.13."""
    static = isinstance(size, int) and isinstance(limit, int)
    return min(size, limit) if static else cast(int, torch.sym_min(size, limit))


def narrow_prefix(x: Tensor, length: int, dim: int) -> Tensor:
    """Return the first entries of a dimension, as a view; while PyTorch compiles for any length, as a copy.

    A slice is the whole tensor for some lengths only, which would specialise an exported graph.
    """
    if statically_true(length < x.size(dim)) or statically_true(length == x.size(dim)):
        return x.narrow(dim, 0, length)
    return x.index_select(dim, torch.arange(length, device=x.device))


def block_size(longest: int, length: int) -> int:
    """Return b, at most the length of the sequence, except while PyTorch compiles for any length."""
    return longest if torch.compiler.is_compiling() else min(longest, length)


def into_blocks(x: Tensor, size: int, pad_blocks: int = 0) -> Tensor:
    """Cut into blocks, (B, n, ...) -> (B, N, b, ...), with zeros (False) at the end and `pad_blocks` more at both.

    Returns a view where the blocks fill the sequence.
    """
    if pad_blocks == 0 and statically_true(x.size(1) % size == 0):
        return x.unflatten(1, (x.size(1) // size, size))
    zeros = (0, 0) * (x.dim() - 2) + (pad_blocks * size, (pad_blocks + 1) * size - 1)
    blocks = (x.size(1) + (2 * pad_blocks + 1) * size - 1) // size
    return narrow_prefix(F.pad(x, zeros), blocks * size, dim=1).unflatten(1, (blocks, size))


def out_of_blocks(blocks: Tensor, length: int) -> Tensor:
    """Invert ``into_blocks``: (B, N, b, ...) -> (B, n, ...)."""
    return narrow_prefix(blocks.flatten(1, 2), length, dim=1)


def block_windows(x: Tensor, size: int, margin: int) -> list[Tensor]:
    """Return each block with e positions on either side, in parts of b + 2 e in all: (B, n, ...) -> (B, N, ..., ...).

    Zeros (False) beyond the ends. All parts are views of one tensor. `size` is b, `margin` is e, at least 1.
    """
    pad_blocks = (margin + size - 1) // size
    padded = into_blocks(x, size, pad_blocks)
    parts = [padded[:, start : padded.size(1) - 2 * pad_blocks + start] for start in range(2 * pad_blocks + 1)]
    cut = pad_blocks * size - margin  # of the outermost parts
    parts[0], parts[-1] = parts[0][:, :, cut:], parts[-1][:, :, : size - cut]
    return parts


def with_margins(x: Tensor, size: int, margin: int) -> Tensor:
    """Join ``block_windows``: (B, n, ...) -> (B, N, b + 2 e, ...)."""
    return torch.cat(block_windows(x, size, margin), dim=2)


def half_window(window: int) -> int:
    """Return the margin e of a segment of w positions: floor(w / 2), but 1 for w = 1, as in Long-Short's code."""
    return max(1, window // 2)


def attend_in_blocks(
    attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor, size: int
) -> Tensor:
    """Apply ``Attention.attend`` to N query blocks, each with its keys, in a batch of B N.

    Args:
        attention: gives heads and dropout.
        queries: (B, n, d).
        keys, values: (B N, h, m, d_h).
        attn_mask: (B, N, h or 1, b or 1, m), as ``Attention.attend`` takes it, for each block.
        size: b.

    Returns:
        (B, h, n, d_h).
    """
    blocks = into_blocks(queries, size).flatten(0, 1)  # (B N, b, d)
    heads = attention.attend(attention.split_heads(blocks), keys, values, attn_mask.flatten(0, 1))
    positions = heads.transpose(1, 2).flatten(0, 1).unflatten(0, (queries.size(0), -1))  # (B, N b, h, d_h)
    return narrow_prefix(positions, queries.size(1), dim=1).transpose(1, 2)


def convolution_per_head(heads: int, width: int) -> nn.Conv2d | None:
    """Build a depthwise convolution along the sequence, one kernel per head: (B, h, n, d_h) -> (B, h, n, d_h).

    Heads are the channels of an image of n by d_h. Returns None for a width of 0.
    """
    if width == 0:
        return None
    return nn.Conv2d(heads, heads, (width, 1), padding=(width // 2, 0), groups=heads, bias=False)
