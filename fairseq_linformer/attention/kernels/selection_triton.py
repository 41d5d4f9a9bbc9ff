"""Kernels in Triton for what a layer fetches; ``selection.py`` calls them.

A program is a block of `size` queries of one head or, in the last kernel, a segment. There are N blocks, H heads of D
dimensions, M rows and C segments that are looked at or fetched; BQ and BD are `size` and D padded to what Triton
multiplies, BW positions of a segment are taken at a time, and ``x_b``, ``x_n``, ``x_h`` are the strides of x along the
batch, positions and heads.
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b):
    """A product that rounds float32 no further."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _block(
    pointer, stride_b, stride_n, stride_h, batch, head, first, size, length, D, BQ: tl.constexpr, BD: tl.constexpr
):
    """Rows of a block, (BQ, BD), zeros beyond it."""
    row, column = tl.arange(0, BQ), tl.arange(0, BD)
    inside = (row < size) & (first + row < length)
    at = pointer + batch * stride_b + head * stride_h + (first + row)[:, None] * stride_n + column[None, :]
    return tl.load(at, mask=inside[:, None] & (column < D)[None, :], other=0.0)


@triton.jit
def _is_near(first, last, start, size, beside):
    """Whether a block that starts there sees all of the places from first to last, counted from 1."""
    return (first > start - beside) & (last <= start + size + beside)


@triton.jit
def _row_scores(q, rows, r_m, ends, number, M, D, scale, BD: tl.constexpr):
    """Of a block's queries with some rows, (BQ, BM), and where the rows' segments begin and end."""
    column, listed = tl.arange(0, BD), number < M
    left = tl.load(ends + number, mask=listed, other=0)
    right = tl.load(ends + number + 1, mask=listed, other=0)
    some = listed[None, :] & (column < D)[:, None]
    r = tl.load(rows + number[None, :] * r_m + column[:, None], mask=some, other=0.0)
    scores = _dot(q, r) * scale
    return tl.where((right > left)[None, :], scores, -3.0e38), left, right


@triton.jit
def weigh_rows_kernel(
    queries, q_b, q_n, q_h, rows, r_b, r_h, r_m, ends, e_b, weights,
    N, H, M, D, length, size, beside, scale,
    BQ: tl.constexpr, BM: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Each row's share of the softmax of a block's queries over all rows, summed; -1 of what the block may not fetch.

    WHOLE: all rows are scored at once. Without it they are scored twice, as their sum must be known first.
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, row, inside = block * size, tl.arange(0, BM), tl.arange(0, BQ) < size
    rows, ends = rows + batch * r_b + head * r_h, ends + batch * e_b
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, min(length, tl.load(ends + M)), D, BQ, BD)
    highest, total = tl.full([BQ], -3.0e38, tl.float32), tl.zeros([BQ], tl.float32)
    if not WHOLE:
        for base in range(0, M, BM):
            scores, _, _ = _row_scores(q, rows, r_m, ends, base + row, M, D, scale, BD)
            higher = tl.maximum(highest, tl.max(scores, 1))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(scores - higher[:, None]), 1)
            highest = higher
    for base in range(0, M, BM):
        scores, left, right = _row_scores(q, rows, r_m, ends, base + row, M, D, scale, BD)
        if WHOLE:
            highest = tl.max(scores, 1)
            shares = tl.exp(scores - highest[:, None])
            shares = shares / tl.sum(shares, 1)[:, None]
        else:
            shares = tl.exp(scores - highest[:, None]) / total[:, None]
        shares = tl.sum(tl.where(inside[:, None], shares, 0.0), 0)
        away = (right > left) & ~_is_near(left + 1, right, start, size, beside)
        to = weights + ((batch * H + head) * N + block) * M + base + row
        tl.store(to, tl.where(away, shares, -1.0), mask=base + row < M)


