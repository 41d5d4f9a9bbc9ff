"""Attention as the papers write it: one sequence, one head, one position at a time. Slow and obviously right.

Each function has the name of its mechanism, takes the module (for its weights) and the unpadded rows of one sequence,
x (n, d), and returns (n, d). Dropout is left out.
"""

import math

import torch
from torch import Tensor

from fairseq_linformer.attention.linformer import LinformerAttention
from fairseq_linformer.attention.pooling import (
    AttentionPooling,
    ConvProjection,
    MaxPooling,
    MeanPooling,
    SplitPooling,
    WindowProjection,
)
from fairseq_linformer.attention.projection import LinearProjection, Projection
from fairseq_linformer.attention.selection import CANDIDATES
from fairseq_linformer.attention.softmax import SoftmaxAttention

from .positions import bias, rotated, without_rotary


def attend(queries: Tensor, keys: Tensor, values: Tensor, biases: list[Tensor] | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d_h) + bias) v, one query at a time: (n, d_h), (m, d_h), (m, d_h) -> (n, d_h)."""
    rows = []
    for i, query in enumerate(queries):
        scores = torch.stack([(query * key).sum() for key in keys]) / queries.shape[1] ** 0.5
        scores = scores if biases is None else scores + biases[i]
        weights = scores.exp() / scores.exp().sum()
        rows.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(rows)


def heads_of(module: torch.nn.Module, linear: torch.nn.Linear) -> list[tuple[Tensor, Tensor]]:
    """Weight (d_h, d) and bias (d_h) of each head."""
    size = module.head_dim
    return [
        (linear.weight[i * size : (i + 1) * size], linear.bias[i * size : (i + 1) * size])
        for i in range(module.num_heads)
    ]


def softmax(module: SoftmaxAttention, x: Tensor, first: int = 0) -> Tensor:
    """`first` is the position of the first row."""
    heads, at = [], list(range(first, first + len(x)))
    for head, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        queries = rotated(module, x @ wq.T + bq, at)
        keys = rotated(module, x @ wk.T + bk, at)
        heads.append(attend(queries, keys, x @ wv.T + bv, [bias(module, head, i, at) for i in at]))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias


def project(projection: Projection, head: int, x: Tensor) -> Tensor:
    """E x for one head: (n, d) -> (m, d), row by row, each a loop over positions."""
    if isinstance(projection, LinearProjection):
        matrix = projection.weight[head] if projection.weight.dim() == 3 else projection.weight
        own = stretched(x, matrix.shape[1]) if projection.adaptive else x
        return torch.stack([sum(projection.multiplier * row[p] * own[p] for p in range(len(own))) for row in matrix])
    assert isinstance(projection, WindowProjection)
    return torch.stack([pooled(projection, head, window) for window in windows(projection, x)])


def stretched(x: Tensor, n: int) -> Tensor:
    """l rows to n, by linear interpolation between the two that a place lies between."""
    rows = []
    for p in range(n):
        place = p * (len(x) - 1) / max(1, n - 1)
        before = min(int(place + 1e-12), len(x) - 1)
        after = min(before + 1, len(x) - 1)
        rows.append((before + 1 - place) * x[before] + (place - before) * x[after])
    return torch.stack(rows)


def windows(projection: WindowProjection, x: Tensor) -> list[list[Tensor]]:
    """The positions of each window."""
    if projection.rows is None:
        return [list(x[start : start + projection.window]) for start in range(0, len(x), projection.window)]
    k = min(projection.rows, len(x))
    return [list(x[j * len(x) // k : (j + 1) * len(x) // k]) for j in range(k)]


def pooled(projection: WindowProjection, head: int, window: list[Tensor]) -> Tensor:
    """A row of a window."""
    if isinstance(projection, ConvProjection):
        if projection.rows is None:
            return sum(weight * position for weight, position in zip(projection.weight, window, strict=False))
        taps = [projection.weight[p * projection.window // len(window)] for p in range(len(window))]
        scale = projection.window / len(window)
        return sum(scale * weight * position for weight, position in zip(taps, window, strict=True))
    if isinstance(projection, MeanPooling):
        return sum(window) / len(window)
    if isinstance(projection, AttentionPooling):
        weights = [(projection.weight[head] * position).sum().exp() for position in window]
        return sum(weight * position for weight, position in zip(weights, window, strict=True)) / sum(weights)
    if isinstance(projection, SplitPooling):
        share = len(window) / projection.num_heads  # of the window, to each head, in positions and parts of them
        own = window[int(head * share + 1e-9) : math.ceil((head + 1) * share - 1e-9)]
        return sum(own) / len(own)
    assert isinstance(projection, MaxPooling)
    return torch.stack([max(channel) for channel in zip(*window, strict=True)])


def block_of(position: int, size: int) -> range:
    """The places of the block of `size` that a position lies in, beyond the end of the text as well."""
    start = position - position % size
    return range(start, start + size)


def near(module: LinformerAttention, position: int, length: int) -> set[int]:
    """The positions of its block, and half a window (at least 1) on either side; none without a window."""
    if not module.window:
        return set()
    block, beside = block_of(position, module.block), max(1, module.window // 2)
    return {q for q in range(length) if block.start - beside <= q < block.stop + beside}


def fetched(module: LinformerAttention, position: int, queries: Tensor, keys: Tensor, rows: Tensor) -> set[int]:
    """The positions of the segments of which the queries of the block make most: by their rows, then by their keys."""
    length, own = len(queries), near(module, position, len(queries))
    segments = [[int(q) for q in segment] for segment in windows(module.key_projection, torch.arange(length))]
    block = [q for q in block_of(position, module.block) if q < length]

    def best(some: list[int], scores: list[Tensor], count: int) -> list[int]:
        """Of some segments those of the largest weight, from the scores of the block's queries: (b,) per segment."""
        weights = (torch.stack(scores, dim=1) / module.head_dim**0.5).softmax(1).sum(0)
        away = [i for i, j in enumerate(some) if not {*segments[j]} <= own]
        return [some[i] for i in sorted(away, key=lambda i: float(weights[i]), reverse=True)[:count]]

    of_rows = list((queries[block] @ rows.T).unbind(1))
    candidates = best([*range(len(segments))], of_rows, CANDIDATES * module.num_selected)
    of_keys = [(queries[block] @ keys[segments[j]].T).amax(1) for j in candidates]
    chosen = best(candidates, of_keys, module.num_selected) if candidates else []
    return {q for j in chosen for q in segments[j]}


