"""Revisited Linformer: linear attention without n by k weights (Verma 2021, arXiv 2101.10277).

    head_i = softmax_features(Q_i / sqrt(d_h)) . [ softmax_rows((E_i K_i)^T / sqrt(d_h)) . F_i V_i ]

The first softmax runs over the d_h features of a position, the second over the k projected keys of a feature. The
bracket is (d_h, d_h), so attention takes B (n + k) d d_h multiplications, Linformer's 2 B n k d: its n term does not
depend on k. E X and F X still take B n k d each for learned matrices, as in Linformer.

Dimensions: B batch, n sequence length, k projected length, m = k projected keys, d embedding, h heads, d_h = d / h.
Memory besides E and F: O(B n d).

Keys, values, E and F, their sharing and their initialisation are Linformer's: see ``ProjectedAttention``. With k = n
and E = F = I this is Shen et al.'s efficient attention (arXiv 1812.01243) with queries and keys scaled.
"""

import torch
from torch import Tensor

from .base import register_attention
from .dropout import dropout
from .linformer import ProjectedAttention


@register_attention("revisited-linformer")
class RevisitedLinformerAttention(ProjectedAttention):
    """Attention of every feature of a head to the projected keys; every position mixes the d_h features.

    Attention dropout applies to the weights of the projected keys, (d_h, m) per head.
    """

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        keys, values = self.keys_and_values(x, padding_mask, first_values)  # (B, h, m, d_h) each
        scale, attended = self.head_dim**-0.5, self.key_projection.attended_rows(padding_mask)
        scores = scale * keys.transpose(2, 3)  # (B, h, m, d_h) -> (B, h, d_h, m)
        if attended is not None:
            hidden = ~attended[:, None, None, :]  # (B, m) -> (B, 1, 1, m)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = dropout(scores.softmax(-1), self.dropout, self.training)
        mixed = weights @ values  # (B, h, d_h, d_h): right to left, so that n and k never multiply
        queries = (scale * self.split_heads(self.q_proj(x))).softmax(-1)
        return self.join_heads(queries @ mixed)
