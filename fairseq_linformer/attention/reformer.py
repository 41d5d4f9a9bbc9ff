"""Reformer: attention by locality-sensitive hashing (Kitaev et al. 2020, arXiv 2001.04451, section 2 and appendix A).

    o_i = sum over j in A_i of softmax_j(q_i . q_j / |q_j|) v_j,    A_i = union over rounds of A_i^(r), without i

Keys are the queries at unit length. A round of locality-sensitive hashing sorts the positions by their buckets, h(q) =
argmax([q R; -q R]) for a random R, and cuts the sorted sequence into chunks of m. A_i^(r) is the chunk of i and both
neighbouring chunks. A position attends to itself only if A_i is empty.

Dimensions: B batch, n sequence length, N = C m with C = ceil(n / m) chunks, r rounds, f hash functions per round, c
columns of a rotation, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B r n m d + B r n c d + B h r n log n) time, with c at most m, or sqrt(n / 2m) + 1 if that
is more; O(B n d + B h r n (m + d_h)) memory, linear in n.

As in the authors' code and experiments, a whole chunk is attended to, whatever its buckets; there are about 2 l / m
buckets for l positions; two hash functions together number them if there could be more than 2 m buckets; and scores are
q_i . k_j for keys of unit length without a further 1 / sqrt(d_h). As attention is bidirectional, both neighbouring
chunks are used; none wraps around.

Padding is sorted to the end and hidden. A sequence has the buckets of its length l without padding, by the first
columns of its rotations, so that its chunks do not depend on padding.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, register_attention
from .blocks import into_blocks, narrow_prefix
from .dropout import dropout
from .options import AttentionConfig, Options, option

ITSELF = -1e5  # score of a position with itself: negligible unless it is the only key (the paper's mask)


@dataclass
class ReformerOptions(Options):
    reformer_chunk_length: int = option(
        64, "m: positions in a chunk, twice the mean size of a bucket; a position attends to three chunks", smallest=1
    )
    reformer_hashes: int = option(4, "r: rounds of hashing, of equal cost; more find more similar keys", smallest=1)

    TEST_CASES: ClassVar = (
        {"reformer_chunk_length": 2, "reformer_hashes": 2},
        {"reformer_chunk_length": 3, "reformer_hashes": 1},
        {"reformer_chunk_length": 4, "reformer_hashes": 3},
    )


@register_attention("reformer", ReformerOptions)
class ReformerAttention(Attention):
    """Attention within chunks of the sequence sorted by hash, in several rounds, each pair counted once.

    There is no projection of keys: ``k_proj`` is ``q_proj``, without parameters. The rotations are drawn once and kept
    in checkpoints: ``rotations`` (h, r, f, d_h, c).
    """

    QKV_PROJECTIONS = ("v_proj", "q_proj")

    rotations: Tensor

    def __init__(self, config: AttentionConfig, options: ReformerOptions, layer: int):
        super().__init__(config, options, layer)
        self.chunk_length = options.reformer_chunk_length
        self.hashes = options.reformer_hashes
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
        chunks = (n + m - 1) // m
        real = self.zero_padding(x, padding_mask)
        lengths = x.new_full((x.size(0),), n, dtype=torch.long) if padding_mask is None else (~padding_mask).sum(1)
        # Project before padding: a matrix product of another layout rounds differently, which can change the hashes.
        projected = (self.q_proj(real), self.values(real, first_values))
        padded = (into_blocks(sequence, m).flatten(1, 2) for sequence in projected)  # (B, N, d)
        queries, values = (self.split_heads(sequence) for sequence in padded)  # (B, h, N, d_h)

        order = self._sorted(queries, lengths)  # (B, h, r, N), the position at each sorted index
        sorted_index = order.argsort(-1)  # (B, h, r, N), the sorted index of each position
        order = order.unflatten(-1, (chunks, m))  # (B, h, r, N) -> (B, h, r, C, m)
        bias = self._bias(order, sorted_index, lengths, torch.promote_types(x.dtype, torch.float32))
        outputs, totals = self._attend_in_chunks(queries, values, order, bias)
        totals = totals.flatten(3).gather(3, sorted_index)  # (B, h, r, N)
        shares = totals.softmax(2).to(outputs.dtype)  # of each round in the sum
        outputs = outputs.flatten(3, 4).gather(3, sorted_index.unsqueeze(-1).expand(-1, -1, -1, -1, self.head_dim))
        heads = (outputs * shares.unsqueeze(-1)).sum(2)  # (B, h, r, N, d_h) -> (B, h, N, d_h)
        return self.join_heads(narrow_prefix(heads, n, dim=2))

    def _sorted(self, queries: Tensor, lengths: Tensor) -> Tensor:
        """Sort positions by bucket, then by position: (B, h, N, d_h) -> (B, h, r, N)."""
        with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
            exact = torch.promote_types(queries.dtype, torch.float32)
            vectors = queries.to(exact)[:, :, None, None]  # (B, h, N, d_h) -> (B, h, 1, 1, N, d_h)
            rotated = vectors @ self.rotations.to(exact)  # (B, h, r, f, N, c)
            columns = self._columns(lengths)[:, None, None, None, None]  # (B,) -> (B, 1, 1, 1, 1)
            later = torch.arange(rotated.size(-1), device=columns.device) >= columns.unsqueeze(-1)
            strongest = rotated.abs().masked_fill(later, -1.0).argmax(-1, keepdim=True)
            negative = rotated.gather(-1, strongest).squeeze(-1) < 0
            buckets = strongest.squeeze(-1) + columns * negative  # (B, h, r, f, N), each below 2 columns
            digits = (2 * columns) ** torch.arange(self.functions, device=columns.device).view(-1, 1)
            numbers = (buckets * digits).sum(3)  # (B, h, r, N)
            position = torch.arange(numbers.size(-1), device=columns.device)
            numbers = numbers.masked_fill(position >= lengths[:, None, None, None], torch.iinfo(torch.int32).max)
            # All keys differ, so any sort keeps the order of the sequence; ONNX has no stable sort.
            return (numbers * position.size(0) + position).sort().indices

    def _columns(self, lengths: Tensor) -> Tensor:
        """Return the columns of a rotation for a sequence of length l, for about 2 l / m buckets."""
        buckets = 2 * lengths / self.chunk_length
        return (buckets ** (1 / self.functions) / 2).ceil().clamp(min=1).long()

    @torch.no_grad()
    def _bias(self, order: Tensor, sorted_index: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
        """Return minus the logarithm of the number of rounds that contain a pair, by sorted index: (B, h, r, C, m, 3m).

        So a pair counts once in the sum over rounds (appendix A). The weight of a position with itself is negligible,
        that of padding zero.
        """
        position = order.unsqueeze(-1)  # (B, h, r, C, m, 1)
        key_position = _with_neighbours(position, -1).transpose(-1, -2)  # (B, h, r, C, 1, 3m)
        times = torch.ones_like(position == key_position, dtype=dtype)  # its own round contains a pair
        chunks = (sorted_index // self.chunk_length).to(dtype)  # of positions, in each round
        for shift in range(1, self.hashes):
            chunk = chunks.roll(shift, dims=2).gather(3, order.flatten(3)).view_as(position)  # (B, h, r, C, m, 1)
            times += (chunk - _with_neighbours(chunk).transpose(-1, -2)).abs() <= 1
        bias = -times.log()
        bias = bias.masked_fill(position == key_position, ITSELF)
        real = (key_position >= 0) & (key_position < lengths.view(-1, 1, 1, 1, 1, 1))
        return bias.masked_fill(~real, torch.finfo(dtype).min)

    def _attend_in_chunks(self, queries: Tensor, values: Tensor, order: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Attend in each round, by sorted index: outputs (B, h, r, C, m, d_h) and log-sum-exp (B, h, r, C, m, 1).

        Args:
            queries, values: (B, h, N, d_h), by position.
            order: (B, h, r, C, m), the position at each sorted index.
            bias: (B, h, r, C, m, 3m), to add to the scores, at least in float32.
        """
        keys = F.normalize(queries.to(bias.dtype), dim=-1).to(queries.dtype)
        keys, values = (_with_neighbours(_gather(part, order)) for part in (keys, values))  # (B, h, r, C, 3m, d_h)
        scores = _gather(queries, order) @ keys.transpose(-1, -2) + bias  # (B, h, r, C, m, 3m)
        highest = scores.detach().amax(-1, keepdim=True)
        weights = (scores - highest).exp()
        total = weights.sum(-1, keepdim=True)
        weights = dropout(weights / total, self.dropout, self.training).to(values.dtype)
        return weights @ values, highest + total.log()


def _gather(x: Tensor, order: Tensor) -> Tensor:
    """Gather (B, h, N, e) at the positions (B, h, r, C, m): (B, h, r, C, m, e)."""
    index = order.flatten(2).unsqueeze(-1).expand(-1, -1, -1, x.size(-1))  # (B, h, r N, e)
    return x.gather(2, index).unflatten(2, order.shape[2:])


def _with_neighbours(chunks: Tensor, fill: int = 0) -> Tensor:
    """Concatenate each chunk with both neighbours, `fill` outside: (..., C, m, e) -> (..., C, 3m, e)."""
    around = F.pad(chunks, (0, 0, 0, 0, 1, 1), value=fill)
    return torch.cat([around[..., :-2, :, :], around[..., 1:-1, :, :], around[..., 2:, :, :]], dim=-2)
