"""Reformer position by position: sets of positions, by the buckets of the paper (arXiv 2001.04451), and one softmax."""

import math

import torch
from torch import Tensor

from fairseq_linformer.attention.reformer import ReformerAttention

from .naive_attention import attend, heads_of


def bucket(rotations: Tensor, vector: Tensor, factor: int) -> int:
    """Hash functions (f, d_h, c), each argmax([v R; -v R]) over `factor` buckets, as digits of one number."""
    number = 0
    for power, rotation in enumerate(rotations):
        rotated = vector @ rotation[:, : factor // 2]
        number += factor**power * int(torch.cat([rotated, -rotated]).argmax())
    return number


def seen(module: ReformerAttention, head: int, queries: Tensor) -> list[set[int]]:
    """What each position sees: in any round, what stands in its chunk or beside it; itself if that is all."""
    n, functions = len(queries), module.rotations.shape[2]
    factor = 2 * math.ceil((2 * n / module.chunk_length) ** (1 / functions) / 2)
    sets: list[set[int]] = [set() for _ in range(n)]
    for rotations in module.rotations[head]:
        order = sorted(range(n), key=lambda i: (bucket(rotations, queries[i], factor), i))
        chunk = {position: place // module.chunk_length for place, position in enumerate(order)}
        for i in range(n):
            sets[i] |= {j for j in range(n) if abs(chunk[i] - chunk[j]) <= 1 and i != j}
    return [others or {i} for i, others in enumerate(sets)]


def reference(module: ReformerAttention, x: Tensor) -> Tensor:
    heads = []
    for head, ((wq, bq), (wv, bv)) in enumerate(
        zip(heads_of(module, module.q_proj), heads_of(module, module.v_proj), strict=True)
    ):
        queries, values = x @ wq.T + bq, x @ wv.T + bv
        keys = queries / queries.norm(dim=1, keepdim=True) * module.head_dim**0.5  # attend divides by that root
        rows = []
        for i, others in enumerate(seen(module, head, queries)):
            chosen = sorted(others)
            rows.append(attend(queries[i : i + 1], keys[chosen], values[chosen])[0])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