@triton.jit
def weigh_candidates_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, ends, e_b, candidates, best,
    N, H, M, D, C, length, size, beside, scale,
    BQ: tl.constexpr, BS: tl.constexpr, BW: tl.constexpr, PARTS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """By each query of a block its highest score in each candidate, -3e38 of what the block may not fetch."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, text = block * size, tl.load(ends + batch * e_b + M)
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, min(length, text), D, BQ, BD)
    program = (batch * H + head) * N + block
    slot, column, query = tl.arange(0, BS * BW), tl.arange(0, BD), tl.arange(0, BQ)
    segment, own = tl.arange(0, BS), slot // BW
    for base in range(0, C, BS):
        number = tl.load(candidates + program * C + base + own, mask=base + own < C, other=0)
        left = tl.load(ends + batch * e_b + number)
        right = tl.where(base + own < C, tl.load(ends + batch * e_b + number + 1), left)
        found = tl.full([BQ, BS], -3.0e38, tl.float32)
        for part in tl.static_range(PARTS):
            position = left + slot % BW + part * BW
            at = keys + batch * k_b + head * k_h + position[None, :].to(tl.int64) * k_n + column[:, None]
            k = tl.load(at, mask=(position < right)[None, :] & (column < D)[:, None], other=0.0)
            scores = _dot(q, k) * scale
            scores = tl.where((position < right)[None, :], scores, -3.0e38)
            found = tl.maximum(found, tl.max(tl.reshape(scores, [BQ, BS, BW]), 2))
        # The same for each segment, once.
        number = tl.load(candidates + program * C + base + segment, mask=base + segment < C, other=0)
        left, right = tl.load(ends + batch * e_b + number), tl.load(ends + batch * e_b + number + 1)
        away = (right > left) & ~_is_near(left + 1, right, start, size, beside)
        found = tl.where(away[None, :], found, -3.0e38)
        to = best + (program * size + query)[:, None] * C + (base + segment)[None, :]
        tl.store(to, found, mask=(query < size)[:, None] & (base + segment < C)[None, :])


@triton.jit
def _fetched(ends, e_b, batch, number, off, start, size, beside, sinks, listed):
    """Positions of segments, and whether a block fetches them there: they are no row, no sink and not near."""
    left = tl.load(ends + batch * e_b + number, mask=listed, other=0)
    right = tl.load(ends + batch * e_b + number + 1, mask=listed, other=0)
    position = left + off
    seen = (position < right) & (right - left > 1) & (position >= sinks)
    return position, seen & ~_is_near(position + 1, position + 1, start, size, beside)


@triton.jit
def _near_lse(near_lse, of_query, inside):
    """The logarithm of a block's sums over near keys; where there is none, as in a row of padding, no infinity."""
    return tl.maximum(tl.load(near_lse + of_query, mask=inside, other=0.0), -1.0e30)


