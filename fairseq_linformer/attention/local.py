"""What Linformer shows of the text as it is, beside the projected rows.

Dimensions: B batch, n sequence length, b block, e positions on a side of it, N = ceil(n / b) blocks, g sinks, m rows,
w positions of the segment that a row averages, c segments that a block fetches, d embedding, h heads, d_h = d / h,
s = m + g + c w + b + 2 e keys that a block sees.

Relative positions are those of what is near. Everything else is scored by content alone: a mean of rotated keys would
be a weak one, and how far away a fetched key is says little.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import check
from .base import Attention
from .blocks import block_size, half_window, into_blocks, leading, margins, smaller, with_margins
from .options import AttentionConfig, Options, option
from .pooling import WindowProjection
from .positions import check_content_is_left
from .registry import PROJECTIONS
from .residual import is_plain


@dataclass
class LinformerOptions(Options):
    """The paper has no window, and its class token sees the projected rows.

    Here w is the width of the window. With one the k rows and what is near stand under one softmax: queries are cut
    into blocks of b, and see their own block and w / 2 positions on either side as they are; with b = w, the default,
    as in Long-Short (Zhu et al. 2021, arXiv 2107.02192, section 3.3). That adds B (2 n d^2 + 2 n (b + w) d); where a
    pooling averages (mean-pool, attention-pool, split-pool) the rows are then those averages of the keys and values
    themselves, B 2 n d instead of B 2 k d^2. Otherwise a value residual adds F V_1: B n k d for a matrix, B n d for
    pooling.

    Rows that average are an index, too: with ``linformer_fetch`` c each head of a block chooses the c rows of which its
    queries make most, and sees the positions that they average, n / k each, as they are: B (n k d + 10 c n^2 d / k),
    8 c of which score the candidates exactly. With k in proportion to n this is quadratic in n, by the first term.

    With a class token the first position attends to all n positions themselves, by content alone, in place of all this.
    """

    linformer_window: list[int] = option(  # noqa: RUF009 (it makes a field)
        0,
        "w: every position also sees its block and w / 2 positions on either side of it as they are; 0: none; a "
        "number, one per layer (0,64,…), or FIRST..LAST layer",
        smallest=0,
        per_layer=True,
    )
    linformer_block: int = option(0, "with a window: queries of a block; 0: as many as the window has", smallest=0)
    linformer_sinks: int = option(
        0, "with a window: the first positions that every position sees as they are", smallest=0
    )
    linformer_fetch: list[int] = option(  # noqa: RUF009
        0,
        "c, with a window and pooling: segments, each of the positions of a row, that each head of a block chooses by "
        "their rows and sees as they are; a number, one per layer, or FIRST..LAST layer",
        smallest=0,
        per_layer=True,
    )
    linformer_class_token: bool = option(False, "the first position, <s>, attends to every position as it is")

    SMALL: ClassVar = (
        {},
        {"linformer_window": 4},
        {"linformer_window": 1},
        {"linformer_class_token": True},
        {"linformer_window": 6, "linformer_block": 2, "linformer_sinks": 2},
    )

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        nearby, fetches = min(self.linformer_window) > 0, max(self.linformer_fetch)
        own = {"block": self.linformer_block, "sinks": self.linformer_sinks, "fetch": fetches}
        for name, value in own.items():
            check(f"linformer_{name}", value, value == 0 or nearby, "0 without linformer_window in each layer")
        allowed = "learned without linformer_window in each layer"
        check("positions", config.positions, config.positions == "learned" or nearby, allowed)
        check_content_is_left(config)
        averages = PROJECTIONS[config.projection].AVERAGES
        allowed = f"0 with projection={config.projection}, whose rows stand for no segment of the text"
        check("linformer_fetch", fetches, averages or fetches == 0, allowed)


Windowed: TypeAlias = Any  # a LinformerAttention, whose module imports this one
CANDIDATES = 8  # segments that are looked at for each one that is fetched
SCORES = 2**20  # that choosing holds at once on a CPU, in whose caches they stay; elsewhere 64 times as many


def _hide(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min)


def _places(real: Tensor) -> Tensor:
    """Positions counted from 1, and 0 where one is padding: (B, n)."""
    return torch.arange(1, real.size(1) + 1, device=real.device) * real


def _is_alone(numbers: Tensor) -> Tensor:
    """Whether a segment is one position, so that its row is that position itself: (B, m, w) to (B, m)."""
    return (numbers > 0).sum(-1) == 1


EVERYWHERE = 2**30  # beyond all positions


class Near(NamedTuple):
    """The positions that each block of queries sees as they are, under one softmax with the rows.

    Attributes:
        size: b.
        beside: e.
        sinks: g: every block sees the first g positions (Xiao et al. 2023, arXiv 2309.17453).
        segments: (B, n, d) to (B, m, w, d), the positions that each row averages, zeros where there are fewer.
        averages: whether rows are such averages; without it there are no segments.
        fetched: (B, h, N, c), the segments that each head of a block fetches (``choose_segments``); None for none.
    """

    size: int
    beside: int
    sinks: int
    segments: Callable[[Tensor], Tensor]
    averages: bool
    fetched: Tensor | None = None

    def join(self, rows: Tensor, positions: Tensor, near: Tensor) -> Tensor:
        """The keys, or values, that each block sees: rows, sinks, what is fetched, what is near.

        Args:
            rows: (B, h, m, d_h).
            positions, near: (B, n, h, d_h), what stands for a position that is a sink or fetched, and for a near one.

        Returns:
            (B N, h, s, d_h).
        """
        blocks = margins(near, self.size, self.beside)  # (B, N, ..., h, d_h)
        everywhere = [rows, self.first(positions).transpose(1, 2)] if self.sinks else [rows]  # (B, h, ..., d_h)
        # Joined once: each copy is as large as all that the queries see.
        parts = [own.unsqueeze(1).expand(-1, blocks[0].size(1), -1, -1, -1) for own in everywhere]
        if self.fetched is not None:
            parts.append(self._fetch(self._segments(positions), self.fetched).transpose(1, 2))
        return torch.cat([*parts, *(own.transpose(2, 3) for own in blocks)], dim=3).flatten(0, 1)

    def attn_mask(self, rows: Tensor, real: Tensor) -> Tensor:
        """Which keys a block sees. What comes twice is seen once: as a sink, or else near, else a row, else fetched.

        A row of one position is that position. So a text of at most m tokens, each of them a row, is seen as by full
        attention.

        Args:
            rows: (B, m), True for the rows that are seen.
            real: (B, n), True where a position is no padding.

        Returns:
            (B, N, h, 1, s), with 1 for h where nothing is fetched.
        """
        near = with_margins(_places(real), self.size, self.beside) > self.sinks  # (B, N, b + 2 e)
        rows = rows.unsqueeze(1).expand(-1, near.size(1), -1)
        if self.averages:
            numbers = self._numbers(real)
            alone = _is_alone(numbers)
            seen = self._is_near(near.size(1), numbers) | (numbers.amax(-1) <= self.sinks).unsqueeze(1)
            rows = rows & ~(seen & alone.unsqueeze(1))
        parts = [rows, near]
        if self.sinks:
            parts.insert(1, self.first(real).unsqueeze(1).expand(-1, near.size(1), -1))
        parts = [part.unsqueeze(2) for part in parts]
        if self.fetched is not None:  # by averages alone
            heads = self.fetched.size(1)
            numbers = numbers.masked_fill(alone.unsqueeze(-1), 0)  # its row is seen
            segments = numbers[..., None, None].expand(-1, -1, -1, heads, 1).float()
            own = self._fetch(segments, self.fetched).squeeze(-1).transpose(1, 2)  # (B, N, h, c w)
            start = self._starts(near.size(1), real.device)[:, None, None]
            away = (own <= start - self.beside) | (own > start + self.size + self.beside)
            parts = [part.expand(-1, -1, heads, -1) for part in parts]
            parts.insert(len(parts) - 1, away & (own > self.sinks))
        return torch.cat(parts, dim=3).unsqueeze(3)

    def places(self, rows: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """``attn_mask`` without what is fetched, by keys that stand once for all blocks.

        Args:
            rows, real: as there.

        Returns:
            Of rows and sinks, (B, m + g), and of positions, (B, n): p where blocks see the key that are near place p,
            counted from 1; -p where those do that are not, of a row that is that position; -EVERYWHERE where all do, 0
            where none does.
        """
        place = _places(real)
        shown = -EVERYWHERE * rows
        if self.averages:
            numbers = self._numbers(real)
            last = numbers.amax(-1).long()
            shown = torch.where(_is_alone(numbers) & rows, -last * (last > self.sinks), shown)
        return torch.cat([shown, -EVERYWHERE * self.first(real)], dim=1), place * (place > self.sinks)

    def choose_segments(
        self, queries: Tensor, keys: Tensor, rows: Tensor, seen: Tensor | None, real: Tensor, count: int
    ) -> Tensor:
        """The c segments of which each head of a block makes most, from coarse to fine.

        First its queries weigh the rows, as in the selection of Native Sparse Attention (Yuan et al. 2025, arXiv
        2502.11089, eq. 8 to 10): the sum of their softmax leaves ``CANDIDATES`` c segments. A mean of keys blurs them,
        so each query then weighs these by the key that it likes best in each, and the sum of that softmax leaves c.

        It needs no gradients: keys and rows learn what to be found by under the softmax in which they stand. Costs
        B n d (m + CANDIDATES c w). There are B h n max(m, CANDIDATES c w) scores, hence one part of the blocks after
        another.

        Args:
            queries, keys: (B, n, h, d_h).
            rows: (B, h, m, d_h).
            seen, real: as for ``attn_mask``; None for all rows.
            count: c; all m where there are fewer.

        Returns:
            (B, h, N, c).
        """
        # The weights of a query of zeros are equal: where there is none, nothing is preferred.
        blocks = into_blocks(queries * real[..., None, None], self.size).permute(0, 3, 1, 2, 4)  # (B, h, N, b, d_h)
        blocks = (blocks * queries.size(-1) ** -0.5).contiguous()
        away = ~self._is_near(blocks.size(2), self._numbers(real))
        if seen is not None:
            away = away & seen.unsqueeze(1)
        away = away.unsqueeze(1).expand(-1, blocks.size(1), -1, -1)  # (B, h, N, m)
        segments = self._filled_segments(keys, real)
        if torch.compiler.is_compiling():  # for any length
            return self._choose(blocks, away, rows, seen, segments, count)
        scores = blocks[:, :, :1, :, 0].numel() * max(rows.size(2), CANDIDATES * count * segments.size(2))
        size = max(1, (SCORES if blocks.is_cpu else 64 * SCORES) // scores)
        parts = zip(blocks.split(size, dim=2), away.split(size, dim=2), strict=True)
        return torch.cat([self._choose(own, others, rows, seen, segments, count) for own, others in parts], dim=2)

    def _choose(
        self, blocks: Tensor, away: Tensor, rows: Tensor, seen: Tensor | None, segments: Tensor, count: int
    ) -> Tensor:
        """``choose_segments`` for some blocks (B, h, N, b, d_h), which may choose what is `away` (B, h, N, m)."""
        scores = (blocks.flatten(2, 3) @ rows.transpose(2, 3)).unflatten(2, blocks.shape[2:4])  # (B, h, N, b, m)
        if seen is not None:
            scores = _hide(scores, seen[:, None, None, None])
        weights = scores.softmax(-1).sum(3).masked_fill(~away, -1.0)
        candidates = weights.topk(smaller(CANDIDATES * count, rows.size(2))).indices
        found = self._fetch(segments, candidates)  # (B, h, N, CANDIDATES c w, d_h)
        # Queries last: the largest of w numbers is found faster where these are not side by side.
        best = (found @ blocks.transpose(3, 4)).unflatten(3, (candidates.size(-1), -1)).amax(4)
        best = _hide(best, away.gather(3, candidates).unsqueeze(4))
        weights = best.softmax(3).sum(4)
        return candidates.gather(3, weights.topk(smaller(count, rows.size(2))).indices)

    def _filled_segments(self, positions: Tensor, real: Tensor) -> Tensor:
        """``_segments``, where the first position of a segment stands for those that it has not."""
        segments, text = self._segments(positions), self.segments(real.unsqueeze(-1).to(positions.dtype)) > 0
        return torch.where(text[..., None], segments, segments[:, :, :1])

    def _is_near(self, blocks: int, numbers: Tensor) -> Tensor:
        """Whether a block sees all of a segment without fetching it: ``_numbers`` (B, m, w) to (B, N, m)."""
        first, last = numbers[..., 0].unsqueeze(1), numbers.amax(-1).unsqueeze(1)  # (B, 1, m)
        start = self._starts(blocks, numbers.device).unsqueeze(-1)
        return (first > start - self.beside) & (last <= start + self.size + self.beside)

    def _numbers(self, real: Tensor) -> Tensor:
        """The places of the positions of each segment, 0 where it has fewer: (B, n) to (B, m, w)."""
        return self.segments(_places(real).unsqueeze(-1).float()).squeeze(-1)

    def first(self, positions: Tensor) -> Tensor:
        """The sinks, of those that there are: (B, n, ...) to (B, g, ...)."""
        return leading(positions, smaller(self.sinks, positions.size(1)), dim=1)

    def _starts(self, blocks: int, device: torch.device) -> Tensor:
        return torch.arange(blocks, device=device) * self.size

    def _segments(self, positions: Tensor) -> Tensor:
        """(B, n, h, d_h) to (B, m, w, h, d_h)."""
        return self.segments(positions.flatten(2)).unflatten(-1, positions.shape[2:])

    @staticmethod
    def _fetch(segments: Tensor, fetched: Tensor) -> Tensor:
        """The positions of some segments for each block: (B, m, w, h, d_h) and (B, h, N, c) to (B, h, N, c w, d_h)."""
        batch, rows, width, heads, size = segments.shape
        table = segments.permute(0, 3, 1, 2, 4).reshape(-1, width * size)  # (B h m, w d_h)
        before = rows * torch.arange(batch * heads, device=segments.device).view(batch, heads, 1, 1)
        # As an embedding, because the backward pass of indexing adds in any order on a GPU.
        found = F.embedding(before + fetched, table)  # (B, h, N, c, w d_h)
        return found.unflatten(-1, (width, size)).flatten(3, 4)


class Seen(NamedTuple):
    """What the queries of a layer attend to.

    Attributes:
        queries: (B, n, d).
        keys, values: (B, h, m, d_h); with a window (B N, h, s, d_h), as ``Near.join`` has them.
        attn_mask: boolean (B, 1, 1, m), True for what is seen, or None for all; with a window that of ``Near``, or
            ALiBi's bias, (B, N, h, b, s).
        near: with a window what each block sees beside the rows.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    attn_mask: Tensor | None
    near: Near | None


