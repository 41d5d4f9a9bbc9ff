"""Triton kernels for selected segments; ``selection.py`` calls them.

A program computes a block of `size` queries of one head or, in the last kernel, a segment. There are N blocks, H heads
of D dimensions, M projected keys and C candidates or selected segments. BQ and BD are `size` and D padded to the tiles
of Triton, BW is the number of positions of a segment at a time, and ``x_b``, ``x_n``, ``x_h`` are the strides of x in
batch, positions and heads.
"""

import triton
import triton.language as tl


@triton.jit
def _dot(a, b):
    """Multiply matrices, float32 in full precision."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def _block(
    pointer, stride_b, stride_n, stride_h, batch, head, first, size, length, D, BQ: tl.constexpr, BD: tl.constexpr
):
    """Load the positions of a block, (BQ, BD), with zeros beyond it."""
    row, column = tl.arange(0, BQ), tl.arange(0, BD)
    inside = (row < size) & (first + row < length)
    at = pointer + batch * stride_b + head * stride_h + (first + row)[:, None] * stride_n + column[None, :]
    return tl.load(at, mask=inside[:, None] & (column < D)[None, :], other=0.0)


@triton.jit
def _in_window(first, last, start, size, margin):
    return (last - size - margin + 1 <= start) & (start < first + margin + 1)


@triton.jit
def _summary_scores(q, summaries, s_m, offsets, number, M, D, scale, BD: tl.constexpr):
    """Return the scores of a block's queries and some projected keys, (BQ, BM), and the bounds of their segments."""
    column, valid = tl.arange(0, BD), number < M
    left = tl.load(offsets + number, mask=valid, other=0)
    right = tl.load(offsets + number + 1, mask=valid, other=0)
    mask = valid[None, :] & (column < D)[:, None]
    r = tl.load(summaries + number[None, :] * s_m + column[:, None], mask=mask, other=0.0)
    scores = _dot(q, r) * scale
    return tl.where((right > left)[None, :], scores, -3.0e38), left, right


