"""Selection of segments, and attention to them, by Triton kernels on a GPU.

``attention/selection.py`` copies the keys of all candidates for each query block, and ``local.py`` those of the
selected segments. These kernels read them in place. Results differ by rounding alone; in bfloat16 a rounded score may
select another segment. As in FlashAttention (Dao et al. 2022, arXiv 2205.14135) attention scores are never written to
memory, and the backward pass recomputes them. There are no atomic additions: one program per segment sums the gradients
of all blocks that selected it, so that gradients are deterministic.

Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, m projected keys, w positions of the longest
segment, c selected segments, s keys, h heads, d_h their size.
"""

from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..linformer import LinformerAttention
from ..pooling import WindowProjection
from ..selection import CANDIDATES
from . import FlexInputs
from . import selection_triton as kernels

MIN_SIDE = 16  # minimum side of a matrix product in Triton
# Fastest on an H200: keys per tile, candidates' keys per tile, projected keys whose scores fit into registers, warps.
TILE, CANDIDATES_TILE, MAX_SCORES, WARPS = 64, 128, 256, 2


class Layout(NamedTuple):
    """Segments of the texts and blocks of the queries.

    Attributes:
        offsets: starts of segments, then the length of the text, (B or 1, m + 1); int32.
        width: w.
        size, margin, sinks: as in ``LocalContext``.
    """

    offsets: Tensor
    width: int
    size: int
    margin: int
    sinks: int

    def sizes(self, queries: Tensor) -> tuple[int, int, int, int]:
        """Return (N, h, m, d_h)."""
        _, length, heads, head_dim = queries.shape
        return -(-length // self.size), heads, self.offsets.size(1) - 1, head_dim

    def constants(self, queries: Tensor) -> dict[str, int]:
        return {"BQ": _pad_to_tile(self.size), "BD": _pad_to_tile(queries.size(-1))}

    def with_batch_stride(self) -> tuple[Tensor, int]:
        """Return the offsets, and their batch stride: 0 if all texts share one row."""
        return self.offsets, 0 if self.offsets.size(0) == 1 else self.offsets.stride(0)


def _pad_to_tile(entries: int) -> int:
    return max(MIN_SIDE, triton.next_power_of_2(entries))


def _strided(x: Tensor, start: int = 0, length: int | None = None) -> tuple[Any, ...]:
    """Return a tensor (B, n, h, d_h), or `length` positions of it, with contiguous d_h, and its first three strides."""
    x = x if length is None else x.narrow(1, start, length)
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1), x.stride(2)


