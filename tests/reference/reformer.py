"""Reformer position by position: sets of positions, by the buckets of the paper (arXiv 2001.04451), and one softmax."""

import math

import torch

from .naive_attention import attend, join_heads


def bucket(rotations, vector, factor):
    """Return the bucket of a vector v: f hashes argmax([v R; -v R]), each below `factor`, as digits of one number."""
    number = 0
    for power, rotation in enumerate(rotations):
        rotated = vector @ rotation[:, : factor // 2]
        number += factor**power * int(torch.cat([rotated, -rotated]).argmax())
    return number


def attended(module, head, queries, keys):
    """Return for each position the positions that it attends to; itself if there is no other."""
    n, m = len(queries), module.chunk_length
    sets = [{j for j in range(n) if module.local and abs(i // m - j // m) <= 1} for i in range(n)]
    if module.selection == "hash":
        for rotations in module.rotations[head]:
            add_round(sets, rotations, queries, m)
    else:
        width = 1 if module.selection == "exact" else m
        segments = [set(range(start, min(n, start + width))) for start in range(0, n, width)]
        for i in range(n):
            free = [segment for segment in segments if not segment <= sets[i] and segment != {i}]
            free.sort(key=lambda segment: -float(queries[i].detach() @ keys[[*segment]].detach().mean(0)))
            sets[i] |= set().union(*free[: 3 * m * module.hashes // width])
    return [keys - {i} or {i} for i, keys in enumerate(sets)]


def add_round(sets, rotations, queries, m):
    """Add to the set of each position those in its chunk and both neighbouring chunks of the sorted sequence."""
    n = len(queries)
    factor = 2 * math.ceil((2 * n / m) ** (1 / len(rotations)) / 2)
    order = sorted(range(n), key=lambda i: (bucket(rotations, queries[i], factor), i))
    chunk = {position: index // m for index, position in enumerate(order)}
    for i in range(n):
        sets[i] |= {j for j in range(n) if abs(chunk[i] - chunk[j]) <= 1}


def reference(module, x):
    def attend_head(head, queries, values):
        keys = queries / queries.norm(dim=1, keepdim=True) * module.head_dim**0.5  # attend divides by that root
        sets = [sorted(positions) for positions in attended(module, head, queries, keys)]
        rows = [attend(queries[i : i + 1], keys[positions], values[positions]) for i, positions in enumerate(sets)]
        return torch.cat(rows)

    return join_heads(module, x, attend_head, ["q_proj", "v_proj"])
