"""Attention as the papers write it: one sequence and one head at a time, without padding, blocks or kernels.

A reference takes the module (for its weights) and the unpadded rows of one sequence, x (n, d), and returns (n, d).
Dropout is left out.
"""

import math

import torch

from fairseq_linformer.attention import pooling
from fairseq_linformer.attention.projection import LinearProjection

from .positions import bias, rotated, without_rotary

QKV = ("q_proj", "k_proj", "v_proj")


def attend(queries, keys, values, biases=0.0):
    """Return softmax(q k^T / sqrt(d_h) + bias) v: (n, d_h), (m, d_h), (m, d_h) -> (n, d_h)."""
    return (queries @ keys.T / queries.size(1) ** 0.5 + biases).softmax(1) @ values


def embed(module, part, head, x):
    """Map rows by a head's share of a linear map: (m, d) -> (m, d_h)."""
    linear, share = getattr(module, part), slice(head * module.head_dim, (head + 1) * module.head_dim)
    return x @ linear.weight[share].T + linear.bias[share]


def join_heads(module, x, attend_head, parts=QKV):
    """Join the results (n, d_h) of `attend_head` on the number of each head and its queries, keys and values."""
    heads = [attend_head(head, *(embed(module, part, head, x) for part in parts)) for head in range(module.num_heads)]
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias


def attend_to_sets(module, x, attended, parts=QKV, first=0):
    """Attend from each position to the positions `attended(head, position)`; the first row is at position `first`."""

    def attend_head(head, queries, keys, values):
        at = range(first, first + len(x))
        queries, keys, rows = rotated(module, queries, at), rotated(module, keys, at), []
        for i in range(len(x)):
            positions = sorted(attended(head, i))
            biases = bias(module, head, i, positions)
            rows.append(attend(queries[i : i + 1], keys[positions], values[positions], biases))
        return torch.cat(rows)

    return join_heads(module, x, attend_head, parts)


def softmax(module, x, first=0):
    return attend_to_sets(module, x, lambda head, position: range(len(x)), first=first)


def project(projection, head, x):
    """Return E x for one head: (n, d) -> (m, d)."""
    if isinstance(projection, LinearProjection):
        matrix = projection.weight[head] if projection.weight.dim() == 3 else projection.weight
        x = stretched(x, matrix.size(1)) if projection.adaptive else x
        return projection.multiplier * (matrix[:, : len(x)] @ x)
    return torch.stack([pooled(projection, head, x[list(window)]) for window in windows(projection, len(x))])


def stretched(x, n):
    """Stretch l rows to n, by linear interpolation between the two rows on either side."""
    rows = []
    for p in range(n):
        position = p * (len(x) - 1) / max(1, n - 1)
        before = min(int(position + 1e-12), len(x) - 1)
        after = min(before + 1, len(x) - 1)
        rows.append((before + 1 - position) * x[before] + (position - before) * x[after])
    return torch.stack(rows)


def windows(projection, length):
    """Return the positions of each window."""
    if projection.rows is None:
        starts = range(0, length, projection.window)
        return [range(start, min(start + projection.window, length)) for start in starts]
    k = min(projection.rows, length)
    return [range(j * length // k, (j + 1) * length // k) for j in range(k)]


def pooled(projection, head, window):
    """Return a projected row: (w, d) -> (d,)."""
    size = len(window)
    if isinstance(projection, pooling.ConvProjection):
        if projection.rows is None:
            return (projection.weight[:size] * window).sum(0)
        taps = [p * projection.window // size for p in range(size)]
        return projection.window / size * (projection.weight[taps] * window).sum(0)
    if isinstance(projection, pooling.MeanPooling):
        return window.mean(0)
    if isinstance(projection, pooling.AttentionPooling):
        return (window @ projection.weight[head]).softmax(0) @ window
    if isinstance(projection, pooling.SplitPooling):
        share = size / projection.num_heads  # of the window, to each head, in positions and parts of them
        return window[int(head * share + 1e-9) : math.ceil((head + 1) * share - 1e-9)].mean(0)
    return window.amax(0)


def local(module, position, length):
    """Return the positions of the block and half a window, at least 1, on each side; none without a window."""
    if not module.window:
        return set()
    start, margin = position - position % module.block, max(1, module.window // 2)
    return {q for q in range(length) if start - margin <= q < start + module.block + margin}


def singletons(module, length):
    """Return the position of each projected key that is one position."""
    if not module.key_projection.ROWS_ARE_MEANS:
        return {}
    return {j: window[0] for j, window in enumerate(windows(module.key_projection, length)) if len(window) == 1}


def linformer(module, x):
    """Equation 7 of arXiv 2006.04768, with the bias added after the projection along the sequence.

    A key is attended to once: as a sink, else local, else projected.
    """
    length, single = len(x), singletons(module, len(x))
    sinks = set(range(min(module.sinks, length))) if module.window else set()

    def attend_head(head, queries, keys, values):
        unrotated, rows = without_rotary(module, keys), []
        row_keys = without_rotary(module, embed(module, "k_proj", head, project(module.key_projection, head, x)))
        if module.rotary_dim == module.head_dim:  # nothing is unrotated
            unrotated = rotated(module, keys, range(length))
            row_keys = project(module.key_projection, head, unrotated)
        row_values = embed(module, "v_proj", head, project(module.value_projection, head, x))
        if not module.window and not module.class_token:
            return attend(queries, row_keys, row_values)
        for p in range(length):
            query = queries[p : p + 1]
            if p == 0 and module.class_token:
                rows.append(attend(without_rotary(module, query), keys, values))
                continue
            window, first = local(module, p, length) - sinks, sorted(sinks)
            once = [j for j in range(len(row_keys)) if single.get(j) not in window | sinks]
            positions = sorted(window)
            all_keys = [row_keys[once], unrotated[first], rotated(module, keys[positions], positions)]
            all_values = torch.cat([row_values[once], values[first], values[positions]])
            biases = torch.cat([x.new_zeros(len(once) + len(first)), bias(module, head, p, positions)])
            rows.append(attend(rotated(module, query, [p]), torch.cat(all_keys), all_values, biases))
        return torch.cat(rows)

    return join_heads(module, x, attend_head)
