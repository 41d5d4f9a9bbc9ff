"""Dropout on activations and on attention weights that is fast on the CPU too.

On the CPU PyTorch draws masks serially, one random number per element; here four elements share the 64 bits of a draw.
PyTorch's fused attention has no dropout on the CPU, and without it several tensors of n x m weights are kept for the
backward pass. Here attention processes q queries at a time and recomputes their weights in the backward pass, as
FlashAttention does (Dao et al. 2022, arXiv 2205.14135, section 3.1).

On a GPU, and while PyTorch compiles, PyTorch's own kernels are used.

Dimensions: B batch, n queries, q queries at a time, m keys, h heads, d_h = d / h.
Cost of attention: O(B h n m d_h) time, twice the scores in training; O(B h q m) memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEVELS = 2**16  # probabilities are multiples of 1 / LEVELS: 0.1 is 6554 / 65536
WEIGHTS = 2**21  # attention weights at a time; fewer or more were slower, at n = 512 and at 4,096
MIN_QUERIES = 16  # at a time, however many weights they have


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Apply ``F.dropout``: in training zero elements with probability p < 1, and divide the others by 1 - p."""
    if not training or p == 0 or not is_slow(x):
        return F.dropout(x, p, training)
    return x.masked_fill(~draw_mask(x.shape, p), 0.0) * scale(p)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by means of ``dropout``."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def is_slow(x: Tensor) -> bool:
    """Return True where PyTorch's dropout is slow for this tensor."""
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


def attend_with_dropout(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
    """Compute ``Attention.attend`` on the CPU, with dropout of probability p > 0 on the weights.

    A mask of numbers is finite.
    """
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    return _DropoutAttention.apply(queries, keys, values, attn_mask, p)


class _DropoutAttention(torch.autograd.Function):
    """Attention with dropout that draws the same masks in both passes, from one seed.

    Scores, weights and sums are at least in float32, under autocast too: bfloat16 rounds a score near 20 by up to 0.06,
    which changes its weight by 6 %. Queries, keys and values may differ in precision; the result has that of the
    queries.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
        ctx.p, ctx.seed = p, int(torch.randint(2**62, ()))
        out = queries.new_empty(queries.transpose(1, 2).shape).transpose(1, 2)  # so that heads join without a copy
        for part in _parts(queries, keys, values, attn_mask, p, ctx.seed):
            out[part.sequences, :, part.positions] = part.weights.mul_(part.keep_mask) @ part.values
        ctx.save_for_backward(queries, keys, values, attn_mask, out)
        return out

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attn_mask, out = ctx.saved_tensors
        precision = torch.promote_types(queries.dtype, torch.float32)
        grad_queries = torch.empty_like(queries)
        grad_keys, grad_values = (torch.zeros_like(x, dtype=precision) for x in (keys, values))
        for part in _parts(queries, keys, values, attn_mask, ctx.p, ctx.seed):
            sequences, positions = part.sequences, part.positions
            part_queries, part_grad = (x[sequences, :, positions].to(precision) for x in (queries, grad))
            dropped = part.weights * part.keep_mask
            grad_scores = (part_grad @ part.values.transpose(2, 3)).mul_(dropped)
            # FlashAttention's D; softmax subtracts it.
            delta = (part_grad * out[sequences, :, positions]).sum(-1, keepdim=True)
            grad_scores.addcmul_(part.weights, delta, value=-1)
            grad_queries[sequences, :, positions] = grad_scores @ part.keys
            grad_keys[sequences] += grad_scores.transpose(2, 3) @ part_queries
            grad_values[sequences] += dropped.transpose(2, 3) @ part_grad
        grad_keys = grad_keys.mul_(queries.size(-1) ** -0.5).to(keys.dtype)
        return grad_queries, grad_keys, grad_values.mul_(scale(ctx.p)).to(values.dtype), None, None


class _Part(NamedTuple):
    """Operands of the attention of some queries of some sequences, in its precision.

    Attributes:
        sequences, positions: slices of the batch and of the queries.
        keys, values: K / sqrt(d_h) and V / (1 - p) of these sequences.
        weights: the softmax of the scores.
        keep_mask: 0 for weights that dropout zeroes, else 1.
    """

    sequences: slice
    positions: slice
    keys: Tensor
    values: Tensor
    weights: Tensor
    keep_mask: Tensor


def _parts(
    queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float, seed: int
) -> Iterator[_Part]:
    """Yield the attention part by part.

    A part is as many whole sequences as ``WEIGHTS`` allows, or else some queries of one: the gradient of keys is then a
    sum of few parts.
    """
    generator = torch.Generator().manual_seed(seed)
    precision = torch.promote_types(queries.dtype, torch.float32)
    batch, heads, length, size = queries.shape
    count = max(1, WEIGHTS // (heads * length * keys.size(2)))
    step = max(MIN_QUERIES, WEIGHTS // (count * heads * keys.size(2)))
    for first in range(0, batch, count):
        sequences = slice(first, first + count)
        # Of these sequences alone: the keys of query blocks together are several times the sequence.
        part_keys, part_values = keys[sequences].to(precision) * size**-0.5, values[sequences].to(precision) * scale(p)
        for start in range(0, length, step):
            positions = slice(start, start + step)
            scores = queries[sequences, :, positions].to(precision) @ part_keys.transpose(2, 3)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.size(0) == 1 else attn_mask[sequences]
                mask = mask if mask.size(2) == 1 else mask[:, :, positions]
                lowest = torch.finfo(precision).min  # a query with minus infinity alone would give nan
                _ = scores.masked_fill_(~mask, lowest) if mask.dtype == torch.bool else scores.add_(mask)
            keep_mask = draw_mask(scores.shape, p, generator).to(precision)
            yield _Part(sequences, positions, part_keys, part_values, scores.softmax(-1), keep_mask)
