"""Reformer position by position: sets of positions, by the buckets of the paper (arXiv 2001.04451), and one softmax."""

import math

import torch
from torch import Tensor

from fairseq_linformer.attention.reformer import ReformerAttention

from .naive_attention import attend, join_heads


def bucket(rotations: Tensor, vector: Tensor, factor: int) -> int:
    """Hash functions (f, d_h, c), each argmax([v R; -v R]) over `factor` buckets, as digits of one number."""
    number = 0
    for power, rotation in enumerate(rotations):
        rotated = vector @ rotation[:, : factor // 2]
        number += factor**power * int(torch.cat([rotated, -rotated]).argmax())
    return number


def attended(module: ReformerAttention, head: int, queries: Tensor) -> list[set[int]]:
    """For each position those in its chunk or beside it, in any round; itself if there is no other."""
    n, functions = len(queries), module.rotations.shape[2]
    factor = 2 * math.ceil((2 * n / module.chunk_length) ** (1 / functions) / 2)
    sets: list[set[int]] = [set() for _ in range(n)]
    for rotations in module.rotations[head]:
        order = sorted(range(n), key=lambda i: (bucket(rotations, queries[i], factor), i))
        chunk = {position: place // module.chunk_length for place, position in enumerate(order)}
        for i in range(n):
            sets[i] |= {j for j in range(n) if abs(chunk[i] - chunk[j]) <= 1 and i != j}
    return [keys or {i} for i, keys in enumerate(sets)]


def reference(module: ReformerAttention, x: Tensor) -> Tensor:
    def attend_head(head: int, queries: Tensor, values: Tensor) -> Tensor:
        keys = queries / queries.norm(dim=1, keepdim=True) * module.head_dim**0.5  # attend divides by that root
        sets = [sorted(positions) for positions in attended(module, head, queries)]
        rows = [attend(queries[i : i + 1], keys[positions], values[positions]) for i, positions in enumerate(sets)]
        return torch.cat(rows)

    return join_heads(module, x, attend_head, ["q_proj", "v_proj"])
