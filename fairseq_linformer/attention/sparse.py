"""Sparse Transformer: factorised attention, strided or fixed (Child et al. 2019, arXiv 1904.10509, section 4).

Position i attends to A1 and A2 under one softmax: section 5.1's merged head, with their union in every layer. The
paper's patterns are causal; here they are bidirectional. l is the stride and c the expressivity:

    strided:  A1 = {j : |i - j| < l}                    A2 = {j : (i - j) mod l = 0}
    fixed:    A1 = {j : floor(j / l) = floor(i / l)}    A2 = {j : l - c (u + 1) <= j mod l < l - c u}

Strided suits periodic data, such as images; for text the paper takes fixed. In it, heads attend to distinct sub-blocks
of length c, which the paper found better than one for all heads (section 4.3): u is the head's sub-block, counted from
the end of a block. As in the authors' code (openai/sparse_attention) head i has u = i mod the number of sub-blocks,
here floor(l / c), as many as fit.

Dimensions: B batch, n sequence length, l stride, R = ceil(n / l) blocks of l positions, c expressivity, m keys, d
embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B n m d) time, O(B n (m h + d)) memory. A position attends to at most m = 3 l + n / l keys
(strided, 2 l of them masked) or l + c n / l (fixed): O(n sqrt n) with l near sqrt n.
"""

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import check
from .base import Attention, register_attention
from .blocks import block_size, into_blocks, out_of_blocks
from .dropout import dropout
from .options import AttentionConfig, Options, option

PATTERNS = ("fixed", "strided")
EXPRESSIVITY = 8


class Part(NamedTuple):
    """Keys and values of a part of the pattern, and the mask of the queries that attend to them."""

    axes: str  # of keys and values, for einsum (``SparseAttention._attend``)
    keys: Tensor
    values: Tensor
    attn_mask: Tensor  # broadcast to (B, R, h, l, keys)


@dataclass
class SparseOptions(Options):
    sparse_pattern: str = option("fixed", f"{' or '.join(PATTERNS)}")
    sparse_stride: int = option(
        0, "l; 0: the root of max_positions, rounded up, but with pattern=fixed at least expressivity"
    )
    sparse_expressivity: int = option(
        EXPRESSIVITY, "c: with pattern=fixed, positions of each block that all positions attend to"
    )

    TEST_CASES: ClassVar = (
        {"sparse_expressivity": 2},
        {"sparse_stride": 6, "sparse_expressivity": 1},
        {"sparse_pattern": "strided"},
    )

    def validate(self, config: AttentionConfig) -> None:
        pattern, stride, c = self.sparse_pattern, self.sparse_stride, self.sparse_expressivity
        check("sparse_pattern", pattern, pattern in PATTERNS, f"one of {', '.join(PATTERNS)}")
        check("sparse_stride", stride, stride >= 0, "at least 1, or 0 for about the root of max_positions")
        if pattern == "strided":
            check("sparse_expressivity", c, c == EXPRESSIVITY, "left out with sparse_pattern=strided")
        elif stride:
            check("sparse_expressivity", c, 1 <= c <= stride, f"from 1 to sparse_stride={stride}")
        check("sparse_expressivity", c, c >= 1, "at least 1")

    def stride_for(self, max_positions: int) -> int:
        """Return l: the configured stride, or one near the root of n."""
        root = isqrt(max_positions - 1) + 1
        return self.sparse_stride or (root if self.sparse_pattern == "strided" else max(root, self.sparse_expressivity))

    def length_defaults(self, max_positions: int) -> dict[str, int]:
        return {"sparse_stride": self.stride_for(max_positions)}


