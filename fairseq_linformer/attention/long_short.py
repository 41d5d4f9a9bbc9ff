"""Long-Short Transformer, bidirectional: a sliding window and a dynamic projection under one softmax.

Zhu et al. 2021, arXiv 2107.02192, section 3:

    P_i    = softmax over positions(X W_i^P), (n, r)
    head_i = softmax(Q_i [LN_G(P_i^T K_i); LN_L(K_i)]^T / sqrt(d_h)) [LN_G(P_i^T V_i); LN_L(V_i)]

A position attends to LN_L(K_i) and LN_L(V_i) of its segment of w positions and of w / 2 positions on either side. As in
the authors' code (NVIDIA/transformer-ls, ``lra``) P_i^T is applied to keys and values after LN_L, and LN_L and LN_G
(DualLN) normalise over all d features, keys and values separately.

Two parts of that code are options. With a class token the first position, ``<s>``, is not part of the sequence. All
other positions also attend to its K_c and V_c, after LN_G. It attends to itself and to their attention output, C,
without dropout on these weights:

    class_i = softmax(q_c [K_c; C_i]^T / sqrt(d_h)) [V_c; C_i]

A depthwise convolution of the values LN_L(V_i) along the sequence, one kernel per head, may be added to C. It starts at
zero, so that it initially changes nothing.

Rotary positions rotate local keys after LN_L. Summaries and the class token have no position: they are scored by
content alone, without ALiBi's bias.

Dimensions: B batch, n sequence length, w window, e = w / 2 positions on a side, s = ceil(n / w) segments, r rank, g = 1
with a class token, else 0, m = g + r + w + 2 e keys, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d (d + w + h r)) time; memory O(B n (d + d r / w + h (w + r))).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, register_attention
from .blocks import attend_in_blocks, block_size, convolution_per_head, half_window, with_margins
from .options import AttentionConfig, Options, check_width, option
from .positions import add_alibi, check_unrotated_dims


@dataclass
class LongShortOptions(Options):
    """Options of ``long-short``.

    The paper has w = 8 and r = 32 on the Long Range Arena, and w = 512 and r = 1 in language models. By default
    there is neither class token nor convolution, as in the authors' code.
    """

    long_short_window: int = option(128, "w: positions of a segment; it attends to w / 2 more on each side", smallest=1)
    long_short_rank: int = option(32, "r: summaries of the sequence that each head attends to", smallest=1)
    long_short_class_token: bool = option(False, "the first position, <s>, attends to all, and all attend to it")
    long_short_conv_width: int = option(
        0, "width (odd) of a depthwise convolution of the values that starts at zero; 0 for none"
    )

    TEST_CASES: ClassVar = (
        {"long_short_window": 4, "long_short_rank": 3},
        {"long_short_window": 1, "long_short_rank": 1},
        {"long_short_window": 7, "long_short_rank": 2},
        {"long_short_window": 3, "long_short_rank": 2, "long_short_class_token": True, "long_short_conv_width": 3},
    )

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        check_width("long_short_conv_width", self.long_short_conv_width)
        if config.positions == "rotary":
            check_unrotated_dims(config)


TokenQKV = tuple[Tensor, Tensor, Tensor]  # query, key and value of one token, (B, 1, d) each


@register_attention("long-short", LongShortOptions)
class LongShortAttention(Attention):
    """Attention to nearby segments and to r summaries of the sequence, whose weights depend on its content."""

    RELATIVE_POSITIONS = True

    def __init__(self, config: AttentionConfig, options: LongShortOptions, layer: int):
        super().__init__(config, options, layer)
        self.window = options.long_short_window
        self.rank = options.long_short_rank
        self.class_token = options.long_short_class_token
        # W^P, without the authors' bias, which the softmax over positions cancels
        self.dynamic_projection = nn.Linear(self.embed_dim, self.num_heads * self.rank, bias=False)
        self.local_norm = nn.LayerNorm(self.embed_dim)  # LN_L
        self.global_norm = nn.LayerNorm(self.embed_dim)  # LN_G
        self.conv = convolution_per_head(self.num_heads, options.long_short_conv_width)
        self.finish_initialisation()

    def finish_initialisation(self) -> None:
        if self.conv is not None:
            nn.init.zeros_(self.conv.weight)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        real = self.real_positions(x, padding_mask)
        token: TokenQKV | None = None
        if self.class_token:
            token = self.project(x[:, :1], None if first_values is None else first_values[:, :1])
            # A padded position at the end, so that a text of one token is not empty.
            x, real = F.pad(x[:, 1:], (0, 0, 0, 1)), F.pad(real[:, 1:], (0, 1))
            first_values = None if first_values is None else F.pad(first_values[:, 1:], (0, 0, 0, 1))
        keys, values = self.local_norm(self.k_proj(x)), self.local_norm(self.values(x, first_values))
        heads = self._attend(x, keys, values, real, token)  # (B, h, n, d_h)
        out = heads
        if self.conv is not None:
            out = out + self.conv(self.split_heads(values.masked_fill(~real.unsqueeze(-1), 0.0)))
        if token is not None:
            out = torch.cat([self._attend_from(token, heads, real), out[:, :, :-1]], dim=2)
        return self.join_heads(out)

    def _attend(self, x: Tensor, keys: Tensor, values: Tensor, real: Tensor, token: TokenQKV | None) -> Tensor:
        """Attend from each segment: x, keys and values (B, n, d) to (B, h, n, d_h)."""
        window = block_size(self.window, x.size(1))
        scores = self.dynamic_projection(x).unflatten(-1, (self.num_heads, self.rank)).permute(0, 2, 3, 1)
        scores = scores.masked_fill(~real[:, None, None, :], torch.finfo(scores.dtype).min)
        projection = scores.softmax(-1)  # P^T, (B, h, r, n)
        _, token_key, token_value = token or (None, None, None)
        summary_keys = self.zero_rotary_dims(self._summarise(keys, projection, token_key))
        keys = self._concat_keys(summary_keys, self.rotated(keys), window)
        values = self._concat_keys(self._summarise(values, projection, token_value), values, window)
        return attend_in_blocks(self, self.rotated(self.q_proj(x)), keys, values, self._attn_mask(real, window), window)

    def _attn_mask(self, real: Tensor, window: int) -> Tensor:
        """Return the attention mask of each segment, or ALiBi's bias: (B, n) -> (B, s, 1, 1, m) or (B, s, h, w, m)."""
        prefix_len = self.rank + int(self.class_token)
        local = with_margins(real, window, half_window(window))
        attn_mask = F.pad(local, (prefix_len, 0), value=True)[:, :, None, None]
        if not self.alibi:
            return attn_mask
        position = torch.arange(local.size(-1), device=real.device)  # from the first position on the left side
        margin = (local.size(-1) - window) // 2
        return add_alibi(attn_mask, self.num_heads, position[margin : margin + window], position, prefix_len)

    def _attend_from(self, token: TokenQKV, heads: Tensor, real: Tensor) -> Tensor:
        """Attend from the class token to itself and the other positions' outputs: (B, h, n, d_h) to (B, h, 1, d_h)."""
        query, key, value = map(self.split_heads, token)
        attn_mask = F.pad(real, (1, 0), value=True)[:, None, None, :]  # (B, 1, 1, 1 + n)
        keys, values = torch.cat([key, heads], dim=2), torch.cat([value, heads], dim=2)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask)

    def _summarise(self, x: Tensor, projection: Tensor, first: Tensor | None) -> Tensor:
        """Concatenate `first`, the key or value of the class token, (B, 1, d), and r summaries of x: (B, g + r, d)."""
        summaries = projection @ self.split_heads(x)  # (B, h, r, n) (B, h, n, d_h)
        summaries = summaries.transpose(1, 2).flatten(2)  # (B, h, r, d_h) -> (B, r, d)
        return self.global_norm(summaries if first is None else torch.cat([first, summaries], dim=1))

    def _concat_keys(self, summaries: Tensor, positions: Tensor, window: int) -> Tensor:
        """Concatenate each segment's keys, or values: (B, g + r, d) and (B, n, d) -> (B s, h, m, d_h)."""
        local = with_margins(positions, window, half_window(window))
        keys = torch.cat([summaries.unsqueeze(1).expand(-1, local.size(1), -1, -1), local], dim=2)  # (B, s, m, d)
        return self.split_heads(keys.flatten(0, 1))
