"""Softmax attention of the Transformer (Vaswani et al. 2017, arXiv 1706.03762, eq. 1): the baseline.

    head = softmax(Q K^T / sqrt(d_h)) V

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B n^2 d) time; memory O(B n d) if PyTorch has a fused kernel for the device. ALiBi's bias is
a tensor: O(h n^2), with padding O(B h n^2).
"""

import torch
from torch import Tensor

from .base import Attention, register_attention
from .positions import add_alibi


@register_attention("softmax")
class SoftmaxAttention(Attention):
    """Attention of every position to every position: softmax(Q K^T / sqrt(d_h)) V."""

    RELATIVE_POSITIONS = True

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        attn_mask = None if padding_mask is None else ~padding_mask[:, None, None, :]  # (B, n) -> (B, 1, 1, n)
        if self.alibi:
            position = torch.arange(x.size(1), device=x.device)[None, None]  # a fused kernel's mask has four dimensions
            attn_mask = add_alibi(attn_mask, self.num_heads, position, position)
        queries, keys, values = map(self.split_heads, self.project(x, first_values))
        return self.join_heads(self.attend(queries, keys, values, attn_mask))