@register_attention("sparse", SparseOptions)
class SparseAttention(Attention):
    """Attention to O(sqrt n) positions; see the module.

    With the sequence written in rows of l positions, A2 is a position's column in the strided pattern, and c columns
    per head in the fixed pattern. The buffer ``sub_blocks`` (h,) has u of each head.
    """

    sub_blocks: Tensor

    def __init__(self, config: AttentionConfig, options: SparseOptions, layer: int):
        super().__init__(config, options, layer)
        self.strided = options.sparse_pattern == "strided"
        self.stride = options.stride_for(config.max_positions)
        self.expressivity = options.sparse_expressivity
        if not self.strided:
            self.register_buffer("sub_blocks", torch.empty(self.num_heads, dtype=torch.int64))
            self.reset_buffers()

    def reset_buffers(self) -> None:
        if not self.strided:
            self.sub_blocks.copy_(torch.arange(self.num_heads) % (self.stride // self.expressivity))

    def upgrade_state_dict_named(self, state: dict[str, Tensor], name: str) -> None:
        """Add sub-blocks to the checkpoint of another attention: all heads then attend to the last one."""
        if not self.strided and f"{name}.q_proj.weight" in state:
            state.setdefault(f"{name}.sub_blocks", torch.zeros_like(self.sub_blocks))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        real = self.real_positions(x, padding_mask)
        size = block_size(self.stride, x.size(1))
        queries, keys, values = (into_blocks(rows, size) for rows in self.project(x, first_values))
        parts = (self._strided if self.strided else self._fixed)(keys, values, into_blocks(real, size))
        out = self._attend(self.split_heads(queries), parts)  # (B, R, h, l, d_h)
        return self.out_proj(out_of_blocks(out.transpose(2, 3).flatten(3), x.size(1)))

    def _strided(self, keys: Tensor, values: Tensor, real: Tensor) -> list[Part]:
        """Attend to keys less than l positions away, and to the rest of the column."""
        size = real.size(2)
        local_keys, local_values = (self.split_heads(_with_adjacent_rows(rows)) for rows in (keys, values))
        key_position = torch.arange(3 * size, device=real.device)  # the query's row is the middle one
        distance = (key_position - key_position[size : 2 * size, None]).abs()  # (l, 3 l)
        local_mask = _with_adjacent_rows(real)[:, :, None, None, :] & (distance < self.stride)  # (B, R, 1, l, 3 l)
        columns = real.transpose(1, 2)[:, None, None] & self._other_rows(real, 1)  # (B, R, 1, l, R)
        return [
            Part("brhsd", local_keys, local_values, local_mask),
            Part("bshid", self.split_heads(keys), self.split_heads(values), columns),
        ]

    def _fixed(self, keys: Tensor, values: Tensor, real: Tensor) -> list[Part]:
        """Attend to the row, and to each head's c columns of all other rows."""
        columns = torch.arange(self.expressivity, device=real.device) + self.stride
        columns = columns - self.expressivity * (self.sub_blocks[:, None] + 1)  # (h, c)
        columns = columns.clamp(max=real.size(2) - 1)  # a sequence that is shorter than a row has no other rows
        key_rows, value_rows = self.split_heads(keys), self.split_heads(values)  # (B, R, h, l, d_h)
        summary_keys, summary_values = (self._take(rows, columns) for rows in (key_rows, value_rows))
        summary_real = real[:, :, columns].transpose(1, 2).flatten(2)[:, None, :, None]  # (B, 1, h, 1, R c)
        column_mask = summary_real & self._other_rows(real, self.expressivity)  # (B, R, h, 1, R c)
        return [
            Part("brhsd", key_rows, value_rows, real[:, :, None, None]),
            Part("bhsd", summary_keys, summary_values, column_mask),
        ]

    @staticmethod
    def _take(rows: Tensor, columns: Tensor) -> Tensor:
        """Gather each head's columns, (h, c), of all rows: (B, R, h, l, d_h) -> (B, h, R c, d_h)."""
        index = columns[:, :, None].expand(*rows.shape[:2], -1, -1, rows.size(-1))  # (B, R, h, c, d_h)
        return rows.gather(3, index).transpose(1, 2).flatten(2, 3)

    def _attend(self, queries: Tensor, parts: list[Part]) -> Tensor:
        """Return softmax(Q K^T / sqrt(d_h)) V over the keys of all parts together: (B, R, h, l, d_h).

        In the subscripts b is the batch, r a row, h a head, i a position in the row, s a key, d a channel.
        """
        queries = queries * self.head_dim**-0.5
        scores = [torch.einsum(f"brhid,{part.axes}->brhis", queries, part.keys) for part in parts]
        lowest = torch.finfo(queries.dtype).min  # not -inf: a padded query may have no key at all
        masked = [score.masked_fill(~part.attn_mask, lowest) for score, part in zip(scores, parts, strict=True)]
        weights = dropout(torch.cat(masked, dim=-1).softmax(-1), self.dropout, self.training)
        split = weights.split([part.attn_mask.size(-1) for part in parts], dim=-1)
        out = [torch.einsum(f"brhis,{part.axes}->brhid", w, part.values) for w, part in zip(split, parts, strict=True)]
        return out[0] + out[1]

    @staticmethod
    def _other_rows(real: Tensor, columns: int) -> Tensor:
        """Return False for pairs of a row with itself, so that local keys do not count twice: (R, 1, 1, R columns)."""
        rows = torch.arange(real.size(1), device=real.device)
        return (rows[:, None] != rows.repeat_interleave(columns))[:, None, None]


def _with_adjacent_rows(rows: Tensor) -> Tensor:
    """Concatenate each row with both neighbours, zeros beyond the ends: (B, R, l, ...) -> (B, R, 3 l, ...)."""
    padded = F.pad(rows, (0, 0) * (rows.dim() - 2) + (1, 1))
    return torch.cat([padded[:, :-2], rows, padded[:, 2:]], dim=2)