def select_segments(queries: Tensor, keys: Tensor, summaries: Tensor, layout: Layout, count: int) -> Tensor:
    """Compute ``selection.select_segments`` for (B, n, h, d_h) and summaries (B, h, m, d_h): (B, h, N, c)."""
    sizes, length = layout.sizes(queries), queries.size(1)
    blocks, heads, m, _ = sizes
    batch, grid = queries.size(0), (blocks, heads, queries.size(0))
    constants, scale = layout.constants(queries), queries.size(-1) ** -0.5
    weights = queries.new_empty((batch, heads, blocks, m), dtype=torch.float32)
    summaries = summaries if summaries.stride(-1) == 1 else summaries.contiguous()
    kernels.score_segments_kernel[grid](
        *_strided(queries), summaries, *summaries.stride()[:3], *layout.with_batch_stride(), weights,
        *sizes, length, layout.size, layout.margin, scale,
        BM=_pad_to_tile(m) if m <= MAX_SCORES else TILE, WHOLE=m <= MAX_SCORES, **constants,
    )  # fmt: skip
    candidates = weights.topk(min(CANDIDATES * count, m), sorted=False).indices.int()
    c = candidates.size(-1)
    best = weights.new_empty((*candidates.shape[:3], layout.size, c))
    tile = min(CANDIDATES_TILE, triton.next_power_of_2(layout.width))
    tiles = {"BS": CANDIDATES_TILE // tile, "BW": tile, "PARTS": -(-layout.width // tile), "num_warps": WARPS}
    kernels.best_keys_kernel[grid](
        *_strided(queries), *_strided(keys), *layout.with_batch_stride(), candidates, best,
        *sizes, c, length, layout.size, layout.margin, scale, **tiles, **constants,
    )  # fmt: skip
    ranked = best.softmax(-1).sum(3).topk(min(count, m), sorted=False).indices
    return candidates.gather(3, ranked)


class AttendToSelected(torch.autograd.Function):
    """Extension of a partial softmax (output, log-sum-exp) by the selected keys."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, partial: Tensor, partial_lse: Tensor,
        selected: Tensor, key_start: int, value_start: int, layout: Layout,
    ) -> Tensor:  # fmt: skip
        """Return the attention over all keys, (B, n, h, d_h).

        Args:
            queries: (B, n, h, d_h).
            keys, values: (B, s, h, d_h); those of the text begin at `key_start` and `value_start`.
            partial, partial_lse: the attention over all other keys, (B, n, h, d_h), and the log-sum-exp of their
                scores, (B, h, n), in float32.
            selected: the result of ``select_segments``.
            layout: of segments and blocks.
        """
        length = queries.size(1)
        blocks, heads, m, head_dim = layout.sizes(queries)
        out, lse = queries.new_empty(queries.shape), partial_lse.new_empty(partial_lse.shape)
        kernels.attend_kernel[(blocks, heads, queries.size(0))](
            *_strided(queries), *_strided(keys, key_start, length), *_strided(values, value_start, length),
            *_strided(partial), partial_lse.contiguous(), *layout.with_batch_stride(), selected, out, lse,
            blocks, heads, m, head_dim, selected.size(3), length, *layout[2:], head_dim**-0.5,
            BK=TILE, BW=triton.next_power_of_2(layout.width), **layout.constants(queries), num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(queries, keys, values, partial, partial_lse, out, lse, layout.offsets, selected)
        ctx.numbers = key_start, value_start, layout[1:]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of queries, keys, values, partial and partial_lse."""
        queries, keys, values, partial, partial_lse, out, lse, offsets, selected = ctx.saved_tensors
        key_start, value_start, block_layout = ctx.numbers
        layout, length, count = Layout(offsets, *block_layout), queries.size(1), selected.size(3)
        blocks, heads, m, head_dim = layout.sizes(queries)
        constants = layout.constants(queries)
        grad_queries, grad_partial = queries.new_empty(queries.shape), partial.new_empty(queries.shape)
        grad_keys, grad_values = keys.new_zeros(keys.shape), values.new_zeros(values.shape)
        grad_partial_lse, delta = torch.empty_like(lse), torch.empty_like(lse)
        inputs = *_strided(queries), *_strided(keys, key_start, length), *_strided(values, value_start, length)
        sizes = blocks, heads, m, head_dim, count, length, *layout[2:], head_dim**-0.5
        kernels.attend_backward_kernel[(blocks, heads, queries.size(0))](
            *inputs, *_strided(partial), partial_lse.contiguous(), out, lse, *_strided(grad),
            *layout.with_batch_stride(), selected, grad_queries, grad_partial, grad_partial_lse, delta, *sizes,
            BK=TILE, BW=triton.next_power_of_2(layout.width), **constants, num_warps=WARPS,
        )  # fmt: skip
        by_segment = selected.flatten(2).sort(dim=2, stable=True)
        ids = torch.arange(m + 1, device=selected.device, dtype=selected.dtype).expand(*selected.shape[:2], m + 1)
        first = torch.searchsorted(by_segment.values, ids.contiguous()).int()
        tile = min(TILE, _pad_to_tile(layout.width))
        kernels.segments_backward_kernel[(m * -(-layout.width // tile), heads, queries.size(0))](
            *inputs, lse, delta, *_strided(grad), *layout.with_batch_stride(), (by_segment.indices // count).int(),
            first, *_strided(grad_keys, key_start, length), *_strided(grad_values, value_start, length), *sizes,
            BW=tile, **constants, num_warps=WARPS,
        )  # fmt: skip
        return grad_queries, grad_keys, grad_values, grad_partial, grad_partial_lse, None, None, None, None


def attend_to_selected(
    attention: LinformerAttention, inputs: FlexInputs, partial: Tensor, lse: Tensor, padding_mask: Tensor | None
) -> Tensor:
    """Select segments and extend the partial softmax of ``FlexKernel`` by their keys: (B, n, h, d_h)."""
    assert inputs.unrotated_keys is not None
    queries, length = inputs.queries, inputs.queries.size(1)
    context = attention.local_context(length, padding_mask)
    projection = cast(WindowProjection, attention.key_projection)
    offsets, width = projection.segment_offsets(length, padding_mask, queries.device)
    layout = Layout(offsets.int(), width, context.size, context.margin, context.sinks)
    start = inputs.prefix_len + inputs.prefix_pad
    keys, key_start = (inputs.unrotated_keys[0], 0) if attention.rotary_dim else (inputs.keys, start)
    with torch.cuda.device_of(queries):  # Triton launches on the current device
        with torch.no_grad():
            selected = select_segments(queries, *inputs.unrotated_keys, layout, attention.num_selected)
        out = AttendToSelected.apply(queries, keys, inputs.values, partial, lse, selected, key_start, start, layout)
    return cast(Tensor, out)
