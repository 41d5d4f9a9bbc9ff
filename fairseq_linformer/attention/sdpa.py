"""Scaled-dot-product attention (sdpa), with dropout on its weights that costs little memory on the CPU too.

There PyTorch's fused attention knows no dropout: instead of it several tensors of n x m weights are kept for the
backward pass. Here attention takes some queries at a time and computes their weights again in the backward pass, as
FlashAttention does (Dao et al. 2022, arXiv 2205.14135, section 3.1). On a GPU PyTorch's own kernels do as much; while
PyTorch compiles they are taken for every device.

Dimensions: B batch, n queries, q of them at a time, m keys, h heads, d_h = d / h.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout import draw_mask, is_slow, scale

WEIGHTS = 2**21  # at a time: fewer or more were slower, at n = 512 and at 4,096
LEAST_QUERIES = 16  # at a time, however many weights they have


def attend(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None, p: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(d_h)) V, with dropout of probability p on the weights.

    Args:
        queries: (B, h, n, d_h).
        keys, values: (B, h, m, d_h).
        attn_mask: boolean, broadcast to (B, h, n, m), True where a query attends to a key; None for everywhere. The
            result of a query without any key is finite and otherwise free.

    Returns:
        (B, h, n, d_h).
    """
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if p == 0 or not is_slow(queries):
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask, p)
    return _DropoutAttention.apply(queries, keys, values, attn_mask, p)


class _DropoutAttention(torch.autograd.Function):
    """``attend`` on the CPU. Both passes draw the same masks, from one seed.

    Scores, weights and sums are at least in float32, under autocast too: bfloat16 rounds a score near 20 by up to 0.06,
    and its weight changes by 6 %. Queries, keys and values may differ in precision; the result has that of the queries.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
        ctx.p, ctx.seed = p, int(torch.randint(2**62, ()))
        out = queries.new_empty(queries.transpose(1, 2).shape).transpose(1, 2)  # so that heads join without a copy
        scaled_keys, scaled_values = _scaled(queries, keys, values, p)
        for rows, some, weights, kept in _weights(queries, scaled_keys, attn_mask, p, ctx.seed):
            out[rows, :, some] = weights.mul_(kept) @ scaled_values[rows]
        ctx.save_for_backward(queries, keys, values, attn_mask, out)
        return out

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attn_mask, out = ctx.saved_tensors
        scaled_keys, scaled_values = _scaled(queries, keys, values, ctx.p)
        grad_queries = torch.empty_like(queries)
        grad_keys, grad_values = torch.zeros_like(scaled_keys), torch.zeros_like(scaled_values)
        for rows, some, weights, kept in _weights(queries, scaled_keys, attn_mask, ctx.p, ctx.seed):
            some_queries, some_grad = (part[rows, :, some].to(weights.dtype) for part in (queries, grad))
            dropped = weights * kept
            grad_scores = (some_grad @ scaled_values[rows].transpose(2, 3)).mul_(dropped)
            # FlashAttention's D; softmax subtracts it.
            along_out = (some_grad * out[rows, :, some]).sum(-1, keepdim=True)
            grad_scores.addcmul_(weights, along_out, value=-1)
            grad_queries[rows, :, some] = grad_scores @ scaled_keys[rows]
            grad_keys[rows] += grad_scores.transpose(2, 3) @ some_queries
            grad_values[rows] += dropped.transpose(2, 3) @ some_grad
        grad_keys, grad_values = _scaled(queries, grad_keys, grad_values, ctx.p)
        return grad_queries, grad_keys.to(keys.dtype), grad_values.to(values.dtype), None, None


def _scaled(queries: Tensor, keys: Tensor, values: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Keys / sqrt(d_h) and values / (1 - p), or their gradients, in the precision that attention is computed in."""
    precision = torch.promote_types(queries.dtype, torch.float32)
    return keys.to(precision) * queries.size(-1) ** -0.5, values.to(precision) * scale(p)


def _weights(
    queries: Tensor, keys: Tensor, attn_mask: Tensor | None, p: float, seed: int
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Rows of the batch and queries, some at a time: their softmax of Q K^T, and 1 for weights that are kept, else 0.

    As many whole rows as ``WEIGHTS`` allows, or else some queries of one: a gradient of keys is then a sum of few
    parts. In the precision of the keys, which are scaled.
    """
    generator = torch.Generator().manual_seed(seed)
    batch, heads, length = queries.shape[:3]
    size = max(1, WEIGHTS // (heads * length * keys.size(2)))
    step = max(LEAST_QUERIES, WEIGHTS // (size * heads * keys.size(2)))
    for first, start in itertools.product(range(0, batch, size), range(0, length, step)):
        rows, some = slice(first, first + size), slice(start, start + step)
        scores = queries[rows, :, some].to(keys.dtype) @ keys[rows].transpose(2, 3)
        if attn_mask is not None:
            own = attn_mask if attn_mask.size(0) == 1 else attn_mask[rows]
            own = own if own.size(2) == 1 else own[:, :, some]
            scores.masked_fill_(~own, torch.finfo(scores.dtype).min)  # minus infinity alone in a row would give nan
        yield rows, some, scores.softmax(-1), draw_mask(scores.shape, p, generator).to(scores.dtype)
