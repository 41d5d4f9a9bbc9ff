"""Query-key normalisation: each head's queries and keys have one length, but for learned gains, before their product.

    q -> g_q q / sqrt(mean(q^2) + 1e-6),    k -> g_k k / sqrt(mean(k^2) + 1e-6),    q and k the d_h numbers of a head

Scores q . k / sqrt(d_h) are then at most sqrt(d_h) while the gains are 1, as they start, however large W_q and W_k
become. Henry et al. 2020 (arXiv 2010.04245) have unit length and one learned number in place of the gains, Dehghani et
al. 2023 (arXiv 2302.05442, section 2) layer norm. Here it is RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) with
d_h gains that the heads of a layer share, before rotary positions, as in Qwen3 and Gemma 3.

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
"""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from .options import AttentionConfig


class HeadNorm(nn.RMSNorm):
    """The norm of every head by itself: (..., d) to (..., d); its weight is g, (d_h,)."""

    def __init__(self, head_dim: int):
        super().__init__(head_dim, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (-1, self.weight.size(0)))
        # Means are in float32 whatever the type. Under autocast the gains are of another type than x, with which no
        # kernel is fused, and on a GPU the result is in float32.
        normed = F.rms_norm(heads, self.normalized_shape, self.weight.to(x.dtype), self.eps)
        return normed.to(x.dtype).flatten(-2)


class QueryKeyNorm(nn.Module):
    """The queries and keys of an attention, with ``qk_norm`` normalised; without it the norms change nothing.

    It is for mechanisms with a softmax of q . k, or an estimate of one, but for ``rfa``, which normalises by itself.
    """

    TAKES_QK_NORM: ClassVar[bool] = False  # whether a mechanism can have it

    q_proj: nn.Linear
    k_proj: nn.Linear

    def set_qk_norm(self, config: AttentionConfig, input_maps: tuple[str, ...]) -> None:
        """Adds the norms of those of ``q_proj`` and ``k_proj`` that are among `input_maps`."""
        self.qk_norm = config.qk_norm
        self.q_norm, self.k_norm = (
            HeadNorm(config.encoder_embed_dim // config.encoder_attention_heads)
            if config.qk_norm and name in input_maps
            else nn.Identity()
            for name in ("q_proj", "k_proj")
        )

    def queries(self, x: Tensor) -> Tensor:
        """Q = X W_q + b, normalised but not rotated: (B, n, d) -> (B, n, d)."""
        return self.q_norm(self.q_proj(x))

    def keys(self, x: Tensor) -> Tensor:
        """K = X W_k + b, normalised but not rotated: (B, n, d) -> (B, n, d)."""
        return self.k_norm(self.k_proj(x))
