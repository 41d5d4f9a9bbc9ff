"""BigBird: window, global and random blocks (Zaheer et al. 2020, arXiv 2007.14062, section 2 and appendix D).

    a query in block i attends to the blocks {i - 1, i, i + 1}, {0, L} and r random ones, under one softmax;
    a query in block 0 or L attends to every position.

This is the paper's internal transformer construction (ITC): the first block of the text and the last one, L, are
global. L is the block of the last unmasked token, whatever the padding.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, r random blocks, m = r + 5 blocks that a query
attends to, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B n m b d) time, O(B n m (b h + d)) memory.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Attention, register_attention
from .blocks import block_size, into_blocks, narrow_prefix, out_of_blocks
from .options import AttentionConfig, Options, option
from .positions import add_alibi

NO_BLOCK = -1


@dataclass
class BigBirdOptions(Options):
    bigbird_block: int = option(
        64, "positions in a block; a query attends to its block, both neighbours, the first and the last", smallest=1
    )
    bigbird_random_blocks: int = option(
        3, "further blocks, drawn at random, that a query attends to in sequences of max_positions", smallest=0
    )

    TEST_CASES: ClassVar = (
        {"bigbird_block": 2, "bigbird_random_blocks": 1},
        {"bigbird_block": 3, "bigbird_random_blocks": 2},
    )


def draw_random_blocks(blocks: int, num_heads: int, count: int) -> Tensor:
    """Draw different blocks for each head and query block, from those that it does not attend to otherwise: (N, h, r).

    In a sequence of N blocks the window, the first and the last block are excluded; if fewer than `count` blocks
    remain, ``NO_BLOCK`` fills up.
    """
    drawn = []
    for block in range(blocks):
        chances = torch.rand(num_heads, blocks)
        chances[:, [0, max(block - 1, 0), block, min(block + 1, blocks - 1), blocks - 1]] = -1.0
        best = chances.topk(min(count, blocks))
        drawn.append(best.indices.masked_fill(best.values < 0, NO_BLOCK))
    return torch.stack(drawn)


@register_attention("bigbird", BigBirdOptions)
class BigBirdAttention(Attention):
    """Attention over m blocks of b positions; see the module.

    ``random_blocks`` are drawn once, for sequences of ``max_positions``, and kept in checkpoints. A shorter sequence
    uses those that lie within it, so it has fewer random blocks.
    """

    RELATIVE_POSITIONS = True

    random_blocks: Tensor

    def __init__(self, config: AttentionConfig, options: BigBirdOptions, layer: int):
        super().__init__(config, options, layer)
        self.block = options.bigbird_block
        blocks = (config.max_positions + self.block - 1) // self.block
        shape = (blocks, self.num_heads, min(options.bigbird_random_blocks, blocks))
        self.register_buffer("random_blocks", torch.empty(shape, dtype=torch.int64))
        self.reset_buffers()

    def reset_buffers(self) -> None:
        self.random_blocks.copy_(draw_random_blocks(*self.random_blocks.shape))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        real = self.real_positions(x, padding_mask)
        size = block_size(self.block, x.size(1))
        real = into_blocks(real, size)  # (B, N, b)
        queries, keys, values = (into_blocks(projected, size) for projected in self.project(x, first_values))
        # Padding is on the right: the blocks with unmasked tokens are the first ones, at least block 0.
        last = (real.any(2).sum(1).clamp(min=1) - 1)[:, None, None, None]  # (B, 1, 1, 1)

        out = self._attend_to_blocks(queries, keys, values, real, last)  # (B, N, b, d), all four
        first_out, last_out = self._attend_to_all(queries, keys, values, real, last)  # (B, 1, b, d)
        block = torch.arange(out.size(1), device=x.device)[:, None, None]  # (N, 1, 1)
        out = torch.where(block == 0, first_out, torch.where(block == last, last_out, out))
        return out_of_blocks(out, x.size(1))

    def _attend_to_all(
        self, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor, last: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute full attention for the first and the last block: two times (B, 1, b, d)."""
        last_queries = queries.gather(1, last.expand(-1, -1, *queries.shape[2:]))
        queries = torch.cat([queries[:, :1], last_queries], dim=1)
        queries, keys, values = (self.split_heads(blocks.flatten(1, 2)) for blocks in (queries, keys, values))
        attn_mask = real.flatten(1, 2)[:, None, None, :]
        if self.alibi:
            position = torch.arange(attn_mask.size(-1), device=real.device)
            in_first = narrow_prefix(position, real.size(2), dim=0)
            in_last = last[..., 0] * real.size(2) + in_first  # (B, 1, b)
            queries_at = torch.cat([in_first.expand_as(in_last), in_last], dim=-1)
            attn_mask = add_alibi(attn_mask, self.num_heads, queries_at, position)
        out = self.join_heads(self.attend(queries, keys, values, attn_mask))  # (B, 2 b, d)
        return out.unsqueeze(1).chunk(2, dim=2)

    def _attend_to_blocks(self, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor, last: Tensor) -> Tensor:
        """Attend from all blocks to their m blocks, (B, N, b, d); results of block 0 and L are unused."""
        block_ids, attended = self._block_ids(queries.size(1), last)  # (B, N, h, m)
        sequence = torch.arange(block_ids.size(0), device=block_ids.device)[:, None, None, None]
        index = block_ids + queries.size(1) * sequence
        attn_mask = attended.unsqueeze(-1) & real.flatten(0, 1)[index]  # (B, N, h, m, b)
        attn_mask = attn_mask.flatten(3).unsqueeze(3)  # (B, N, h, 1, m b)
        if self.alibi:
            block = torch.arange(real.size(2), device=real.device)
            queries_at = torch.arange(real.size(1), device=real.device)[:, None, None] * real.size(2) + block
            keys_at = (block_ids.unsqueeze(-1) * real.size(2) + block).flatten(3)
            attn_mask = add_alibi(attn_mask, self.num_heads, queries_at, keys_at)
        keys, values = (self._take(blocks, index) for blocks in (keys, values))
        queries = self.split_heads(queries.flatten(0, 1))
        out = self.join_heads(self.attend(queries, keys, values, attn_mask.flatten(0, 1)))  # (B N, b, d)
        return out.unflatten(0, real.shape[:2])

    def _block_ids(self, blocks: int, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of each block's m blocks per head, and True for those that count: both (B, N, h, m).

        A block beyond the ends does not count, nor the second occurrence of one that is both local and global. (If
        block 0 is also the last block it counts twice, in sequences that are padding or unused.)
        """
        numbers = torch.arange(blocks, device=last.device)
        window = numbers[:, None] + torch.arange(-1, 2, device=last.device)  # (N, 3)
        inner = torch.cat([window[:, None].expand(-1, self.num_heads, -1), self.random_blocks[:blocks]], dim=-1)
        inner_attended = (inner >= 1) & (inner < last)  # (B, N, h, r + 3)
        global_ids = torch.cat([torch.zeros_like(last), last], dim=-1).expand(*inner_attended.shape[:3], 2)
        block_ids = torch.cat([global_ids, inner.clamp(0, blocks - 1).expand_as(inner_attended)], dim=-1)
        return block_ids, F.pad(inner_attended, (2, 0), value=True)

    def _take(self, blocks: Tensor, index: Tensor) -> Tensor:
        """Gather the blocks (B, N, h, m) of each head from (B N): (B, N, b, d) -> (B N, h, m b, d_h)."""
        heads = self.split_heads(blocks.flatten(0, 1)).flatten(0, 1)  # (B N h, b, d_h)
        index = index * self.num_heads + torch.arange(self.num_heads, device=index.device)[:, None]
        gathered = heads.index_select(0, index.flatten()).unflatten(0, (-1, *index.shape[2:]))  # (B N, h, m, b, d_h)
        return gathered.flatten(2, 3)
