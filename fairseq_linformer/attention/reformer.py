"""Reformer: attention by locality-sensitive hashing (Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A).

    o_i = sum over j in A_i of softmax_j(q_i . q_j / |q_j|) v_j,    A_i = union over rounds of A_i^(r), without i

Keys are the queries at unit length. A round of locality-sensitive hashing sorts the positions by their buckets, h(q) =
argmax([q R; -q R]) for a random R, and cuts the sorted sequence into chunks of m. A_i^(r) is the chunk of i and both
neighbouring chunks. A position attends to itself only if A_i is empty. With ``reformer_local`` one more round keeps the
order of the text: its chunks are a local window.

Dimensions: B batch, n sequence length, N = C m with C = ceil(n / m) chunks, r rounds, f hash functions per round, c
columns of a rotation, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B r n m d + B r n c d + B h r n log n + B h r^2 n m) time, with c at most m, or sqrt(n / 2m)
+ 1 if that is more; O(B n d + B h r n (m + d_h)) memory, linear in n.

As in the authors' code and experiments, a whole chunk is attended to, whatever its buckets; there are about 2 l / m
buckets for l positions; two hash functions together number them if there could be more than 2 m buckets; and scores are
q_i . k_j for keys of unit length without a further 1 / sqrt(d_h). As attention is bidirectional, both neighbouring
chunks are used; none wraps around. A pair that several rounds contain counts in the first of them; the authors divide
its weight among the rounds, which gives the same sum.

Padding is sorted to the end and hidden. A sequence has the buckets of its length l without padding, by the first
columns of its rotations, so that its chunks do not depend on padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .base import Attention, register_attention
from .blocks import into_blocks, narrow_prefix
from .dropout import dropout
from .options import AttentionConfig, Options, option

SELF_SCORE = -1e5  # of a position with itself: its weight is 0 unless it is the only key (the paper's mask)
SELECTIONS = ("hash", "random", "exact", "segment-means")


@dataclass
class ReformerOptions(Options):
    reformer_chunk_length: int = option(
        64, "m: positions in a chunk, twice the mean size of a bucket; a position attends to three chunks", smallest=1
    )
    reformer_hashes: int = option(4, "r: rounds of hashing, of equal cost; more find more similar keys", smallest=1)
    reformer_local: bool = option(
        False, "one more round in the order of the text: a position also attends to its chunk and both neighbours"
    )
    reformer_selection: str = option(
        "hash",
        "selection of keys: hash, or a control for comparisons. random sorts each round by random numbers; exact "
        "selects the 3 m r keys of highest score for each query; segment-means selects the 3 r segments of m positions "
        "whose mean keys have the highest scores (MoBA). The last two compute all scores, and are slow",
    )

    TEST_CASES: ClassVar = (
        {"reformer_chunk_length": 2, "reformer_hashes": 2},
        {"reformer_chunk_length": 3, "reformer_hashes": 1, "reformer_local": True},
        {"reformer_chunk_length": 4, "reformer_hashes": 3},
        {"reformer_chunk_length": 2, "reformer_hashes": 1, "reformer_selection": "exact"},
        {
            "reformer_chunk_length": 2,
            "reformer_hashes": 1,
            "reformer_local": True,
            "reformer_selection": "segment-means",
        },
    )

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        selection = self.reformer_selection
        check("reformer_selection", selection, selection in SELECTIONS, f"one of {', '.join(SELECTIONS)}")


@register_attention("reformer", ReformerOptions)
class ReformerAttention(Attention):
    """Attention within chunks of the sequence sorted by hash, in several rounds, each pair counted once.

    Keys have no projection and no parameters: ``k_proj`` is ``q_proj``. The rotations are drawn once and kept in
    checkpoints: ``rotations`` (h, r, f, d_h, c).
    """

    QKV_PROJECTIONS = ("v_proj", "q_proj")

    rotations: Tensor

    def __init__(self, config: AttentionConfig, options: ReformerOptions, layer: int):
        super().__init__(config, options, layer)
        self.chunk_length, self.hashes = options.reformer_chunk_length, options.reformer_hashes
        self.local, self.selection = options.reformer_local, options.reformer_selection
        self.functions = 1 if config.max_positions <= self.chunk_length**2 else 2
        columns = int(self._columns(torch.tensor(config.max_positions, device="cpu")))
        shape = (self.num_heads, self.hashes, self.functions, self.head_dim, columns)
        self.register_buffer("rotations", torch.empty(shape))
        self.reset_buffers()

    def reset_buffers(self) -> None:
        self.rotations.normal_()

    @property
    def k_proj(self) -> nn.Linear:  # type: ignore[override]
        """Projection of the queries, which keys share."""
        return self.q_proj

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        n, m = x.size(1), self.chunk_length
        real = self.zero_padding(x, padding_mask)
        lengths = x.new_full((x.size(0),), n, dtype=torch.long) if padding_mask is None else (~padding_mask).sum(1)
        # Project before padding: a matrix product of another layout rounds differently, which can change the hashes.
        projected = (self.q_proj(real), self.values(real, first_values))
        if self.selection in ("exact", "segment-means"):
            queries, values = map(self.split_heads, projected)
            return self.join_heads(self._attend_densely(queries, values, lengths))
        padded = (into_blocks(sequence, m).flatten(1, 2) for sequence in projected)  # (B, N, d)
        queries, values = map(self.split_heads, padded)  # (B, h, N, d_h)
        return self.join_heads(narrow_prefix(self._attend_sparsely(queries, values, lengths), n, dim=2))

    def _attend_sparsely(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Attend in each round, and merge the rounds into one softmax: (B, h, N, d_h) to (B, h, N, d_h)."""
        keys = self._unit_keys(queries)
        order = self._sort_positions(queries, lengths)  # (B, h, r, N), the position at each sorted index
        sorted_index = _inverse(order)  # (B, h, r, N), the sorted index of each position
        chunks = (sorted_index // self.chunk_length).int().unbind(2)  # of each position, for each round
        rows, sorted_rows = _as_rows(order), _as_rows(sorted_index)
        rounds = []
        for number in range(order.size(2)):
            hidden = self._hidden_keys(order[:, :, number], chunks[:number], lengths)
            sorted_qkv = [_permute(part, rows[number], sorted_rows[number]) for part in (queries, keys, values)]
            parts = self._attend_in_chunks([*map(self._into_chunks, sorted_qkv)], hidden, is_first=number == 0)
            rounds.append([_permute(part.flatten(2, 3), sorted_rows[number], rows[number]) for part in parts])
        sums, totals, maxima = zip(*rounds, strict=True)
        max_score = torch.stack(maxima).amax(0)
        scales = [(maximum - max_score).exp() for maximum in maxima]
        total = torch.stack([scale * weights for scale, weights in zip(scales, totals, strict=True)]).sum(0)
        shares = [(scale / total).to(values.dtype) for scale in scales]
        return torch.stack([share * heads for share, heads in zip(shares, sums, strict=True)]).sum(0)

    @staticmethod
    def _unit_keys(queries: Tensor) -> Tensor:
        """Return the keys: the queries at unit length."""
        exact = torch.promote_types(queries.dtype, torch.float32)
        return F.normalize(queries.to(exact), dim=-1).to(queries.dtype)

    @torch.no_grad()
    def _sort_positions(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Sort positions by bucket, then by position: (B, h, N, d_h) -> (B, h, r, N); a local round is the last one."""
        position = torch.arange(queries.size(2), device=queries.device)
        if self.selection == "random":
            shape = (*queries.shape[:2], self.hashes, queries.size(2))
            buckets = torch.randint(torch.iinfo(torch.int32).max, shape, device=queries.device)
        else:
            buckets = self._buckets(queries, lengths)
        buckets = buckets.masked_fill(position >= lengths[:, None, None, None], torch.iinfo(torch.int32).max)
        # All sorted numbers differ, so any sort keeps the order of the sequence; ONNX has no stable sort.
        order = (buckets * position.size(0) + position).sort().indices
        return torch.cat([order, position.expand_as(order[:, :, :1])], dim=2) if self.local else order

    def _buckets(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Return the number of the bucket of each query in each round: (B, h, N, d_h) -> (B, h, r, N)."""
        with torch.autocast(queries.device.type, enabled=False):
            exact = torch.promote_types(queries.dtype, torch.float32)
            vectors = queries.to(exact)[:, :, None, None]  # (B, h, N, d_h) -> (B, h, 1, 1, N, d_h)
            rotated = vectors @ self.rotations.to(exact)  # (B, h, r, f, N, c)
        columns = self._columns(lengths)[:, None, None, None, None]  # (B,) -> (B, 1, 1, 1, 1)
        unused = torch.arange(rotated.size(-1), device=columns.device) >= columns.unsqueeze(-1)
        largest = rotated.abs().masked_fill(unused, -1.0).argmax(-1, keepdim=True)
        negative = rotated.gather(-1, largest).squeeze(-1) < 0
        buckets = largest.squeeze(-1) + columns * negative  # (B, h, r, f, N), each below 2 columns
        digits = (2 * columns) ** torch.arange(self.functions, device=columns.device).view(-1, 1)
        return (buckets * digits).sum(3)

    def _columns(self, lengths: Tensor) -> Tensor:
        """Return the number of columns of a rotation that gives a sequence of length l about 2 l / m buckets."""
        buckets = 2 * lengths / self.chunk_length
        return (buckets ** (1 / self.functions) / 2).ceil().clamp(min=1).long()

    @torch.no_grad()
    def _hidden_keys(self, order: Tensor, earlier_chunks: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Return True for padding and for pairs that an earlier round contains: (B, h, C, m, 3m), by sorted index.

        Args:
            order: (B, h, N), the position at each sorted index.
            earlier_chunks: for each earlier round, the chunk of each position, (B, h, N).
            lengths: (B,).
        """
        position = self._into_chunks(order.unsqueeze(-1))  # (B, h, C, m, 1)
        key_position = _with_neighbours(position, -1).transpose(-1, -2)  # (B, h, C, 1, 3m)
        hidden = (key_position < 0) | (key_position >= lengths.view(-1, 1, 1, 1, 1))
        for chunks in earlier_chunks:
            chunk = chunks.gather(2, order).view_as(position)
            hidden = hidden | ((chunk - _with_neighbours(chunk).transpose(-1, -2)).abs_() <= 1)
        return hidden

    def _into_chunks(self, x: Tensor) -> Tensor:
        """Cut a sorted sequence into chunks: (B, h, N, e) -> (B, h, C, m, e)."""
        return x.unflatten(2, (-1, self.chunk_length))

    def _attend_in_chunks(self, qkv: Sequence[Tensor], hidden: Tensor, is_first: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Attend in one round, by sorted index.

        Args:
            qkv: queries, keys and values, (B, h, C, m, d_h).
            hidden: (B, h, C, m or 1, 3m).
            is_first: True for the first round. Later ones hide each position from itself, as a pair counts once.

        Returns:
            With weights exp(score - highest score): the weighted sum of values, (B, h, C, m, d_h), the sum of weights
            and the highest score, (B, h, C, m, 1) each and at least in float32.
        """
        queries, keys, values = qkv
        scores = queries @ _with_neighbours(keys).transpose(-1, -2)  # (B, h, C, m, 3m)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        with torch.no_grad():  # hidden keys have weights of zero, and the highest score cancels out
            if is_first:
                index = torch.arange(scores.size(-1), device=scores.device)
                scores.masked_fill_(index == index[: self.chunk_length, None] + self.chunk_length, SELF_SCORE)
            highest = scores.masked_fill_(hidden, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
            scores -= highest
        weights = scores.exp_()
        total = weights.sum(-1, keepdim=True)
        weights = dropout(weights, self.dropout, self.training).to(values.dtype)
        return weights @ _with_neighbours(values), total, highest

    def _attend_densely(self, queries: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """Compute all scores, and attend to ``selected_keys``: (B, h, n, d_h) to (B, h, n, d_h)."""
        scores = self.scores(queries, lengths)
        scores = scores.masked_fill(~self.selected_keys(queries, lengths), torch.finfo(scores.dtype).min)
        return dropout(scores.softmax(-1), self.dropout, self.training).to(values.dtype) @ values

    def scores(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores of all keys, (B, h, n, n), at least in float32; the diagonal is ``SELF_SCORE``."""
        scores = queries @ self._unit_keys(queries).transpose(-1, -2)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        diagonal = torch.eye(queries.size(2), dtype=torch.bool, device=queries.device)
        padding = torch.arange(queries.size(2), device=queries.device) >= lengths[:, None, None, None]
        return scores.masked_fill(diagonal, SELF_SCORE).masked_fill(padding, torch.finfo(scores.dtype).min)

    @torch.no_grad()
    def selected_keys(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Return True where a query attends to a key, for any ``reformer_selection``: (B, h, n, d_h) to (B, h, n, n).

        The diagonal is True, with ``SELF_SCORE``: a position attends to itself only if there is no other key.
        """
        n, m = queries.size(2), self.chunk_length
        if self.selection in ("hash", "random"):
            chunks = (_inverse(self._sort_positions(queries, lengths)) // m).int().unbind(2)  # for each round (B, h, n)
            round_masks = ((chunk.unsqueeze(-1) - chunk.unsqueeze(-2)).abs_() <= 1 for chunk in chunks)
            return reduce(torch.logical_or, round_masks)  # one by one, as each has B h n^2 entries
        local = self.local_keys(n, queries.device)
        if self.selection == "exact":
            ranking, width = self.scores(queries, lengths).masked_fill(local, torch.finfo(torch.float32).min), 1
        else:
            ranking, width = self._segment_scores(queries, lengths), m
            if self.local:
                ranking = ranking.masked_fill(local[:, ::m], torch.finfo(torch.float32).min)
        best = ranking.topk(min(3 * m * self.hashes // width, ranking.size(3))).indices
        selected = torch.zeros_like(ranking, dtype=torch.bool).scatter_(-1, best, True)
        return selected.repeat_interleave(width, dim=3)[..., :n] | local

    def local_keys(self, n: int, device: torch.device) -> Tensor:
        """Return True where a query attends to a key without selection, (n, n): the local round, or the diagonal."""
        position = torch.arange(n, device=device)
        if not self.local:
            return position.unsqueeze(1) == position
        return (position.unsqueeze(1) // self.chunk_length - position // self.chunk_length).abs() <= 1

    def _segment_scores(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Score segments of m positions by their mean keys: (B, h, n, d_h) -> (B, h, n, C)."""
        keys = into_blocks(self._unit_keys(queries).transpose(1, 2), self.chunk_length)  # (B, C, m, h, d_h)
        position = torch.arange(queries.size(2), device=queries.device)
        real = into_blocks(position < lengths.unsqueeze(1), self.chunk_length)  # (B, C, m)
        means = (keys * real[..., None, None]).sum(2) / real.sum(2).clamp(min=1)[..., None, None]  # (B, C, h, d_h)
        scores = (queries @ means.permute(0, 2, 3, 1)).to(torch.promote_types(queries.dtype, torch.float32))
        return scores.masked_fill(~real[:, None, None, :, 0], torch.finfo(scores.dtype).min)


def _inverse(order: Tensor) -> Tensor:
    """Return the inverse of permutations, (..., N)."""
    index = torch.arange(order.size(-1), device=order.device)
    return torch.empty_like(order).scatter_(-1, order, index.expand_as(order))


class _Permutation(torch.autograd.Function):
    """Permutation of rows. Its gradient is the inverse permutation, faster than a sum, and deterministic on a GPU."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, *ctx.saved_tensors), None, None


def _as_rows(order: Tensor) -> tuple[Tensor, ...]:
    """Return positions as rows of all sequences and heads, for each round: (B, h, r, N) to r times (B h N,)."""
    sequences = torch.arange(order[..., 0, 0].numel(), device=order.device).view(*order.shape[:2], 1, 1)
    return (sequences * order.size(3) + order).movedim(2, 0).flatten(1).unbind(0)


def _permute(x: Tensor, rows: Tensor, inverse: Tensor) -> Tensor:
    """Permute the positions of x, (B, h, N, e), by ``_as_rows`` of a permutation and of its inverse."""
    permuted: Tensor = _Permutation.apply(x.flatten(0, 2), rows, inverse)
    return permuted.view_as(x)


def _with_neighbours(chunks: Tensor, fill: int = 0) -> Tensor:
    """Concatenate each chunk with both neighbours, `fill` beyond the ends: (..., C, m, e) -> (..., C, 3m, e)."""
    padded = F.pad(chunks, (0, 0, 0, 0, 1, 1), value=fill)
    return torch.cat([padded[..., :-2, :, :], padded[..., 1:-1, :, :], padded[..., 2:, :, :]], dim=-2)
