"""Efficient attention with linear complexities (Shen et al. 2018, arXiv 1812.01243, section 3.2).

    head = softmax over features(Q) . (softmax over positions(K)^T V)

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 / h) time besides the linear maps, O(B n d) memory.

Each of the d_h key features is one global attention map over the positions: its weights sum the values to one context
vector, and a query mixes the d_h context vectors. The rows of the product of both softmaxes sum to 1, as in softmax
attention, but the product does not approximate it. As in the authors' code (cmsflash/efficient-attention), neither
softmax is scaled by sqrt(d_h). Dropout, which the paper does not mention, applies to the softmax over positions, the
attention weights of the method.
"""

import torch
from torch import Tensor

from .base import Attention, register_attention
from .dropout import dropout


@register_attention("efficient")
class EfficientAttention(Attention):
    """Attention of every query to d_h context vectors, each a weighted sum of the values."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        queries, keys, values = map(self.split_heads, self.project(x, first_values))
        if padding_mask is not None:
            hidden = padding_mask[:, None, :, None]  # (B, n) -> (B, 1, n, 1)
            keys = keys.masked_fill(hidden, torch.finfo(keys.dtype).min)
        weights = dropout(keys.softmax(dim=2), self.dropout, self.training)  # over positions
        context = weights.transpose(2, 3) @ values  # (B, h, d_h, n) @ (B, h, n, d_h) -> (B, h, d_h, d_h)
        heads = queries.softmax(dim=3) @ context  # over features; (B, h, n, d_h) @ (B, h, d_h, d_h) -> (B, h, n, d_h)
        return self.join_heads(heads)