class Shown(NamedTuple):
    """What a layer with a window shows, before it is joined.

    Attributes:
        keys, values: those of the rows, (B, h, m, d_h).
        rows: (B, m), True for the rows that are seen; None for all.
        turned, contents, own_values: the keys, rotated and by content alone, and values of positions, (B, n, h, d_h).
        near: what the blocks see as it is; nothing fetched yet.
        real: (B, n), True where a position is no padding.
    """

    keys: Tensor
    values: Tensor
    rows: Tensor | None
    turned: Tensor
    contents: Tensor
    own_values: Tensor
    near: Near
    real: Tensor

    def all_rows(self) -> Tensor:
        """``rows``, (B, m), where they are all, too."""
        shape = self.keys.size(0), self.keys.size(2)
        return self.keys.new_ones(shape, dtype=torch.bool) if self.rows is None else self.rows


def show(attention: Windowed, x: Tensor, padding_mask: Tensor | None, first: Tensor | None) -> Shown:
    """Of a layer with a window; the other arguments are those of its ``forward``."""
    own = attention.k_proj(x), attention.values(x, first)
    if attention.key_projection.AVERAGES:
        keys, values = _averages(attention, own, x, padding_mask)
        rows = attention.key_projection.attended_rows(padding_mask)
    else:
        keys, values, rows = attention.keys_and_values(x, padding_mask, first)
    heads = (attention.num_heads, attention.head_dim)
    turned, contents, own_values = (
        positions.unflatten(-1, heads) for positions in (attention.rotated(own[0]), attention.content(own[0]), own[1])
    )
    near, real = near_of(attention, x.size(1), padding_mask), attention.real_positions(x, padding_mask)
    return Shown(attention.content(keys), values, rows, turned, contents, own_values, near, real)


