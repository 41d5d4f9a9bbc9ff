"""Attention on the CPU, some queries at a time: with dropout on its weights, or with products in bfloat16.

PyTorch's fused attention has no dropout on the CPU, and without it several tensors of n x m weights are kept for the
backward pass. Its products in bfloat16 are as slow as those in float32 on a processor with AVX512_BF16. Here attention
processes q queries at a time and recomputes their weights in the backward pass, as FlashAttention does (Dao et al.
2022, arXiv 2205.14135, section 3.1).

Dimensions: B batch, n queries, q queries at a time, m keys, h heads, d_h = d / h.
Cost: O(B h n m d_h) time, twice the scores in training; O(B h q m) memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..precision import bfloat16_instructions
from .dropout import draw_mask, runs_eagerly_on_cpu, scale
from .positions import bias_in_precision

WEIGHTS = 2**20  # attention weights at a time; fewer or more were slower, at n = 512 and at 4,096
MIN_QUERIES = 64  # at a time, however many weights they have
# Without dropout, PyTorch's kernel is faster for more keys, or smaller heads (AVX512_BF16, torch 2.13).
MAX_KEYS, MIN_HEAD_DIM = 512, 32
# PyTorch's kernel takes 1.4 to 2.1 times as long in bfloat16 as in float32 for smaller heads, forward and backward
# (d_h 16, 32, 48; AVX512_BF16, torch 2.13).
MIN_BFLOAT16_HEAD_DIM = 64


def attend_on_cpu(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
    """Compute ``Attention.attend`` on the CPU in the fastest way, with dropout of probability p on the weights."""
    few_keys = keys.size(2) <= MAX_KEYS and keys.size(3) >= MIN_HEAD_DIM
    if runs_eagerly_on_cpu(queries) and (p > 0 or (few_keys and _product_type(queries) == torch.bfloat16)):
        return attend_in_chunks(queries, keys, values, attn_mask, p)
    exact = queries.dtype == torch.bfloat16 and queries.size(3) < MIN_BFLOAT16_HEAD_DIM
    dtype = torch.float32 if exact else queries.dtype
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = bias_in_precision(attn_mask, dtype)
    with torch.autocast("cpu", enabled=False):
        heads = F.scaled_dot_product_attention(queries.to(dtype), keys.to(dtype), values.to(dtype), attn_mask, p)
    return heads.to(queries.dtype)


def attend_in_chunks(queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
    """Compute ``Attention.attend`` some queries at a time; a mask of numbers is finite."""
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    return _ChunkedAttention.apply(queries, keys, values, attn_mask, p)


def _product_type(queries: Tensor) -> torch.dtype:
    """Return the type of the products: bfloat16 only where the processor has instructions for it."""
    if queries.dtype == torch.bfloat16 and bfloat16_instructions(on_gpu=False):
        return torch.bfloat16
    return torch.promote_types(queries.dtype, torch.float32)


class _ChunkedAttention(torch.autograd.Function):
    """Attention whose backward pass draws the dropout masks of the forward pass again, from one seed.

    In bfloat16, scores and weights are rounded to bfloat16 between the products, and sums are in float32. Keys are
    centred first, which changes no weight: what all keys have in common would only enlarge scores and their rounding
    (as in SageAttention, Zhang et al. 2024, arXiv 2410.02367). Other types compute all in float32 at least. Queries,
    keys and values may differ in type; the result has that of the queries.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float) -> Tensor:
        ctx.p, ctx.seed = p, int(torch.randint(2**62, ())) if p > 0 else 0
        out = queries.new_empty(queries.transpose(1, 2).shape).transpose(1, 2)  # so that heads join without a copy
        for chunk in _chunks(queries, keys, values, attn_mask, p, ctx.seed):
            out[chunk.sequences, :, chunk.positions] = chunk.dropped(chunk.weights) @ chunk.values
        ctx.save_for_backward(queries, keys, values, attn_mask)
        return out

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attn_mask = ctx.saved_tensors
        grad_queries = torch.empty_like(queries)
        sum_type = torch.promote_types(queries.dtype, torch.float32)
        grad_keys, grad_values = (torch.zeros_like(x, dtype=sum_type) for x in (keys, values))
        for chunk in _chunks(queries, keys, values, attn_mask, ctx.p, ctx.seed):
            sequences, positions, weights = chunk.sequences, chunk.positions, chunk.weights
            chunk_queries, chunk_grad = (x[sequences, :, positions].to(weights.dtype) for x in (queries, grad))
            grad_values[sequences] += chunk.dropped(weights).transpose(2, 3) @ chunk_grad
            grad_weights = chunk.dropped(chunk_grad @ chunk.values.transpose(2, 3))
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_queries[sequences, :, positions] = grad_scores @ chunk.keys
            grad_keys[sequences] += grad_scores.transpose(2, 3) @ chunk_queries
        grad_keys = grad_keys.mul_(queries.size(-1) ** -0.5).to(keys.dtype)
        return grad_queries, grad_keys, grad_values.mul_(scale(ctx.p)).to(values.dtype), None, None


class _Chunk(NamedTuple):
    """Operands of the attention of some queries of some sequences, in the type of the products.

    Attributes:
        sequences, positions: slices of the batch and of the queries.
        keys, values: K / sqrt(d_h) and V / (1 - p) of these sequences.
        weights: the softmax of the scores.
        keep_mask: 0 for weights that dropout zeroes, else 1; None without dropout.
    """

    sequences: slice
    positions: slice
    keys: Tensor
    values: Tensor
    weights: Tensor
    keep_mask: Tensor | None

    def dropped(self, weights: Tensor) -> Tensor:
        return weights if self.keep_mask is None else weights * self.keep_mask


def _chunks(
    queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None, p: float, seed: int
) -> Iterator[_Chunk]:
    """Yield the attention chunk by chunk.

    A chunk is as many whole sequences as ``WEIGHTS`` allows, or else some queries of one: the gradient of keys is then
    a sum of few chunks.
    """
    generator = torch.Generator().manual_seed(seed)
    product_type = _product_type(queries)
    sum_type = torch.promote_types(product_type, torch.float32)
    batch, heads, length, size = queries.shape
    count = max(1, WEIGHTS // (heads * length * keys.size(2)))
    step = max(MIN_QUERIES, WEIGHTS // (count * heads * keys.size(2)))
    for first in range(0, batch, count):
        sequences = slice(first, first + count)
        # Of these sequences alone: the keys of query blocks together are several times the sequence.
        chunk_keys = keys[sequences].to(sum_type)
        if product_type == torch.bfloat16:
            chunk_keys = chunk_keys - chunk_keys.mean(2, keepdim=True)
        chunk_keys = (chunk_keys * size**-0.5).to(product_type)
        chunk_values = (values[sequences].to(sum_type) * scale(p)).to(product_type)
        for start in range(0, length, step):
            positions = slice(start, start + step)
            scores = queries[sequences, :, positions].to(product_type) @ chunk_keys.transpose(2, 3)
            if attn_mask is not None:
                mask = attn_mask if attn_mask.size(0) == 1 else attn_mask[sequences]
                mask = mask if mask.size(2) == 1 else mask[:, :, positions]
                lowest = torch.finfo(product_type).min  # a query with minus infinity alone would give nan
                scores = scores.masked_fill_(~mask, lowest) if mask.dtype == torch.bool else scores + mask
            keep_mask = draw_mask(scores.shape, p, generator).to(product_type) if p > 0 else None
            weights = scores.softmax(-1).to(product_type)
            yield _Chunk(sequences, positions, chunk_keys, chunk_values, weights, keep_mask)
