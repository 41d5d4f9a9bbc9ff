"""Relative positions: the distance of a query and a key, used in attention instead of learned embeddings.

    rotary  q_i . k_j becomes (R_i q_i) . (R_j k_j), where R_p rotates each of t / 2 pairs of a head's dimensions, m-th
            first, by the angle p base^(-2 m / t): it depends on i - j alone (RoFormer, Su et al. 2021, arXiv
            2104.09864, eq. 34). A pair is dimensions m and m + t / 2 ("rotate_half", as in transformers' LLaMA and
            ModernBERT), t = rotary_share d_h; the other dimensions are unrotated, as in GPT-NeoX.
    alibi   q_i . k_j / sqrt(d_h) becomes that minus slope_h |i - j| (Press et al. 2021, arXiv 2108.12409, section 3;
            symmetric, as attention is bidirectional). Slopes are 2^(-8 a / h), a from 1 on; if h is no power of two
            those of the largest power p below, then every other one of 2 p, as in the authors' code.

Positions count from 0. A key without a position, such as a mean of many, is scored by content alone, by
``zero_rotary_dims`` or without bias. Neither kind has parameters, and both allow any length.

Dimensions: B batch, n sequence length, m keys, d embedding, h heads, d_h = d / h, t rotary dimensions.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .options import AttentionConfig

POSITIONS = ("learned", "rotary", "alibi")
HIDDEN = torch.finfo(torch.bfloat16).min  # the score of a hidden key: finite, as minus infinity alone would give nan


class RelativePositions(nn.Module):
    """Rotary or ALiBi positions of an attention; without rotary ones ``rotated`` is the identity."""

    RELATIVE_POSITIONS: ClassVar[bool] = False  # True for mechanisms that allow relative positions

    num_heads: int
    head_dim: int

    def set_positions(self, config: AttentionConfig) -> None:
        """Read the options."""
        self.rotary_dim = rotary_dimensions(config) if config.positions == "rotary" else 0  # t
        self.rotary_base = config.rotary_base
        self.alibi = config.positions == "alibi"

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate queries or keys of the positions 0 … n - 1, at least in float32: (B, n, d) or (B, h, n, d_h)."""
        if not self.rotary_dim:
            return x
        heads, half = x.unflatten(-1, (-1, self.head_dim)), self.rotary_dim // 2
        exact = torch.promote_types(x.dtype, torch.float32)
        position = torch.arange(x.size(-2), device=x.device, dtype=exact)
        pair = torch.arange(half, device=x.device, dtype=exact)
        frequencies = 1 / self.rotary_base ** (pair / half)  # as transformers rounds them
        angles = position[:, None, None] * frequencies  # (n, 1, t / 2)
        cos, sin = angles.cos(), angles.sin()
        first, second = heads[..., :half], heads[..., half : self.rotary_dim]
        parts = [(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype)]
        if self.rotary_dim < self.head_dim:
            parts.append(heads[..., self.rotary_dim :])
        return torch.cat(parts, dim=-1).flatten(-2)

    def zero_rotary_dims(self, keys: Tensor) -> Tensor:
        """Return keys without a position, (..., d) or (..., d_h), with zeros in the rotary dimensions."""
        if not self.rotary_dim:
            return keys
        dimension = torch.arange(keys.size(-1), device=keys.device) % self.head_dim
        return keys.masked_fill(dimension < self.rotary_dim, 0.0)

    def add_alibi(self, attn_mask: Tensor | None, queries_at: Tensor, keys_at: Tensor, unbiased: int = 0) -> Tensor:
        """Return ALiBi's bias, and ``HIDDEN`` where a boolean mask is False. Only with ``alibi``.

        Args:
            attn_mask: broadcasts with (..., h, n, unbiased + m), True where a query attends to a key; None for all.
            queries_at: (n,), or (..., h or 1, n): the position of each query.
            keys_at: (m,), or (..., h or 1, m): the position of each key.
            unbiased: the number of keys before these that have no position and no bias.

        Returns:
            (..., h, n, unbiased + m), in float32.
        """
        distance = (queries_at.float().unsqueeze(-1) - keys_at.float().unsqueeze(-2)).abs()
        bias = distance * -alibi_slopes(self.num_heads, distance.device)[:, None, None]
        bias = F.pad(bias, (unbiased, 0)) if unbiased else bias
        return bias if attn_mask is None else bias.masked_fill(~attn_mask, HIDDEN)


def rotary_dimensions(config: AttentionConfig) -> int:
    """Return t, the number of rotary dimensions of a head."""
    return round(config.rotary_share * (config.encoder_embed_dim // config.encoder_attention_heads))


def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """Return the slopes, (h,), in float32.

    They are computed in each call on the device, because a copy from the host would make a GPU wait.
    """
    power = 2 ** (heads.bit_length() - 1)  # p, the largest power of 2 that is at most h
    head = torch.arange(heads, device=device, dtype=torch.float32)
    odd = 2 * (head - power) + 1  # numbers of the first, the third, … of 2 p slopes
    return torch.exp2(-8 * torch.where(head < power, (head + 1) / power, odd / (2 * power)))


def is_rotary_base(base: float) -> bool:
    """Return True for a finite number above 1."""
    return 1 < base < float("inf")


def validate_positions(config: AttentionConfig) -> None:
    """Check the options of positions.

    Raises:
        UserError: an option is invalid.
    """
    check("positions", config.positions, config.positions in POSITIONS, f"one of {', '.join(POSITIONS)}")
    base, share = config.rotary_base, config.rotary_share
    check("rotary_base", base, is_rotary_base(base), "a number above 1")
    check("rotary_share", share, 0 < share <= 1, "above 0 and at most 1")
    if config.positions == "rotary":
        size, dimensions = config.encoder_embed_dim // config.encoder_attention_heads, rotary_dimensions(config)
        even = abs(share * size - dimensions) < 1e-3 and dimensions % 2 == 0 and dimensions > 0
        check("rotary_share", share, even, f"an even number of d_h={size} dimensions")


def check_unrotated_dims(config: AttentionConfig) -> None:
    """Reject rotating all dimensions of a head if the unrotated ones score the keys without a position."""
    unrotated = config.positions != "rotary" or config.rotary_share < 1
    allowed = "below 1: unrotated dimensions score the keys that have no position"
    check("rotary_share", config.rotary_share, unrotated, allowed)
