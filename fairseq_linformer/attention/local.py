"""Local, sink and selected keys that a Linformer attends to besides its projected ones.

A token reachable in several ways is kept once, in the order sink, local, projected, selected. A projected key of one
position equals that position's key. So a text in which each token has its own projected key has full attention.

Dimensions: B batch, n sequence length, b block, e margin on each side, N = ceil(n / b) blocks, m projected keys, g
sinks, w positions of the segment that a projected key averages, c selected segments, h heads, d_h = d / h, s = m + g +
c w + b + 2 e keys of a block.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import block_windows, into_blocks, narrow_prefix, sym_min, with_margins
from .selection import gather_segments, select_segments


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
        segments: maps (B, n, d) to (B, m, w, d), the positions that each projected key averages, zero-padded; None if
            projected keys are not averages.
        selected: (B, h, N, c), the segments that each head of a block selects; None without selection.
    """

    size: int
    margin: int
    sinks: int
    segments: Callable[[Tensor], Tensor] | None
    selected: Tensor | None = None

    def nearby_blocks(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return [start, stop) of the starts of the blocks whose window holds all positions from first to last."""
        return last - self.size - self.margin + 1, first + self.margin + 1

    def in_window(self, first: Tensor, last: Tensor, block_start: Tensor) -> Tensor:
        """Return True where the window of a block holds all positions from first to last."""
        start, stop = self.nearby_blocks(first, last)
        return (start <= block_start) & (block_start < stop)

    def is_local(self, real: Tensor) -> Tensor:
        """Return True for the positions that are local keys of nearby blocks, (B, n): not padding, not sinks."""
        return real & (torch.arange(real.size(1), device=real.device) >= self.sinks)

    def text_visibility(self, real: Tensor) -> Visibility:
        """Return the visibility of local keys, (B, n); `real` (B, n) is True where a position is not padding."""
        position, local = torch.arange(real.size(1), device=real.device), self.is_local(real)
        start, stop = self.nearby_blocks(position, position)
        return Visibility(start * local, stop * local, torch.zeros_like(local))

    def prefix_visibility(self, attended: Tensor, real: Tensor) -> Visibility:
        """Return the visibility of projected keys and sinks, (B, m + g).

        Args:
            attended: (B, m), False for projected keys that are hidden.
            real: (B, n), True where a position is not padding.
        """
        sinks = self.sinks_of(real) if self.sinks else real[:, :0]
        outside = torch.cat([attended, sinks], dim=1)
        start = stop = torch.zeros_like(attended, dtype=torch.int64)
        if self.segments is not None:
            positions = self.segment_positions(real)
            position, single = positions.amax(-1), is_singleton(positions)
            outside = torch.cat([attended & ~(single & (position < self.sinks)), sinks], dim=1)
            single = single & attended & (position >= self.sinks)
            start, stop = (bound * single for bound in self.nearby_blocks(position, position))
        zeros = torch.zeros_like(sinks, dtype=torch.int64)
        return Visibility(torch.cat([start, zeros], dim=1), torch.cat([stop, zeros], dim=1), outside)

    def attn_mask(self, attended: Tensor, real: Tensor) -> Tensor:
        """Return True where a block attends to a key of ``concat_keys``; arguments as for ``prefix_visibility``.

        Returns:
            (B, N, h, 1, s), with 1 for h where nothing is selected.
        """
        local = with_margins(self.is_local(real), self.size, self.margin)  # (B, N, b + 2 e)
        starts = torch.arange(local.size(1), device=real.device) * self.size
        parts = [self.prefix_visibility(attended, real).to_blocks(starts).unsqueeze(2), local.unsqueeze(2)]
        if self.selected is not None:  # only if projected keys are averages
            heads, positions = self.selected.size(1), self.segment_positions(real)
            positions = positions.masked_fill(is_singleton(positions).unsqueeze(-1), -1)  # visible as a projected key
            table = positions[..., None, None].expand(-1, -1, -1, heads, 1).float()
            position = gather_segments(table, self.selected).squeeze(-1).transpose(1, 2)  # (B, N, h, c w)
            visible = ~self.in_window(position, position, starts[:, None, None]) & (position >= self.sinks)
            prefix, local = (part.expand(-1, -1, heads, -1) for part in parts)
            parts = [prefix, visible, local]
        return torch.cat(parts, dim=3).unsqueeze(3)

    def concat_keys(self, projected: Tensor, positions: Tensor, local: Tensor) -> Tensor:
        """Concatenate the keys, or values, of each block: projected, sinks, selected, local.

        Args:
            projected: (B, h, m, d_h).
            positions, local: (B, n, h, d_h): keys of sinks and selected positions, and of local ones.

        Returns:
            (B N, h, s, d_h).
        """
        blocks = block_windows(local, self.size, self.margin)  # (B, N, ..., h, d_h)
        prefix = [projected, self.sinks_of(positions).transpose(1, 2)] if self.sinks else [projected]  # (B, h, …, d_h)
        # One concatenation: each copy is as large as all keys of all blocks.
        parts = [part.unsqueeze(1).expand(-1, blocks[0].size(1), -1, -1, -1) for part in prefix]
        if self.selected is not None:
            parts.append(gather_segments(self._segments(positions), self.selected).transpose(1, 2))
        return torch.cat([*parts, *(part.transpose(2, 3) for part in blocks)], dim=3).flatten(0, 1)

    def select(
        self, queries: Tensor, keys: Tensor, summaries: Tensor, attended: Tensor | None, real: Tensor, count: int
    ) -> "LocalContext":
        """Return this context with c selected segments per head and query block (``select_segments``).

        Args:
            queries, keys: (B, n, h, d_h).
            summaries: (B, h, m, d_h), projected keys.
            attended: (B, m), False for projected keys that are hidden; None if none is hidden.
            real: (B, n), True where a position is not padding.
            count: c.
        """
        blocks = into_blocks(queries * real[..., None, None], self.size).permute(0, 3, 1, 2, 4)  # (B, h, N, b, d_h)
        blocks = (blocks * queries.size(-1) ** -0.5).contiguous()
        positions, starts = self.segment_positions(real), torch.arange(blocks.size(2), device=real.device) * self.size
        first, last = positions[..., 0].unsqueeze(1), positions.amax(-1).unsqueeze(1)  # (B, 1, m)
        selectable = ~self.in_window(first, last, starts.unsqueeze(1))
        if attended is not None:
            selectable = selectable & attended.unsqueeze(1)
        segments = self._segments(keys)  # (B, m, w, h, d_h); the first key repeats if there are fewer
        segments = torch.where(positions[..., None, None] >= 0, segments, segments[:, :, :1])
        return self._replace(selected=select_segments(blocks, summaries, segments, selectable, attended, count))

    def sinks_of(self, positions: Tensor) -> Tensor:
        """Return the sinks, at most g: (B, n, ...) to (B, g, ...)."""
        return narrow_prefix(positions, sym_min(self.sinks, positions.size(1)), dim=1)

    def segment_positions(self, real: Tensor) -> Tensor:
        """Return the positions of each segment, -1 where it has fewer: (B, n) to (B, m, w)."""
        one_based = torch.arange(1, real.size(1) + 1, device=real.device) * real  # zeros are missing positions
        return self._segments(one_based[..., None, None].float()).flatten(2).long() - 1

    def _segments(self, positions: Tensor) -> Tensor:
        """Gather the positions of segments: (B, n, h, d_h) to (B, m, w, h, d_h)."""
        assert self.segments is not None
        return self.segments(positions.flatten(2)).unflatten(-1, positions.shape[2:])


def is_singleton(positions: Tensor) -> Tensor:
    """Return True for segments of one position, whose projected key is that position: (B, m, w) to (B, m)."""
    return (positions >= 0).sum(-1) == 1
