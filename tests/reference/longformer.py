"""Longformer (arXiv 2004.05150, section 3), one position at a time."""

import torch

from .naive_attention import attend_to_sets


def reference(module, x):
    positions, first = range(len(x)), min(module.global_tokens, len(x))

    def attended(head, i):
        return [j for j in positions if abs(i - j) <= module.reach or j < first]

    local = attend_to_sets(module, x, attended)
    if not first:
        return local
    parts = ("q_proj_global", "k_proj_global", "v_proj_global")
    return torch.cat([attend_to_sets(module, x, lambda head, i: positions, parts)[:first], local[first:]])
