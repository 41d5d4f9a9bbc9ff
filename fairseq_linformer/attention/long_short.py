"""Long-Short Transformer, bidirectional: a sliding window and a dynamic projection under one softmax (Zhu et al. 2021,
arXiv 2107.02192, section 3).

    P_i    = softmax over positions(X W_i^P), (n, r)
    head_i = softmax(Q_i [LN_G(P_i^T K_i); LN_L(K_i)]^T / sqrt(d_h)) [LN_G(P_i^T V_i); LN_L(V_i)]

Of LN_L(K_i) and LN_L(V_i) a position sees its own segment of w positions and w / 2 on either side of the segment. As
in the authors' code (NVIDIA/transformer-ls, ``lra``) the K_i and V_i under P_i^T are LN_L's too, and LN_L and LN_G
(DualLN) normalise over all d features, each keys and values alike. Their separate path for a class token is left out.

Dimensions: B batch, n sequence length, w window, e = w / 2 positions on a side, s = ceil(n / w) segments, r rank,
m = r + w + 2 e keys, d embedding, h heads, d_h = d / h.
Cost a layer: O(B n d (d + w + h r)) time; memory O(B n (d + d r / w + h (w + r))).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, AttentionConfig, Options, check, option, register_attention
from .blocks import block_size, into_blocks, leading, with_neighbours


@dataclass
class LongShortOptions(Options):
    """The paper has w = 8 and r = 32 on the Long Range Arena, w = 512 and r = 1 in its language models."""

    window: int = option(128, "w: positions of a segment, which also sees w / 2 on either side")
    rank: int = option(32, "r: summaries of the whole sequence, a head, that every position sees")

    SMALL = ({"window": 4, "rank": 3}, {"window": 1, "rank": 1}, {"window": 7, "rank": 2})

    def validate(self, config: AttentionConfig, prefix: str) -> None:
        check(prefix + "window", self.window, self.window >= 1, "at least 1")
        check(prefix + "rank", self.rank, self.rank >= 1, "at least 1")


@register_attention("long-short", LongShortOptions)
class LongShortAttention(Attention):
    """Attention to the segments nearby and to r summaries of the sequence, which weigh its positions by content.

    Args:
        embed_dim, num_heads, dropout: as in ``Attention``.
        window: w.
        rank: r.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float, window: int, rank: int):
        super().__init__(embed_dim, num_heads, dropout)
        self.window = window
        self.rank = rank
        # W^P, without the authors' bias, which the softmax over positions takes out again.
        self.dynamic_projection = nn.Linear(embed_dim, num_heads * rank, bias=False)
        self.local_norm = nn.LayerNorm(embed_dim)  # LN_L
        self.global_norm = nn.LayerNorm(embed_dim)  # LN_G

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        real = self.real_positions(x, padding_mask)
        window = block_size(self.window, x.size(1))
        projection = self.projection(x, real)
        keys, values = (self.far_and_near(project(x), projection, window) for project in (self.k_proj, self.v_proj))
        visible = F.pad(self.near(real, window), (self.rank, 0), value=True)  # (B, s, m)
        queries = into_blocks(self.q_proj(x), window).flatten(0, 1)  # (B s, w, d): a segment attends as a row does
        out = self.softmax_attention(self.split_heads(queries), keys, values, visible.flatten(0, 1)[:, None, None, :])
        return leading(out.flatten(0, 1).unflatten(0, (x.size(0), -1)), x.size(1), dim=1)  # (B s, w, d) -> (B, n, d)

    def projection(self, x: Tensor, real: Tensor) -> Tensor:
        """P: (B, n, d) and (B, n), True where a position is real, to (B, h, r, n), which sum to 1 over positions."""
        scores = self.dynamic_projection(x).unflatten(-1, (self.num_heads, self.rank)).permute(0, 2, 3, 1)
        return scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min).softmax(-1)

    def far_and_near(self, rows: Tensor, projection: Tensor, window: int) -> Tensor:
        """The keys, or the values, that each segment sees: (B, n, d) -> (B s, h, m, d_h), the r summaries first."""
        rows = self.local_norm(rows)
        far = projection @ self.split_heads(rows)  # (B, h, r, n) (B, h, n, d_h)
        far = self.global_norm(far.transpose(1, 2).flatten(2)).unsqueeze(1)  # (B, h, r, d_h) -> (B, 1, r, d)
        near = self.near(rows, window)
        both = torch.cat([far.expand(-1, near.size(1), -1, -1), near], dim=2)  # (B, s, m, d)
        return self.split_heads(both.flatten(0, 1))

    @staticmethod
    def near(x: Tensor, window: int) -> Tensor:
        """(B, n, ...) -> (B, s, w + 2 e, ...): each segment and what is beside it, zeros (False) beyond the ends."""
        beside = max(1, window // 2)  # e: 1 beside w = 1 too, as the authors have it
        return with_neighbours(into_blocks(x, window))[:, :, window - beside : 2 * window + beside]
