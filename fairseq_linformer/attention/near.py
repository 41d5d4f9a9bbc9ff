"""What Linformer shows of the text as it is: a window beside the projected rows, and every position to the first one.

Dimensions: B batch, n sequence length, m projected rows, w window, e = floor(w / 2) positions on a side (1 where w is
1), f = w + 2 e, N = ceil(n / w) segments, d embedding, h heads, d_h = d / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention
from .blocks import attend_in_blocks, block_size, margins, with_margins


def far_and_near(far: Tensor, positions: Tensor, window: int) -> Tensor:
    """The keys, or values, that each segment sees: m rows (B, h, m, d_h) and (B, n, d) -> (B N, h, m + f, d_h)."""
    near = margins(positions, block_size(window, positions.size(1)))  # (B, N, e or w, d)
    everywhere = far.unsqueeze(1).expand(-1, near[0].size(1), -1, -1, -1)
    # Joined once: each copy is as large as all that the queries see.
    parts = (everywhere, *(own.unflatten(-1, (far.size(1), -1)).transpose(2, 3) for own in near))
    return torch.cat(parts, dim=3).flatten(0, 1)


def attend_far_and_near(
    attention: Attention, queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor | None, real: Tensor, window: int
) -> Tensor:
    """Every segment's queries over the m rows and what is near, under one softmax.

    Args:
        attention: whose heads and dropout.
        queries: (B, n, d).
        keys, values: of ``far_and_near``.
        rows: (B, m), True for the rows that are seen; None for all.
        real: (B, n), True where a position is no padding.
        window: w.

    Returns:
        (B, h, n, d_h).
    """
    size = block_size(window, queries.size(1))
    near = with_margins(real, size)  # (B, N, f)
    far = near.new_ones((queries.size(0), keys.size(2) - near.size(2))) if rows is None else rows
    attn_mask = torch.cat([far.unsqueeze(1).expand(-1, near.size(1), -1), near], dim=2)  # (B, N, m + f)
    return attend_in_blocks(attention, queries, keys, values, attn_mask, size)


def attend_from_first(
    attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Tensor:
    """softmax(q K^T / sqrt(d_h)) V of the first position's query: (B, n, d) -> (B, h, 1, d_h).

    With one query it takes fewer products to move W_k and W_v to either side of X: q K^T is (q W_k) X^T but for a
    constant, which softmax does not see, and P V is (P X) W_v and what P gives of the bias. That is B 2 n h d.
    """
    queries = attention.split_heads(attention.q_proj(x[:, :1])) * attention.head_dim**-0.5
    (key_weight, _), (value_weight, value_bias) = map(attention.of_each_head, (attention.k_proj, attention.v_proj))
    scores = (queries @ key_weight).squeeze(2) @ x.transpose(1, 2)  # (B, h, d) (B, d, n)
    if padding_mask is not None:
        scores = scores.masked_fill(padding_mask.unsqueeze(1), torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(-1), attention.dropout, attention.training)
    values = (weights @ x).unsqueeze(2) @ value_weight.transpose(1, 2)  # (B, h, 1, d) (h, d, d_h)
    values = values + weights.sum(-1)[..., None, None] * value_bias
    if first_values is None:
        return values
    return attention.with_first_values(values, weights.unsqueeze(2) @ attention.split_heads(first_values))
