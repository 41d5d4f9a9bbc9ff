"""What a layer fetches, on a GPU: which segments, and attention over them, by kernels of our own in Triton.

``local.py`` copies for each block of queries the keys of all segments that it looks at, and of those that it
fetches. Here a block reads them where they stand. Both give the same but for rounding; in bfloat16 a rounded score may
choose another segment. As in FlashAttention (Dao et al. 2022, arXiv 2205.14135) the scores of attention reach no
memory, and the backward pass computes them again. There are no atomic additions: a program per segment adds up what all
blocks that fetched it make of it, so that gradients are the same in every run.

Nothing here imports fairseq. Dimensions: B batch, n sequence length, b block, N = ceil(n / b) blocks, m rows, w
positions of the longest segment, c segments that a block fetches, s keys, h heads, d_h their size.
"""

from typing import Any, cast

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..linformer import LinformerAttention
from ..local import CANDIDATES, near_of
from ..pooling import WindowProjection
from . import selection_triton as kernels

LEAST = 16  # entries of a side of a matrix product in Triton
# What was fastest on an H200: keys at a time, candidates' keys, rows whose scores fit into registers, and warps.
TILE, CANDIDATES_TILE, AT_ONCE, WARPS = 64, 128, 256, 2


def _sizes(queries: Tensor, ends: Tensor, size: int) -> tuple[tuple[int, int, int, int, int], tuple[int, int, int]]:
    """(N, h, m, d_h, n), and the grid of programs of blocks."""
    batch, length, heads, width = queries.shape
    blocks = -(-length // size)
    return (blocks, heads, ends.size(1) - 1, width, length), (blocks, heads, batch)


def _side(entries: int) -> int:
    return max(LEAST, triton.next_power_of_2(entries))


def _constants(queries: Tensor, size: int) -> dict[str, int]:
    return {"BQ": _side(size), "BD": _side(queries.size(-1))}


def _of(ends: Tensor) -> tuple[Tensor, int]:
    """The ends, and from one text to the next: none where there is one for all."""
    return ends, 0 if ends.size(0) == 1 else ends.stride(0)


def _strided(x: Tensor) -> tuple[Any, ...]:
    """A tensor (B, n, h, d_h) as the kernels take it, d_h side by side."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    return x, x.stride(0), x.stride(1), x.stride(2)


def choose_segments(
    queries: Tensor, keys: Tensor, rows: Tensor, ends: Tensor, width: int, size: int, beside: int, count: int
) -> Tensor:
    """What ``Near.choose_segments`` gives, (B, h, N, c), of queries and keys (B, n, h, d_h) and rows (B, h, m, d_h)."""
    sizes, grid = _sizes(queries, ends, size)
    blocks, heads, m, _, length = sizes
    constants, scale = _constants(queries, size), queries.size(-1) ** -0.5
    weights = queries.new_empty((queries.size(0), heads, blocks, m), dtype=torch.float32)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    kernels.weigh_rows_kernel[grid](
        *_strided(queries), rows, *rows.stride()[:3], *_of(ends), weights,
        *sizes, size, beside, scale, BM=_side(m) if m <= AT_ONCE else TILE, WHOLE=m <= AT_ONCE, **constants,
    )  # fmt: skip
    candidates = weights.topk(min(CANDIDATES * count, m), sorted=False).indices.int()
    c = candidates.size(-1)
    best = weights.new_empty((*candidates.shape[:3], size, c))
    of_width = min(CANDIDATES_TILE, triton.next_power_of_2(width))
    tile = {"BS": CANDIDATES_TILE // of_width, "BW": of_width, "PARTS": -(-width // of_width), "num_warps": WARPS}
    kernels.weigh_candidates_kernel[grid](
        *_strided(queries), *_strided(keys), *_of(ends), candidates, best,
        *sizes[:4], c, length, size, beside, scale, **tile, **constants,
    )  # fmt: skip
    found = best.softmax(-1).sum(3).topk(min(count, m), sorted=False).indices
    return candidates.gather(3, found)


def _text(x: Tensor, at: int, length: int) -> tuple[Any, ...]:
    """The text's part of keys, values or their gradients, as the kernels take it."""
    return _strided(x.narrow(1, at, length))


class AttendFetched(torch.autograd.Function):
    """Goes on with a softmax over what the blocks fetch."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, near: Tensor, near_lse: Tensor, ends: Tensor,
        chosen: Tensor, key_at: int, value_at: int, width: int, size: int, beside: int, sinks: int,
    ) -> Tensor:  # fmt: skip
        """What the queries make of all keys, (B, n, h, d_h).

        Args:
            queries: (B, n, h, d_h).
            keys, values: (B, s, h, d_h), of which the text's n begin at `key_at` and `value_at`.
            near, near_lse: what the queries made of the other keys, (B, n, h, d_h), and the logarithm of the sum of the
                exponentials of their scores, (B, h, n), in float32.
            ends, width: where segments begin, (B or 1, m + 1), of which the last is l; and w.
            chosen: what ``choose_segments`` gave.
            size, beside, sinks: b, positions beside a block that it sees anyway, and first ones that every block does.
        """
        sizes, grid = _sizes(queries, ends, size)
        out, lse = queries.new_empty(queries.shape), near_lse.new_empty(near_lse.shape)
        kernels.attend_kernel[grid](
            *_strided(queries), *_text(keys, key_at, sizes[4]), *_text(values, value_at, sizes[4]), *_strided(near),
            near_lse.contiguous(), *_of(ends), chosen, out, lse,
            *sizes[:4], chosen.size(3), sizes[4], size, beside, sinks, queries.size(-1) ** -0.5,
            BK=TILE, BW=triton.next_power_of_2(width), **_constants(queries, size), num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(queries, keys, values, near, near_lse, out, lse, ends, chosen)
        ctx.numbers = key_at, value_at, width, size, beside, sinks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of queries, keys, values, near and near_lse."""
        queries, keys, values, near, near_lse, out, lse, ends, chosen = ctx.saved_tensors
        key_at, value_at, width, size, beside, sinks = ctx.numbers
        sizes, grid = _sizes(queries, ends, size)
        m, length = sizes[2], sizes[4]
        constants, count = _constants(queries, size), chosen.size(3)
        grad_queries, grad_near = queries.new_empty(queries.shape), near.new_empty(queries.shape)
        grad_keys, grad_values = keys.new_zeros(keys.shape), values.new_zeros(values.shape)
        grad_near_lse, along = torch.empty_like(lse), torch.empty_like(lse)
        strided = (*_strided(queries), *_text(keys, key_at, length), *_text(values, value_at, length))
        rest = (*sizes[:4], count, length, size, beside, sinks, queries.size(-1) ** -0.5)
        kernels.attend_backward_kernel[grid](
            *strided, *_strided(near), near_lse.contiguous(), out, lse, *_strided(grad), *_of(ends), chosen,
            grad_queries, grad_near, grad_near_lse, along, *rest,
            BK=TILE, BW=triton.next_power_of_2(width), **constants, num_warps=WARPS,
        )  # fmt: skip
        listed = chosen.flatten(2).sort(dim=2, stable=True)
        each = torch.arange(m + 1, device=chosen.device, dtype=chosen.dtype).expand(*chosen.shape[:2], m + 1)
        first = torch.searchsorted(listed.values, each.contiguous()).int()
        of_width = min(TILE, _side(width))
        kernels.segments_backward_kernel[(m * -(-width // of_width), grid[1], grid[2])](
            *strided, lse, along, *_strided(grad), *_of(ends), (listed.indices // count).int(), first,
            *_text(grad_keys, key_at, length), *_text(grad_values, value_at, length), *rest,
            BW=of_width, **constants, num_warps=WARPS,
        )  # fmt: skip
        return grad_queries, grad_keys, grad_values, grad_near, grad_near_lse, *[None] * 8


def fetch(
    attention: LinformerAttention,
    queries: Tensor,
    keys: tuple[Tensor, int],
    values: tuple[Tensor, int],
    near: Tensor,
    near_lse: Tensor,
    contents: tuple[Tensor, Tensor],
    padding_mask: Tensor | None,
) -> Tensor:
    """Chooses segments and goes on with a softmax over them; arguments as for ``AttendFetched``.

    Args:
        keys, values: with where the text begins in them.
        contents: keys of positions and of rows that the choice is made by.

    Returns:
        (B, n, h, d_h).
    """
    length = queries.size(1)
    about = near_of(attention, length, padding_mask)
    ends, width = cast(WindowProjection, attention.key_projection).ends(length, padding_mask, queries.device)
    ends, place = ends.int(), (width, about.size, about.beside)
    numbers = keys[1], values[1], *place, about.sinks
    with torch.cuda.device_of(queries):  # Triton takes the current one
        with torch.no_grad():
            chosen = choose_segments(queries, *contents, ends, *place, attention.fetch)
        out = AttendFetched.apply(queries, keys[0], values[0], near, near_lse, ends, chosen, *numbers)
    return cast(Tensor, out)
