"""Relative positions: the distance of a query and a key, used in attention instead of learned embeddings.

    rotary  q_i . k_j becomes (R_i q_i) . (R_j k_j), where R_p rotates each of t / 2 pairs of a head's dimensions, m-th
            first, by the angle p base^(-2 m / t): it depends on i - j alone (RoFormer, Su et al. 2021, arXiv
            2104.09864, eq. 34). A pair is dimensions m and m + t / 2 ("rotate_half", as in transformers' LLaMA and
            ModernBERT), t = rotary_share d_h; the other dimensions are unrotated, as in GPT-NeoX.
    alibi   q_i . k_j / sqrt(d_h) becomes that minus slope_h |i - j| (Press et al. 2021, arXiv 2108.12409, section 3;
            symmetric, as attention is bidirectional). Slopes are 2^(-8 a / h), a from 1 on; if h is no power of two
            those of the largest power p below, then every other one of 2 p, as in the authors' code.

Positions count from 0. A key without a position, such as a mean of many, is scored by content alone, by
``Attention.zero_rotary_dims`` or without bias. Neither kind has parameters, and both allow any length.

Dimensions: B batch, n sequence length, m keys, d embedding, h heads, d_h = d / h, t rotary dimensions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import check
from .options import AttentionConfig

POSITIONS = ("learned", "rotary", "alibi")
HIDDEN = torch.finfo(torch.bfloat16).min  # the score of a hidden key: finite, as minus infinity alone would give nan


def rotate(x: Tensor, head_dim: int, rotary_dim: int, base: float) -> Tensor:
    """Rotate queries or keys of the positions 0 … n - 1, at least in float32: (B, n, d) or (B, h, n, d_h)."""
    heads, half = x.unflatten(-1, (-1, head_dim)), rotary_dim // 2
    exact = torch.promote_types(x.dtype, torch.float32)
    position = torch.arange(x.size(-2), device=x.device, dtype=exact)
    pair = torch.arange(half, device=x.device, dtype=exact)
    frequencies = 1 / base ** (pair / half)  # as transformers rounds them
    angles = position[:, None, None] * frequencies  # (n, 1, t / 2)
    cos, sin = angles.cos(), angles.sin()
    first, second = heads[..., :half], heads[..., half:rotary_dim]
    parts = [(first * cos - second * sin).to(x.dtype), (second * cos + first * sin).to(x.dtype)]
    if rotary_dim < head_dim:
        parts.append(heads[..., rotary_dim:])
    return torch.cat(parts, dim=-1).flatten(-2)


def add_alibi(attn_mask: Tensor | None, heads: int, queries_at: Tensor, keys_at: Tensor, unbiased: int = 0) -> Tensor:
    """Return ALiBi's bias, and ``HIDDEN`` where a boolean mask is False.

    Args:
        attn_mask: broadcasts with (..., h, n, unbiased + m), True where a query attends to a key; None for all.
        heads: h.
        queries_at: (n,), or (..., h or 1, n): the position of each query.
        keys_at: (m,), or (..., h or 1, m): the position of each key.
        unbiased: the number of keys before these that have no position and no bias.

    Returns:
        (..., h, n, unbiased + m), in float32.
    """
    distance = (queries_at.float().unsqueeze(-1) - keys_at.float().unsqueeze(-2)).abs()
    bias = distance * -alibi_slopes(heads, distance.device)[:, None, None]
    bias = F.pad(bias, (unbiased, 0)) if unbiased else bias
    return bias if attn_mask is None else bias.masked_fill(~attn_mask, HIDDEN)


def bias_in_precision(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias of scores in another type, with hidden keys finite in float16, too."""
    return (bias.clamp(min=torch.finfo(dtype).min) if dtype == torch.float16 else bias).to(dtype)


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


def check_rotary_dims(config: AttentionConfig) -> None:
    """Reject a share of rotary dimensions that is no even number of them."""
    size, dimensions = config.encoder_embed_dim // config.encoder_attention_heads, rotary_dimensions(config)
    even = abs(config.rotary_share * size - dimensions) < 1e-3 and dimensions % 2 == 0 and dimensions > 0
    check("rotary_share", config.rotary_share, even, f"an even number of d_h={size} dimensions")


def check_unrotated_dims(config: AttentionConfig) -> None:
    """Reject rotating all dimensions of a head if the unrotated ones score the keys without a position."""
    allowed = "below 1: unrotated dimensions score the keys that have no position"
    check("rotary_share", config.rotary_share, config.rotary_share < 1, allowed)