@triton.jit
def score_segments_kernel(
    queries, q_b, q_n, q_h, summaries, s_b, s_h, s_m, offsets, f_b, weights,
    N, H, M, D, length, size, margin, scale,
    BQ: tl.constexpr, BM: tl.constexpr, WHOLE: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Compute ``score_segments``: the summed weights of a block's queries; -1 for segments that it may not select.

    WHOLE: score all projected keys at once. Otherwise score them twice, as the softmax needs their sum first.
    """
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, row, inside = block * size, tl.arange(0, BM), tl.arange(0, BQ) < size
    summaries, offsets = summaries + batch * s_b + head * s_h, offsets + batch * f_b
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, min(length, tl.load(offsets + M)), D, BQ, BD)
    highest, total = tl.full([BQ], -3.0e38, tl.float32), tl.zeros([BQ], tl.float32)
    if not WHOLE:
        for base in range(0, M, BM):
            scores, _, _ = _summary_scores(q, summaries, s_m, offsets, base + row, M, D, scale, BD)
            higher = tl.maximum(highest, tl.max(scores, 1))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(scores - higher[:, None]), 1)
            highest = higher
    for base in range(0, M, BM):
        scores, left, right = _summary_scores(q, summaries, s_m, offsets, base + row, M, D, scale, BD)
        if WHOLE:
            highest = tl.max(scores, 1)
            shares = tl.exp(scores - highest[:, None])
            shares = shares / tl.sum(shares, 1)[:, None]
        else:
            shares = tl.exp(scores - highest[:, None]) / total[:, None]
        shares = tl.sum(tl.where(inside[:, None], shares, 0.0), 0)
        selectable = (right > left) & ~_in_window(left, right - 1, start, size, margin)
        to = weights + ((batch * H + head) * N + block) * M + base + row
        tl.store(to, tl.where(selectable, shares, -1.0), mask=base + row < M)


@triton.jit
def best_keys_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, offsets, f_b, candidates, best,
    N, H, M, D, C, length, size, margin, scale,
    BQ: tl.constexpr, BS: tl.constexpr, BW: tl.constexpr, PARTS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the highest score of each query in each candidate, -3e38 for candidates that the block may not select."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, text = block * size, tl.load(offsets + batch * f_b + M)
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, min(length, text), D, BQ, BD)
    program = (batch * H + head) * N + block
    slot, column, query = tl.arange(0, BS * BW), tl.arange(0, BD), tl.arange(0, BQ)
    segment, index = tl.arange(0, BS), slot // BW
    for base in range(0, C, BS):
        number = tl.load(candidates + program * C + base + index, mask=base + index < C, other=0)
        left = tl.load(offsets + batch * f_b + number)
        right = tl.where(base + index < C, tl.load(offsets + batch * f_b + number + 1), left)
        highest = tl.full([BQ, BS], -3.0e38, tl.float32)
        for part in tl.static_range(PARTS):
            position = left + slot % BW + part * BW
            at = keys + batch * k_b + head * k_h + position[None, :].to(tl.int64) * k_n + column[:, None]
            k = tl.load(at, mask=(position < right)[None, :] & (column < D)[:, None], other=0.0)
            scores = _dot(q, k) * scale
            scores = tl.where((position < right)[None, :], scores, -3.0e38)
            highest = tl.maximum(highest, tl.max(tl.reshape(scores, [BQ, BS, BW]), 2))
        # Repeat for each segment.
        number = tl.load(candidates + program * C + base + segment, mask=base + segment < C, other=0)
        left, right = tl.load(offsets + batch * f_b + number), tl.load(offsets + batch * f_b + number + 1)
        selectable = (right > left) & ~_in_window(left, right - 1, start, size, margin)
        highest = tl.where(selectable[None, :], highest, -3.0e38)
        to = best + (program * size + query)[:, None] * C + (base + segment)[None, :]
        tl.store(to, highest, mask=(query < size)[:, None] & (base + segment < C)[None, :])


@triton.jit
def _selected(offsets, f_b, batch, number, off, start, size, margin, sinks, valid):
    """Return the positions of segments, and True where a block attends to them only because it selects them."""
    left = tl.load(offsets + batch * f_b + number, mask=valid, other=0)
    right = tl.load(offsets + batch * f_b + number + 1, mask=valid, other=0)
    position = left + off
    candidate = (position < right) & (right - left > 1) & (position >= sinks)
    return position, candidate & ~_in_window(position, position, start, size, margin)


@triton.jit
def _partial_lse(partial_lse, query_at, inside):
    """Load the log-sum-exp of the other keys; replace the infinity of a query without keys, as in padding."""
    return tl.maximum(tl.load(partial_lse + query_at, mask=inside, other=0.0), -1.0e30)


@triton.jit
def attend_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, partial, o_b, o_n, o_h, partial_lse,
    offsets, f_b, selected, out, out_lse,
    N, H, M, D, C, length, size, margin, sinks, scale,
    BQ: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Extend the softmax of a block over other keys, `partial` and its log-sum-exp, by the selected keys."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, program = block * size, (batch * H + head) * N + block
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
    acc = _block(partial, o_b, o_n, o_h, batch, head, start, size, length, D, BQ, BD).to(tl.float32)
    query, column, slot = tl.arange(0, BQ), tl.arange(0, BD), tl.arange(0, BK)
    inside = (query < size) & (start + query < length)
    query_at = (batch * H + head) * length + start + query
    highest, total = _partial_lse(partial_lse, query_at, inside), tl.full([BQ], 1.0, tl.float32)
    for base in range(0, C * BW, BK):
        key = base + slot
        number = tl.load(selected + program * C + key // BW, mask=key < C * BW, other=0)
        position, visible = _selected(offsets, f_b, batch, number, key % BW, start, size, margin, sinks, key < C * BW)
        at = position.to(tl.int64)
        k = tl.load(keys + batch * k_b + head * k_h + at[None, :] * k_n + column[:, None],
                    mask=visible[None, :] & (column < D)[:, None], other=0.0)  # fmt: skip
        v = tl.load(values + batch * v_b + head * v_h + at[:, None] * v_n + column[None, :],
                    mask=visible[:, None] & (column < D)[None, :], other=0.0)  # fmt: skip
        scores = tl.where(visible[None, :], _dot(q, k) * scale, -3.0e38)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, rescale = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        weights = tl.where(visible[None, :], weights, 0.0)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + _dot(weights.to(v.dtype), v)
        highest = higher
    acc = acc / total[:, None]
    to = out + ((batch * length + start + query) * H + head)[:, None] * D + column[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=inside[:, None] & (column < D)[None, :])
    tl.store(out_lse + query_at, highest + tl.log(total), mask=inside)


@triton.jit
def attend_backward_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, partial, o_b, o_n, o_h, partial_lse,
    out, lse, grad, g_b, g_n, g_h, offsets, f_b, selected, grad_queries, grad_partial, grad_partial_lse, deltas,
    N, H, M, D, C, length, size, margin, sinks, scale,
    BQ: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a block's queries and of its partial softmax; `deltas` are FlashAttention's D."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, program = block * size, (batch * H + head) * N + block
    query, column, slot = tl.arange(0, BQ), tl.arange(0, BD), tl.arange(0, BK)
    inside = (query < size) & (start + query < length)
    query_at = (batch * H + head) * length + start + query
    out_at = ((batch * length + start + query) * H + head)[:, None] * D + column[None, :]
    mask = inside[:, None] & (column < D)[None, :]
    q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
    g = _block(grad, g_b, g_n, g_h, batch, head, start, size, length, D, BQ, BD)
    other = _block(partial, o_b, o_n, o_h, batch, head, start, size, length, D, BQ, BD).to(tl.float32)
    o = tl.load(out + out_at, mask=mask, other=0.0).to(tl.float32)
    all_lse = tl.load(lse + query_at, mask=inside, other=0.0)
    share = tl.exp(_partial_lse(partial_lse, query_at, inside) - all_lse)  # of the other keys
    delta = tl.sum(g.to(tl.float32) * o, 1)
    tl.store(deltas + query_at, delta, mask=inside)
    tl.store(grad_partial + out_at, (g.to(tl.float32) * share[:, None]).to(grad_partial.dtype.element_ty), mask=mask)
    grad_lse = share * (tl.sum(g.to(tl.float32) * other, 1) - delta)
    tl.store(grad_partial_lse + query_at, grad_lse, mask=inside)
    acc = tl.zeros([BQ, BD], tl.float32)
    for base in range(0, C * BW, BK):
        key = base + slot
        number = tl.load(selected + program * C + key // BW, mask=key < C * BW, other=0)
        position, visible = _selected(offsets, f_b, batch, number, key % BW, start, size, margin, sinks, key < C * BW)
        at = position.to(tl.int64)
        k = tl.load(keys + batch * k_b + head * k_h + at[:, None] * k_n + column[None, :],
                    mask=visible[:, None] & (column < D)[None, :], other=0.0)  # fmt: skip
        v = tl.load(values + batch * v_b + head * v_h + at[None, :] * v_n + column[:, None],
                    mask=visible[None, :] & (column < D)[:, None], other=0.0)  # fmt: skip
        scores = _dot(q, tl.trans(k)) * scale
        weights = tl.where(visible[None, :], tl.exp(scores - all_lse[:, None]), 0.0)
        grad_scores = weights * (_dot(g, v) - delta[:, None]) * scale
        acc += _dot(grad_scores.to(k.dtype), k)
    tl.store(grad_queries + out_at, acc.to(grad_queries.dtype.element_ty), mask=mask)


@triton.jit
def segments_backward_kernel(
    queries, q_b, q_n, q_h, keys, k_b, k_n, k_h, values, v_b, v_n, v_h, lse, deltas, grad, g_b, g_n, g_h,
    offsets, f_b, blocks, first, grad_keys, gk_b, gk_n, gk_h, grad_values, gv_b, gv_n, gv_h,
    N, H, M, D, C, length, size, margin, sinks, scale,
    BQ: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the gradients of (part of) a segment's keys and values, from the blocks that selected it.

    `blocks` (B, h, N c) are these, sorted by segment; those of segment j begin at `first[j]`, (B, h, m + 1).
    """
    number, part = tl.program_id(0) % M, tl.program_id(0) // M
    head, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    left, right = tl.load(offsets + batch * f_b + number), tl.load(offsets + batch * f_b + number + 1)
    position, column, query = left + part * BW + tl.arange(0, BW), tl.arange(0, BD), tl.arange(0, BQ)
    candidate = (position < right) & (right - left > 1) & (position >= sinks)
    mask = (position < right)[:, None] & (column < D)[None, :]
    at = position.to(tl.int64)[:, None]
    k = tl.load(keys + batch * k_b + head * k_h + at * k_n + column[None, :], mask=mask, other=0.0)
    v = tl.load(values + batch * v_b + head * v_h + at * v_n + column[None, :], mask=mask, other=0.0)
    key_sums, value_sums = tl.zeros([BW, BD], tl.float32), tl.zeros([BW, BD], tl.float32)
    entries = first + (batch * H + head) * (M + 1) + number
    for entry in range(tl.load(entries), tl.load(entries + 1)):
        start = tl.load(blocks + (batch * H + head) * N * C + entry) * size
        q = _block(queries, q_b, q_n, q_h, batch, head, start, size, length, D, BQ, BD)
        g = _block(grad, g_b, g_n, g_h, batch, head, start, size, length, D, BQ, BD)
        inside = (query < size) & (start + query < length)
        query_at = (batch * H + head) * length + start + query
        lses = tl.load(lse + query_at, mask=inside, other=0.0)
        delta = tl.load(deltas + query_at, mask=inside, other=0.0)
        visible = candidate & ~_in_window(position, position, start, size, margin)
        scores = _dot(k, tl.trans(q)) * scale  # (BW, BQ)
        weights = tl.where(visible[:, None] & inside[None, :], tl.exp(scores - lses[None, :]), 0.0)
        value_sums += _dot(weights.to(g.dtype), g)
        grad_scores = weights * (_dot(v, tl.trans(g)) - delta[None, :]) * scale
        key_sums += _dot(grad_scores.to(q.dtype), q)
    to = grad_keys + batch * gk_b + head * gk_h + at * gk_n + column[None, :]
    tl.store(to, key_sums.to(grad_keys.dtype.element_ty), mask=mask)
    to = grad_values + batch * gv_b + head * gv_h + at * gv_n + column[None, :]
    tl.store(to, value_sums.to(grad_values.dtype.element_ty), mask=mask)