def see_near(
    attention: Windowed, queries: Tensor, x: Tensor, padding_mask: Tensor | None, first: Tensor | None
) -> Seen:
    """What queries (B, n, d) attend to in a layer with a window; the other arguments are those of its ``forward``."""
    shown = show(attention, x, padding_mask, first)
    near = shown.near
    if attention.fetch:
        heads = queries.unflatten(-1, shown.contents.shape[2:])
        with torch.no_grad():  # as a decorator of a NamedTuple's method it would cut a compiled graph
            found = near.choose_segments(heads, shown.contents, shown.keys, shown.rows, shown.real, attention.fetch)
        near = near._replace(fetched=found)
    keys = near.join(shown.keys, shown.contents, shown.turned)
    values = near.join(shown.values, shown.own_values, shown.own_values)
    attn_mask = near.attn_mask(shown.all_rows(), shown.real)
    if attention.alibi:
        near_at = torch.arange(near.size + 2 * near.beside, device=x.device)
        others = keys.size(2) - near_at.size(0)
        attn_mask = attention.biased(attn_mask, near_at[near.beside : near.beside + near.size], near_at, others)
    return Seen(attention.rotated(queries), keys, values, attn_mask, near)


def _averages(
    attention: Windowed, own: tuple[Tensor, Tensor], x: Tensor, padding_mask: Tensor | None
) -> Iterator[Tensor]:
    """The rows of keys and of values, where they average those of all positions, `own`: (B, h, m, d_h) each."""
    real = attention.zero_padding(x, padding_mask)
    projections = attention.key_projection, attention.value_projection
    for projection, positions in zip(projections, own, strict=True):
        heads = attention.split_heads(attention.zero_padding(positions, padding_mask))
        yield projection.project_values(heads, real, padding_mask)


