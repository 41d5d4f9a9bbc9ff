"""Local and sink keys that a Linformer attends to besides its projected ones.

A token reachable in several ways is kept once, in the order sink, local, projected. A projected key of one position
equals that position's key. So a text in which each token has its own projected key has full attention.

Dimensions: B batch, n sequence length, b block, e margin on each side, N = ceil(n / b) blocks, m projected keys, g
sinks, h heads, d_h = d / h, s = m + g + b + 2 e keys of a block.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import block_windows, narrow_prefix, sym_min, with_margins
from .pooling import WindowProjection


class Visibility(NamedTuple):
    """Query blocks that attend to each key: those that begin in [start, stop), or with `outside` all others.

    Attributes:
        start, stop: integers, (B or 1, s).
        outside: boolean, (B or 1, s). With an empty interval a key is visible to all blocks, or to none.
    """

    start: Tensor
    stop: Tensor
    outside: Tensor

    def to_blocks(self, block_starts: Tensor) -> Tensor:
        """Return True where a block attends to a key: (N,) to (B or 1, N, s)."""
        start, stop, outside = (part.unsqueeze(1) for part in self)
        block_starts = block_starts.unsqueeze(1)
        return ((start <= block_starts) & (block_starts < stop)) != outside


class LocalContext(NamedTuple):
    """Keys of single positions that the queries of a block attend to.

    Attributes:
        size: b.
        margin: e.
        sinks: g: every block attends to the first g positions (Xiao et al. 2023, arXiv 2309.17453).
        pooling: the projection if projected keys are averages, else None.
    """

    size: int
    margin: int
    sinks: int
    pooling: WindowProjection | None

    def nearby_blocks(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return [start, stop) of the starts of the blocks whose window holds a position."""
        return position - self.size - self.margin + 1, position + self.margin + 1

    def is_local(self, real: Tensor) -> Tensor:
        """Return True for the positions that are local keys of nearby blocks, (B, n): not padding, not sinks."""
        return real & (torch.arange(real.size(1), device=real.device) >= self.sinks)

    def text_visibility(self, real: Tensor) -> Visibility:
        """Return the visibility of local keys, (B, n); `real` (B, n) is True where a position is not padding."""
        position, local = torch.arange(real.size(1), device=real.device), self.is_local(real)
        start, stop = self.nearby_blocks(position)
        return Visibility(start * local, stop * local, torch.zeros_like(local))

    def prefix_visibility(self, attended: Tensor, real: Tensor) -> Visibility:
        """Return the visibility of projected keys and sinks, (B, m + g).

        Args:
            attended: (B, m), False for projected keys that are hidden.
            real: (B, n), True where a position is not padding.
        """
        sinks = self.sinks_of(real) if self.sinks else real[:, :0]
        start = stop = torch.zeros_like(attended, dtype=torch.int64)
        if self.pooling is not None:  # a projected key of one position is hidden where that position is attended to
            offsets, _ = self.pooling.segment_offsets(real.size(1), ~real, real.device)
            position, single = offsets[:, :-1], offsets[:, 1:] - offsets[:, :-1] == 1
            attended = attended & ~(single & (position < self.sinks))
            single = single & (position >= self.sinks)
            start, stop = (bound * single for bound in self.nearby_blocks(position))
        zeros = torch.zeros_like(sinks, dtype=torch.int64)
        outside = torch.cat([attended, sinks], dim=1)
        return Visibility(torch.cat([start, zeros], dim=1), torch.cat([stop, zeros], dim=1), outside)

    def attn_mask(self, attended: Tensor, real: Tensor) -> Tensor:
        """Return True where a block attends to a key of ``concat_keys``, (B, N, 1, 1, s).

        The arguments are those of ``prefix_visibility``.
        """
        local = with_margins(self.is_local(real), self.size, self.margin)  # (B, N, b + 2 e)
        starts = torch.arange(local.size(1), device=real.device) * self.size
        prefix = self.prefix_visibility(attended, real).to_blocks(starts)
        return torch.cat([prefix, local], dim=2)[:, :, None, None]

    def concat_keys(self, projected: Tensor, sinks: Tensor, local: Tensor) -> Tensor:
        """Concatenate the keys, or values, of each block: projected, sinks, local.

        Args:
            projected: (B, h, m, d_h).
            sinks, local: (B, n, h, d_h): of all positions, as sinks and as local ones.

        Returns:
            (B N, h, s, d_h).
        """
        blocks = block_windows(local, self.size, self.margin)  # (B, N, ..., h, d_h)
        prefix = [projected, self.sinks_of(sinks).transpose(1, 2)] if self.sinks else [projected]  # (B, h, …, d_h)
        # One concatenation: each copy is as large as all keys of all blocks.
        parts = [part.unsqueeze(1).expand(-1, blocks[0].size(1), -1, -1, -1) for part in prefix]
        return torch.cat([*parts, *(part.transpose(2, 3) for part in blocks)], dim=3).flatten(0, 1)

    def sinks_of(self, positions: Tensor) -> Tensor:
        """Return the sinks, at most g: (B, n, ...) to (B, g, ...)."""
        return narrow_prefix(positions, sym_min(self.sinks, positions.size(1)), dim=1)
