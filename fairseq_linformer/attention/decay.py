"""Linear attention to both sides whose weights decay with the distance, in chunks: what ``lion.py`` computes with.

    o_i = sum_{j<i} (q_i . k_j) exp(l_ij) v_j + e^c (q_i . k_i) v_i + sum_{j>i} (q_i . k_j) exp(r_ij) v_j
    l_ij = w_j + sum_{j<p<i} a_p,    r_ij = w'_j + sum_{i<p<j} a'_p,    a <= 0 and a' <= 0 the logarithms of decays

The matrix of these weights is quasiseparable (Hwang et al. 2024, arXiv 2407.09941). Within a chunk it is
formed. Other chunks reach a query by sums over them, of k_j v_j^T, one for each side.

Every exponent is a sum of a between two positions of one chunk, between one and the edge of its chunk, or of whole
chunks between two. So none is above the largest w, however long the text, and no sum of the whole text is taken whose
rounding would be large beside its differences.

Dimensions: B batch, n sequence length, b chunk, N = ceil(n / b) chunks, h heads, e features of queries and keys, m of
values, s = ceil(log2 N) steps.
Cost: O(B h n b (e + m)) time within chunks and O(B h n e m (1 + s / b)) between them, and memory for
O(B h n (b + s e m / b)) numbers.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import block_size, into_blocks, narrow_prefix, out_of_blocks


class Decay(NamedTuple):
    """The decay of weights on one side; each (B, h, n), or (h,) where all positions have the same.

    Attributes:
        log_decay: a_p, at most 0: the logarithm of the share of all that passes a position; 0 where there is padding.
        key: w_j: the logarithm of what a key itself is multiplied by.
    """

    log_decay: Tensor
    key: Tensor


class Exponents(NamedTuple):
    """Exponents of one side, (B h, N or 1, b): the weight of key j for query i of its chunk is exp(query_i + key_j).

    Attributes:
        query: sum of a between a query and the edge of its chunk that the keys come from.
        key: w_j less the sum of a from that edge up to the key and with it.
        total: the sum of a in the chunk, (B h, N or 1, 1).
    """

    query: Tensor
    key: Tensor
    total: Tensor


def decayed_attention(
    queries: Tensor, keys: Tensor, values: Tensor, left: Decay, right: Decay, diagonal: float, chunk: int, longest: int
) -> Tensor:
    """The sums o_i, not normalised.

    Args:
        queries, keys: (B, h, n, e); those of keys are 0 where there is padding.
        values: (B, h, n, m).
        left, right: weights of the keys that stand before a query and after it.
        diagonal: c, the logarithm of what a query's own key is multiplied by; minus infinity leaves it out.
        chunk: b, at most; a text that is shorter is one chunk.
        longest: no text is longer; it bounds s where PyTorch compiles for any length.

    Returns:
        (B, h, n, m).
    """
    rows, length = queries.size(0), queries.size(2)
    size = block_size(chunk, length)
    queries, keys, values = (into_blocks(part.flatten(0, 1), size) for part in (queries, keys, values))
    before, after = _reach(left, rows, size, backward=False), _reach(right, rows, size, backward=True)
    out = (queries @ keys.transpose(2, 3) * _within_chunks(before, after, diagonal)) @ values  # (B h, N, b, m)
    if torch.compiler.is_compiling() or queries.size(1) > 1:
        leaving = torch.cat([keys * (side.total + side.key).exp().unsqueeze(3) for side in (before, after)], dim=3)
        sums = leaving.transpose(2, 3) @ values  # (B h, N, 2 e, m)
        arriving = torch.cat([queries * side.query.exp().unsqueeze(3) for side in (before, after)], dim=3)
        out = out + arriving @ _between_chunks(sums, before.total, after.total, -(-longest // size))
    return out_of_blocks(out, length).unflatten(0, (rows, -1))


def _reach(side: Decay, rows: int, size: int, backward: bool) -> Exponents:
    def chunks(exponents: Tensor) -> Tensor:
        if exponents.dim() == 1:
            return exponents.repeat(rows)[:, None, None].expand(-1, 1, size)
        return into_blocks(exponents.flatten(0, 1), size)

    passing = chunks(side.log_decay)
    upto = passing.flip(2).cumsum(2).flip(2) if backward else passing.cumsum(2)  # from the edge, the position with it
    return Exponents(upto - passing, chunks(side.key) - upto, upto[..., :1] if backward else upto[..., -1:])


def _within_chunks(before: Exponents, after: Exponents, diagonal: float) -> Tensor:
    """The weights between the positions of each chunk: (B h, N or 1, b, b)."""
    place = torch.arange(before.query.size(2), device=before.query.device)
    distance = place.unsqueeze(1) - place
    left, right = (side.query.unsqueeze(3) + side.key.unsqueeze(2) for side in (before, after))
    # Exponents of the side where a key does not stand have no bound: they must go before the exponential.
    return torch.where(distance > 0, left, right).masked_fill_(distance == 0, diagonal).exp_()


def _between_chunks(sums: Tensor, before: Tensor, after: Tensor, most: int) -> Tensor:
    """Sum what reaches each chunk from all chunks before it and, the other half, from all after it.

    Args:
        sums: (B h, N, 2 e, m), what leaves each chunk to the right, and to the left.
        before, after: (B h, N or 1, 1), the sum of a in each chunk, of either side.
        most: chunks, at most.

    Returns:
        (B h, N, 2 e, m).
    """
    number = sums.size(1)
    to_right, to_left = sums.chunk(2, dim=2)
    state = torch.stack([to_right, to_left.flip(1)], dim=2)  # (B h, N, 2, e, m): both sides in one go
    before, after = (total.expand(-1, number, -1) for total in (before, after))
    passing = torch.stack([before, after.flip(1)], dim=2).unsqueeze(4)  # (B h, N, 2, 1, 1)
    for step in range(((most if torch.compiler.is_compiling() else number) - 1).bit_length()):
        # A state holds the sums of 2^step chunks; with that of the chunk so far before it, of twice as many.
        state = state + passing.exp() * _later(state, 2**step)
        passing = passing + _later(passing, 2**step)
    to_right, to_left = _later(state, 1).unbind(2)
    return torch.cat([to_right, to_left.flip(1)], dim=2)


def _later(x: Tensor, by: int) -> Tensor:
    """(B, N, ...), each entry so many places later, zeros before the first."""
    return narrow_prefix(F.pad(x, (0, 0) * (x.dim() - 2) + (by, 0)), x.size(1), dim=1)
