"""Reformer position by position: sets of positions, by the buckets of the paper (arXiv 2001.04451), and one softmax."""

import math

import torch

from .naive_attention import attend, join_heads


def bucket(rotations, vector, factor):
    """Hash functions (f, d_h, c), each argmax([v R; -v R]) over `factor` buckets, as digits of one number."""
    number = 0
    for power, rotation in enumerate(rotations):
        rotated = vector @ rotation[:, : factor // 2]
        number += factor**power * int(torch.cat([rotated, -rotated]).argmax())
    return number


def attended(module, head, queries):
    """Return for each position those in its and neighbouring chunks, in any round; itself if there is no other."""
    n, functions = len(queries), module.rotations.shape[2]
    factor = 2 * math.ceil((2 * n / module.chunk_length) ** (1 / functions) / 2)
    sets = [set() for _ in range(n)]
    for rotations in module.rotations[head]:
        order = sorted(range(n), key=lambda i: (bucket(rotations, queries[i], factor), i))
        chunk = {position: index // module.chunk_length for index, position in enumerate(order)}
        for i in range(n):
            sets[i] |= {j for j in range(n) if abs(chunk[i] - chunk[j]) <= 1 and i != j}
    return [keys or {i} for i, keys in enumerate(sets)]


def reference(module, x):
    def attend_head(head, queries, values):
        keys = queries / queries.norm(dim=1, keepdim=True) * module.head_dim**0.5  # attend divides by that root
        sets = [sorted(positions) for positions in attended(module, head, queries)]
        rows = [attend(queries[i : i + 1], keys[positions], values[positions]) for i, positions in enumerate(sets)]
        return torch.cat(rows)

    return join_heads(module, x, attend_head, ["q_proj", "v_proj"])
