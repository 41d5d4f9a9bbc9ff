"""Scaled-dot-product attention (sdpa) with dropout on its weights that costs little memory on the CPU.

There PyTorch's fused attention knows no dropout: instead of it several tensors of n x m weights are kept for the
backward pass. Here attention takes some queries at a time and computes their weights again in the backward pass, as
FlashAttention does (Dao et al. 2022, arXiv 2205.14135, section 3.1). On a GPU PyTorch's own kernels do as much; while
PyTorch compiles they are taken for every device.

Dimensions: B batch, n queries, q of them at a time, m keys, h heads, d_h = d / h.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout import draw_mask, scale

WEIGHTS = 2**21  # at a time: fewer or more were slower, at n = 512 and at 4,096
LEAST_QUERIES = 16  # at a time, however many weights they have


def attend_with_dropout(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
    """``Attention.attend`` on the CPU, with dropout of probability p, above 0, on the weights.

    A mask of numbers is finite.
    """
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    return _DropoutAttention.apply(queries, keys, values, attn_mask, p)


class _DropoutAttention(torch.autograd.Function):
    """Both passes draw the same masks, from one seed.

    Scores, weights and sums are at least in float32, under autocast too: bfloat16 rounds a score near 20 by up to 0.06,
    and its weight changes by 6 %. Queries, keys and values may differ in precision; the result has that of the queries.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
        ctx.p, ctx.seed = p, int(torch.randint(2**62, ()))
        out = queries.new_empty(queries.transpose(1, 2).shape).transpose(1, 2)  # so that heads join without a copy
        for part in _parts(queries, keys, values, attn_mask, p, ctx.seed):
            out[part.rows, :, part.some] = part.weights.mul_(part.kept) @ part.values
        ctx.save_for_backward(queries, keys, values, attn_mask, out)
        return out

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attn_mask, out = ctx.saved_tensors
        grad_queries = torch.empty_like(queries)
        grad_keys, grad_values = (torch.zeros_like(own, dtype=_precision(queries)) for own in (keys, values))
        for part in _parts(queries, keys, values, attn_mask, ctx.p, ctx.seed):
            rows, some = part.rows, part.some
            some_queries, some_grad = (own[rows, :, some].to(part.weights.dtype) for own in (queries, grad))
            dropped = part.weights * part.kept
            grad_scores = (some_grad @ part.values.transpose(2, 3)).mul_(dropped)
            # FlashAttention's D; softmax subtracts it.
            along_out = (some_grad * out[rows, :, some]).sum(-1, keepdim=True)
            grad_scores.addcmul_(part.weights, along_out, value=-1)
            grad_queries[rows, :, some] = grad_scores @ part.keys
            grad_keys[rows] += grad_scores.transpose(2, 3) @ some_queries
            grad_values[rows] += dropped.transpose(2, 3) @ some_grad
        of_keys, of_values = _factors(queries, ctx.p)
        grad_keys, grad_values = grad_keys.mul_(of_keys).to(keys.dtype), grad_values.mul_(of_values).to(values.dtype)
        return grad_queries, grad_keys, grad_values, None, None


class _Part(NamedTuple):
    """Some rows of the batch and some of their queries, and what their attention is computed of, in its precision.

    Attributes:
        rows, some: which rows, and which of their queries.
        keys, values: K / sqrt(d_h) and V / (1 - p) of these rows.
        weights: the softmax of the scores.
        kept: 1 for weights that dropout keeps, else 0.
    """

    rows: slice
    some: slice
    keys: Tensor
    values: Tensor
    weights: Tensor
    kept: Tensor


def _precision(queries: Tensor) -> torch.dtype:
    return torch.promote_types(queries.dtype, torch.float32)


def _factors(queries: Tensor, p: float) -> tuple[float, float]:
    """Of keys and of values, and so of their gradients."""
    return queries.size(-1) ** -0.5, scale(p)


def _parts(
    queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float, seed: int
) -> Iterator[_Part]:
    """All of the attention, part by part.

    A part is as many whole rows as ``WEIGHTS`` allows, or else some queries of one: a gradient of keys is then a sum of
    few parts.
    """
    generator = torch.Generator().manual_seed(seed)
    precision, (of_keys, of_values) = _precision(queries), _factors(queries, p)
    batch, heads, length = queries.shape[:3]
    size = max(1, WEIGHTS // (heads * length * keys.size(2)))
    step = max(LEAST_QUERIES, WEIGHTS // (size * heads * keys.size(2)))
    for first in range(0, batch, size):
        rows = slice(first, first + size)
        # Of these rows alone: blocks of queries have keys of their own, together several times the sequence.
        own_keys, own_values = keys[rows].to(precision) * of_keys, values[rows].to(precision) * of_values
        for start in range(0, length, step):
            some = slice(start, start + step)
            scores = queries[rows, :, some].to(precision) @ own_keys.transpose(2, 3)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.size(0) == 1 else attn_mask[rows]
                mask = mask if mask.size(2) == 1 else mask[:, :, some]
                lowest = torch.finfo(precision).min  # minus infinity alone in a row would give nan
                _ = scores.masked_fill_(~mask, lowest) if mask.dtype == torch.bool else scores.add_(mask)
            kept = draw_mask(scores.shape, p, generator).to(precision)
            yield _Part(rows, some, own_keys, own_values, scores.softmax(-1), kept)
