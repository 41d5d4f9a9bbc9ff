"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768, eq. 7).

    head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / sqrt(d_h)) . F_i V W_i^V

Dimensions: B batch, n sequence length, k projected length, d embedding, h heads, d_h = d / h.

Keys and values are projected along the sequence before the bias is added, K = W_k (E X) + b_k, as the authors' code
does (fairseq ``examples/linformer``): E (W_k X + b_k) differs by the bias alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, AttentionConfig, register_attention

SHARINGS = ("none", "headwise", "key-value", "layerwise")

NOISE = 0.002  # standard deviation of the noise on the segment means: enough to tell the rows of E and F apart


class SequenceProjection(nn.Module):
    """E or F of the paper: a learned linear map over the sequence, from n positions to k rows.

    ``weight`` is (k, n), or (h, k, n) with one matrix a head. It starts as the means of k equal segments of the n
    positions, plus noise: row j averages the positions floor(j n / k) to ceil((j + 1) n / k), as adaptive pooling
    does. From there the model learns (README, "Measured", has the figures).
    A shorter sequence uses the first columns, so positions keep their columns whatever stands after them.

    Args:
        max_positions: n, the longest sequence.
        projected_length: k, from 1 to n.
        num_heads: h for a matrix a head, None for one that all heads share.
        frozen: the weight is not trained.
    """

    def __init__(self, max_positions: int, projected_length: int, num_heads: int | None = None, frozen: bool = False):
        super().__init__()
        means = F.adaptive_avg_pool1d(torch.eye(max_positions), projected_length).T  # (k, n)
        shape = means.shape if num_heads is None else (num_heads, *means.shape)
        self.weight = nn.Parameter(means + NOISE * torch.randn(shape), requires_grad=not frozen)

    def forward(self, x: Tensor) -> Tensor:
        """(B, n, d) -> (B, k, d), or with a matrix a head (B, 1, n, d) or (B, h, n, d_h) -> (B, h, k, ...)."""
        return self.weight[..., : x.size(-2)] @ x


@register_attention("linformer")
class LinformerAttention(Attention):
    """Attention over k projected positions instead of n: time and memory are O(n k) instead of O(n^2).

    Cost a layer in multiplications, with sharing over keys and values: B (2 n d^2 + 3 n k d + 2 k d^2), where softmax
    attention takes B (4 n d^2 + 2 n^2 d).

    Args:
        embed_dim, num_heads, dropout: as in ``Attention``.
        key_projection: E.
        value_projection: F; the same module as E where keys and values share one.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float,
        key_projection: SequenceProjection,
        value_projection: SequenceProjection,
    ):
        super().__init__(embed_dim, num_heads, dropout)
        self.key_projection = key_projection
        self.value_projection = value_projection

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list[Attention]:
        """One attention a layer; ``sharing`` says how many matrices there are for L layers of h heads.

        ======== ========================================== ============
        sharing  E and F                                    matrices
        ======== ========================================== ============
        none     one E and one F a head                     2 h L
        headwise one E and one F a layer                    2 L
        key-value one E = F a layer                         L
        layerwise one E = F for the whole model             1
        ======== ========================================== ============
        """

        def projection() -> SequenceProjection:
            heads = config.encoder_attention_heads if config.sharing == "none" else None
            return SequenceProjection(config.max_positions, config.projected_length, heads, config.freeze_projection)

        shared = projection() if config.sharing == "layerwise" else None
        layers: list[Attention] = []
        for _ in range(config.encoder_layers):
            key_projection = shared or projection()
            value_projection = projection() if config.sharing in ("none", "headwise") else key_projection
            layers.append(
                cls(
                    config.encoder_embed_dim,
                    config.encoder_attention_heads,
                    config.attention_dropout,
                    key_projection,
                    value_projection,
                )
            )
        return layers

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        # A zero row of X adds nothing to E X: this is all that padding needs, for any number of padded positions.
        visible = x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        if self.embedding_first(x.size(1)):
            keys = self._embedding_first(visible, self.key_projection, self.k_proj)
            values = self._embedding_first(visible, self.value_projection, self.v_proj)
        elif self.key_projection.weight.dim() == 3:
            keys = self._sequence_first_per_head(visible, self.key_projection, self.k_proj)
            values = self._sequence_first_per_head(visible, self.value_projection, self.v_proj)
        else:
            compressed = self.key_projection(visible)  # (B, n, d) -> (B, k, d)
            keys = self.split_heads(self.k_proj(compressed))  # (B, h, k, d_h)
            if self.value_projection is not self.key_projection:
                compressed = self.value_projection(visible)
            values = self.split_heads(self.v_proj(compressed))
        return self.softmax_attention(self.split_heads(self.q_proj(x)), keys, values)

    def embedding_first(self, length: int) -> bool:
        """Whether E (X W_k^T) takes fewer multiplications than (E X) W_k^T, for n = length, keys and values together.

        It does for sequences shorter than about k, and for a matrix a head, where X is compressed h times.
        """
        n, k, d = length, self.key_projection.weight.size(-2), self.embed_dim
        if self.key_projection.weight.dim() == 3:
            compressions = 2 * self.num_heads
        else:
            compressions = 1 if self.value_projection is self.key_projection else 2
        return 2 * n * d + 2 * k * n < compressions * k * n + 2 * k * d  # each side times d

    def _embedding_first(self, x: Tensor, projection: SequenceProjection, linear: nn.Linear) -> Tensor:
        """(B, n, d) -> (B, h, k, d_h) by E (X W^T) + b."""
        bias = linear.bias.view(self.num_heads, 1, self.head_dim)
        return projection(self.split_heads(F.linear(x, linear.weight))) + bias

    def _sequence_first_per_head(self, x: Tensor, projection: SequenceProjection, linear: nn.Linear) -> Tensor:
        """(B, n, d) -> (B, h, k, d_h) by (E_i X) W_i^T + b_i for head i."""
        weight = linear.weight.unflatten(0, (self.num_heads, self.head_dim))  # (d, d) -> (h, d_h, d)
        bias = linear.bias.view(self.num_heads, 1, self.head_dim)
        return projection(x.unsqueeze(1)) @ weight.transpose(1, 2) + bias  # (B, h, k, d) @ (h, d, d_h)