def near_of(attention: Windowed, length: int, padding_mask: Tensor | None) -> Near:
    """What the blocks of a text of that many positions see as it is; nothing fetched yet."""

    def segments(positions: Tensor) -> Tensor:
        return cast(WindowProjection, attention.key_projection).windows(positions, padding_mask)[0]

    size, beside = block_size(attention.block, length), block_size(half_window(attention.window), length)
    return Near(size, beside, attention.sinks, segments, attention.key_projection.AVERAGES)


def weights_of_first(attention: Attention, x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """softmax(q K^T / sqrt(d_h)) of the first position's query, by content alone: (B, n, d) -> (B, h, n).

    With one query it takes fewer products to move W_k to the side of q: q K^T is (q W_k) X^T but for a constant, which
    softmax does not see. That is B n h d.
    """
    queries = attention.split_heads(attention.content(attention.q_proj(x[:, :1]))) * attention.head_dim**-0.5
    if is_plain(attention.k_proj):
        weight, _ = attention.of_each_head(attention.k_proj)
        scores = (queries @ weight).squeeze(2) @ x.transpose(1, 2)  # (B, h, d) (B, d, n)
    else:
        scores = (queries @ attention.split_heads(attention.k_proj(x)).transpose(2, 3)).squeeze(2)
    if padding_mask is not None:
        scores = scores.masked_fill(padding_mask.unsqueeze(1), torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def attend_from_first(
    attention: Attention, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
) -> Tensor:
    """What the first position makes of all positions: (B, n, d) -> (B, h, 1, d_h).

    P V is (P X) W_v and what P gives of the bias: B n h d.
    """
    weights = F.dropout(weights_of_first(attention, x, padding_mask), attention.dropout, attention.training)
    if is_plain(attention.v_proj):
        weight, bias = attention.of_each_head(attention.v_proj)
        values = (weights @ x).unsqueeze(2) @ weight.transpose(1, 2)  # (B, h, 1, d) (h, d, d_h)
        values = values + weights.sum(-1)[..., None, None] * bias
    else:
        values = weights.unsqueeze(2) @ attention.split_heads(attention.v_proj(x))
    if first_values is None:
        return values
    return attention.with_first_values(values, weights.unsqueeze(2) @ attention.split_heads(first_values))