def shown(module: LinformerAttention, position: int, queries: Tensor, keys: Tensor, rows: Tensor) -> list[int]:
    """The positions that a position sees as they are, from the queries, keys (n, d_h) and rows (m, d_h) of a head."""
    if not module.window:
        return []
    segments = fetched(module, position, queries, keys, rows) if module.num_selected else set()
    return sorted(plain(module, position, len(queries)) | segments - {*alone(module, len(queries)).values()})


def plain(module: LinformerAttention, position: int, length: int) -> set[int]:
    """The positions that a position sees without fetching them: sinks, and what is near."""
    return set(range(min(module.sinks, length))) | near(module, position, length) if module.window else set()


def alone(module: LinformerAttention, length: int) -> dict[int, int]:
    """The rows that are one position, and which: they need not be seen again."""
    if not module.key_projection.ROWS_ARE_MEANS:
        return {}
    segments = windows(module.key_projection, torch.arange(length))
    return {j: int(segment[0]) for j, segment in enumerate(segments) if len(segment) == 1}


def linformer(module: LinformerAttention, x: Tensor) -> Tensor:
    """Equation 7 of arXiv 2006.04768, with the bias added after the projection along the sequence."""
    heads = []
    for i, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        keys = project(module.key_projection, i, x) @ wk.T + bk
        keys = without_rotary(module, keys)
        values = project(module.value_projection, i, x) @ wv.T + bv
        queries, own_keys = x @ wq.T + bq, x @ wk.T + bk
        own_values, rows = x @ wv.T + bv, []
        for p in range(len(x)):
            query = queries[p : p + 1]
            if p == 0 and module.class_token:
                rows.append(attend(without_rotary(module, query), own_keys, own_values))
                continue
            seen = shown(module, p, queries, without_rotary(module, own_keys), keys)
            beside = [q for q in seen if q in near(module, p, len(x)) and q >= module.sinks]
            others = [q for q in seen if q not in beside]
            once = [j for j in range(len(keys)) if alone(module, len(x)).get(j) not in plain(module, p, len(x))]
            all_keys = [keys[once], without_rotary(module, own_keys[others]), rotated(module, own_keys[beside], beside)]
            all_values = torch.cat([values[once], own_values[others], own_values[beside]])
            added = torch.cat([torch.zeros(len(once) + len(others), dtype=x.dtype), bias(module, i, p, beside)])
            rows.append(attend(rotated(module, query, [p]), torch.cat(all_keys), all_values, [added]))
        heads.append(torch.cat(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