@triton.jit
def attend_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, near, o_b, o_n, o_h, near_lse,
    ends, e_b, chosen, out, out_lse,
    N, H, M, D, C, length, size, beside, sinks, scale,
    BQ: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Goes on with a block's softmax, of which `near` and its logarithm of the sum are known, over what it fetches."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, program = block * size, (batch * H + head) * N + block
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
    acc = _block(near, o_b, o_n, o_h, batch, head, start, size, length, D, BQ, BD).to(tl.float32)
    query, column, slot = tl.arange(0, BQ), tl.arange(0, BD), tl.arange(0, BK)
    inside = (query < size) & (start + query < length)
    of_query = (batch * H + head) * length + start + query
    highest, total = _near_lse(near_lse, of_query, inside), tl.full([BQ], 1.0, tl.float32)
    for base in range(0, C * BW, BK):
        place = base + slot
        number = tl.load(chosen + program * C + place // BW, mask=place < C * BW, other=0)
        position, seen = _fetched(ends, e_b, batch, number, place % BW, start, size, beside, sinks, place < C * BW)
        at = position.to(tl.int64)
        k = tl.load(keys + batch * k_b + head * k_h + at[None, :] * k_n + column[:, None],
                    mask=seen[None, :] & (column < D)[:, None], other=0.0)  # fmt: skip
        v = tl.load(values + batch * v_b + head * v_h + at[:, None] * v_n + column[None, :],
                    mask=seen[:, None] & (column < D)[None, :], other=0.0)  # fmt: skip
        scores = tl.where(seen[None, :], _dot(q, k) * scale, -3.0e38)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, kept = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        weights = tl.where(seen[None, :], weights, 0.0)
        total = total * kept + tl.sum(weights, 1)
        acc = acc * kept[:, None] + _dot(weights.to(v.dtype), v)
        highest = higher
    acc = acc / total[:, None]
    to = out + ((batch * length + start + query) * H + head)[:, None] * D + column[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=inside[:, None] & (column < D)[None, :])
    tl.store(out_lse + of_query, highest + tl.log(total), mask=inside)


@triton.jit
def attend_backward_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, near, o_b, o_n, o_h, near_lse,
    out, lse, grad, g_b, g_n, g_h, ends, e_b, chosen, grad_queries, grad_near, grad_near_lse, along,
    N, H, M, D, C, length, size, beside, sinks, scale,
    BQ: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of a block's queries and of what its softmax began with; `along` is FlashAttention's D."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, program = block * size, (batch * H + head) * N + block
    query, column, slot = tl.arange(0, BQ), tl.arange(0, BD), tl.arange(0, BK)
    inside = (query < size) & (start + query < length)
    of_query = (batch * H + head) * length + start + query
    of_out = ((batch * length + start + query) * H + head)[:, None] * D + column[None, :]
    some = inside[:, None] & (column < D)[None, :]
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
    g = _block(grad, g_b, g_n, g_h, batch, head, start, size, length, D, BQ, BD)
    own = _block(near, o_b, o_n, o_h, batch, head, start, size, length, D, BQ, BD).to(tl.float32)
    o = tl.load(out + of_out, mask=some, other=0.0).to(tl.float32)
    all_lse = tl.load(lse + of_query, mask=inside, other=0.0)
    share = tl.exp(_near_lse(near_lse, of_query, inside) - all_lse)  # of the near keys
    delta = tl.sum(g.to(tl.float32) * o, 1)
    tl.store(along + of_query, delta, mask=inside)
    tl.store(grad_near + of_out, (g.to(tl.float32) * share[:, None]).to(grad_near.dtype.element_ty), mask=some)
    of_lse = share * (tl.sum(g.to(tl.float32) * own, 1) - delta)
    tl.store(grad_near_lse + of_query, of_lse, mask=inside)
    acc = tl.zeros([BQ, BD], tl.float32)
    for base in range(0, C * BW, BK):
        place = base + slot
        number = tl.load(chosen + program * C + place // BW, mask=place < C * BW, other=0)
        position, seen = _fetched(ends, e_b, batch, number, place % BW, start, size, beside, sinks, place < C * BW)
        at = position.to(tl.int64)
        k = tl.load(keys + batch * k_b + head * k_h + at[:, None] * k_n + column[None, :],
                    mask=seen[:, None] & (column < D)[None, :], other=0.0)  # fmt: skip
        v = tl.load(values + batch * v_b + head * v_h + at[None, :] * v_n + column[:, None],
                    mask=seen[None, :] & (column < D)[:, None], other=0.0)  # fmt: skip
        scores = _dot(q, tl.trans(k)) * scale
        weights = tl.where(seen[None, :], tl.exp(scores - all_lse[:, None]), 0.0)
        of_scores = weights * (_dot(g, v) - delta[:, None]) * scale
        acc += _dot(of_scores.to(k.dtype), k)
    tl.store(grad_queries + of_out, acc.to(grad_queries.dtype.element_ty), mask=some)


@triton.jit
def segments_backward_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, lse, along, grad, g_b, g_n, g_h,
    ends, e_b, fetching, first, grad_keys, gk_b, gk_n, gk_h, grad_values, gv_b, gv_n, gv_h,
    N, H, M, D, C, length, size, beside, sinks, scale,
    BQ: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of (a part of) a segment's keys and values, by the blocks that fetched it.

    `fetching` (B, h, N c) are these blocks, sorted by segment; those of segment j begin at `first[j]`, (B, h, m + 1).
    """
    number, part = tl.program_id(0) % M, tl.program_id(0) // M
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    left, right = tl.load(ends + batch * e_b + number), tl.load(ends + batch * e_b + number + 1)
    position, column, query = left + part * BW + tl.arange(0, BW), tl.arange(0, BD), tl.arange(0, BQ)
    seen = (position < right) & (right - left > 1) & (position >= sinks)
    some = (position < right)[:, None] & (column < D)[None, :]
    at = position.to(tl.int64)[:, None]
    k = tl.load(keys + batch * k_b + head * k_h + at * k_n + column[None, :], mask=some, other=0.0)
    v = tl.load(values + batch * v_b + head * v_h + at * v_n + column[None, :], mask=some, other=0.0)
    of_keys, of_values = tl.zeros([BW, BD], tl.float32), tl.zeros([BW, BD], tl.float32)
    listed = first + (batch * H + head) * (M + 1) + number
    for entry in range(tl.load(listed), tl.load(listed + 1)):
        start = tl.load(fetching + (batch * H + head) * N * C + entry) * size
        q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
        g = _block(grad, g_b, g_n, g_h, batch, head, start, size, length, D, BQ, BD)
        inside = (query < size) & (start + query < length)
        of_query = (batch * H + head) * length + start + query
        own_lse = tl.load(lse + of_query, mask=inside, other=0.0)
        delta = tl.load(along + of_query, mask=inside, other=0.0)
        shown = seen & ~_is_near(position + 1, position + 1, start, size, beside)
        scores = _dot(k, tl.trans(q)) * scale  # (BW, BQ)
        weights = tl.where(shown[:, None] & inside[None, :], tl.exp(scores - own_lse[None, :]), 0.0)
        of_values += _dot(weights.to(g.dtype), g)
        of_scores = weights * (_dot(v, tl.trans(g)) - delta[None, :]) * scale
        of_keys += _dot(of_scores.to(q.dtype), q)
    to = grad_keys + batch * gk_b + head * gk_h + at * gk_n + column[None, :]
    tl.store(to, of_keys.to(grad_keys.dtype.element_ty), mask=some)
    to = grad_values + batch * gv_b + head * gv_h + at * gv_n + column[None, :]
    tl.store(to, of_values.to(grad_values.dtype.element_ty), mask=some)
