"""Full attention for the first token, by content alone.

    softmax((q W_k) X^T / sqrt(d_h)) X W_v

With one query it is cheaper to apply the key and value maps on the query's side. Cost: B n h d each.

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention
from .linear_maps import is_unmodified_linear, per_head_params
from .value_residual import mix_values


def attend_from_first(
    attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Tensor:
    """Attend from the first token to all: (B, n, d) -> (B, h, 1, d_h).

    q K^T is (q W_k) X^T plus a constant, which softmax cancels; P V is (P X) W_v + b.
    """
    queries = attention.split_heads(attention.zero_rotary_dims(attention.q_proj(x[:, :1]))) * attention.head_dim**-0.5
    if is_unmodified_linear(attention.k_proj):
        weight, _ = per_head_params(attention.k_proj, attention.num_heads)
        scores = (queries @ weight).squeeze(2) @ x.transpose(1, 2)  # (B, h, d) (B, d, n)
    else:
        scores = (queries @ attention.split_heads(attention.k_proj(x)).transpose(2, 3)).squeeze(2)
    if padding_mask is not None:
        scores = scores.masked_fill(padding_mask.unsqueeze(1), torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(-1), attention.dropout, attention.training)  # P, (B, h, n)
    if is_unmodified_linear(attention.v_proj):
        weight, bias = per_head_params(attention.v_proj, attention.num_heads)
        values = (weights @ x).unsqueeze(2) @ weight.transpose(1, 2)  # (B, h, 1, d) (h, d, d_h)
        values = values + weights.sum(-1)[..., None, None] * bias
    else:
        values = weights.unsqueeze(2) @ attention.split_heads(attention.v_proj(x))
    if first_values is None:
        return values
    first = weights.unsqueeze(2) @ attention.split_heads(first_values)
    return mix_values(values, first, attention.value_mix)
