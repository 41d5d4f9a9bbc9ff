"""Bidirectional linear attention whose weights decay with the distance, computed in chunks; ``lion.py`` uses it.

    o_i = sum_{j<i} (q_i . k_j) exp(l_ij) v_j + e^c (q_i . k_i) v_i + sum_{j>i} (q_i . k_j) exp(r_ij) v_j
    l_ij = w_j + sum_{j<p<i} a_p,    r_ij = w'_j + sum_{i<p<j} a'_p,    a <= 0 and a' <= 0 log decays

The matrix of these weights is quasiseparable (Hwang et al. 2024, arXiv 2407.09941). It is materialised within a chunk
only. Other chunks contribute by their sums of k_j v_j^T, one for each side.

Every exponent is a sum of a within one chunk, or over whole chunks. So no exponent exceeds the largest w, whatever the
length, and no difference of two long sums loses precision.

Dimensions: B batch, n sequence length, b chunk, N = ceil(n / b) chunks, h heads, e features of queries and keys, m of
values, s = ceil(log2 N) steps.
Cost: O(B h n b (e + m)) time within chunks and O(B h n e m (1 + s / b)) between them, and memory for O(B h n (b + s e m
/ b)) numbers.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import block_size, into_blocks, narrow_prefix, out_of_blocks


class Decay(NamedTuple):
    """Decay of the weights on one side; each (B, h, n), or (h,) if it is the same at all positions.

    Attributes:
        log_decay: a_p, at most 0: log of the factor by which position p scales all that passes it; 0 at padding.
        key: w_j: log of a key's factor.
    """

    log_decay: Tensor
    key: Tensor


class Exponents(NamedTuple):
    """Exponents of one side, (B h, N or 1, b): key j has the weight exp(query_i + key_j) for query i of its chunk.

    Attributes:
        query: sum of a between a query and the edge of its chunk on the keys' side.
        key: w_j minus the sum of a from that edge to the key, inclusive.
        total: the sum of a in the chunk, (B h, N or 1, 1).
    """

    query: Tensor
    key: Tensor
    total: Tensor


def decayed_attention(
    queries: Tensor, keys: Tensor, values: Tensor, left: Decay, right: Decay, diagonal: float, chunk: int, longest: int
) -> Tensor:
    """Return the unnormalised sums o_i.

    Args:
        queries, keys: (B, h, n, e); keys are 0 at padding.
        values: (B, h, n, m).
        left, right: weights of the keys before a query and after it.
        diagonal: c, log of the factor of a query's key at the same position; minus infinity leaves it out.
        chunk: b, at most; a shorter text is one chunk.
        longest: maximum length of a text; it bounds s while PyTorch compiles for any length.

    Returns:
        (B, h, n, m).
    """
    batch_heads, length = queries.size(0), queries.size(2)
    size = block_size(chunk, length)
    queries, keys, values = (into_blocks(part.flatten(0, 1), size) for part in (queries, keys, values))
    sides = _exponents(left, batch_heads, size, backward=False), _exponents(right, batch_heads, size, backward=True)
    out = (queries @ keys.transpose(2, 3) * _within_chunks(*sides, diagonal)) @ values  # (B h, N, b, m)
    if torch.compiler.is_compiling() or queries.size(1) > 1:
        scaled_keys = torch.cat([keys * (side.total + side.key).exp().unsqueeze(3) for side in sides], dim=3)
        sums = scaled_keys.transpose(2, 3) @ values  # (B h, N, 2 e, m)
        scaled_queries = torch.cat([queries * side.query.exp().unsqueeze(3) for side in sides], dim=3)
        left_total, right_total = (side.total for side in sides)
        out = out + scaled_queries @ _between_chunks(sums, left_total, right_total, -(-longest // size))
    return out_of_blocks(out, length).unflatten(0, (batch_heads, -1))


def _exponents(side: Decay, batch: int, size: int, backward: bool) -> Exponents:
    def chunks(exponents: Tensor) -> Tensor:
        if exponents.dim() == 1:
            return exponents.repeat(batch)[:, None, None].expand(-1, 1, size)
        return into_blocks(exponents.flatten(0, 1), size)

    decay = chunks(side.log_decay)
    sums = decay.flip(2).cumsum(2).flip(2) if backward else decay.cumsum(2)  # from the edge, inclusive
    return Exponents(sums - decay, chunks(side.key) - sums, sums[..., :1] if backward else sums[..., -1:])


def _within_chunks(left: Exponents, right: Exponents, diagonal: float) -> Tensor:
    """Return the weights between the positions of each chunk: (B h, N or 1, b, b)."""
    position = torch.arange(left.query.size(2), device=left.query.device)
    distance = position.unsqueeze(1) - position
    left_sums, right_sums = (side.query.unsqueeze(3) + side.key.unsqueeze(2) for side in (left, right))
    # Exponents of keys on the other side are unbounded: they are replaced before the exponential.
    return torch.where(distance > 0, left_sums, right_sums).masked_fill_(distance == 0, diagonal).exp_()


def _between_chunks(sums: Tensor, left: Tensor, right: Tensor, max_chunks: int) -> Tensor:
    """Sum the contributions of all earlier chunks to each chunk and, in the other half, of all later chunks.

    Args:
        sums: (B h, N, 2 e, m), contributions of each chunk to the right, and to the left.
        left, right: (B h, N or 1, 1), the sum of a in each chunk, of either side.
        max_chunks: maximum number of chunks.

    Returns:
        (B h, N, 2 e, m).
    """
    number = sums.size(1)
    to_right, to_left = sums.chunk(2, dim=2)
    state = torch.stack([to_right, to_left.flip(1)], dim=2)  # (B h, N, 2, e, m): both sides at once
    left, right = (total.expand(-1, number, -1) for total in (left, right))
    decay = torch.stack([left, right.flip(1)], dim=2).unsqueeze(4)  # (B h, N, 2, 1, 1)
    for step in range(((max_chunks if torch.compiler.is_compiling() else number) - 1).bit_length()):
        # A state holds the sums of 2^step chunks; adding the state 2^step chunks earlier doubles their number.
        state = state + decay.exp() * _shift(state, 2**step)
        decay = decay + _shift(decay, 2**step)
    to_right, to_left = _shift(state, 1).unbind(2)
    return torch.cat([to_right, to_left.flip(1)], dim=2)


def _shift(x: Tensor, chunks: int) -> Tensor:
    """Shift the entries of (B, N, ...) to later indices, with zeros before the first."""
    return narrow_prefix(F.pad(x, (0, 0) * (x.dim() - 2) + (chunks, 0)), x.size(1), dim=1)
