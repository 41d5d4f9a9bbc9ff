"""Longformer (arXiv 2004.05150, section 3), one position at a time."""

import torch
from torch import Tensor

from fairseq_linformer.attention.longformer import LongformerAttention

from .naive_attention import attend, heads_of
from .positions import bias, rotated


def reference(module: LongformerAttention, x: Tensor) -> Tensor:
    globals_ = range(min(module.global_tokens, len(x)))
    heads = []
    for head in range(module.num_heads):

        def embed(name: str, head: int = head) -> Tensor:
            weight, added = heads_of(module, getattr(module, name))[head]
            rows = x @ weight.T + added
            if name.startswith("v"):
                return rows
            return rotated(module, rows, list(range(len(x))))

        queries, keys, values = embed("q_proj"), embed("k_proj"), embed("v_proj")
        rows = []
        for i in range(len(x)):
            if i in globals_:
                global_queries = embed("q_proj_global")
                biases = [bias(module, head, i, list(range(len(x))))]
                rows.append(attend(global_queries[i : i + 1], embed("k_proj_global"), embed("v_proj_global"), biases))
            else:
                seen = [j for j in range(len(x)) if abs(i - j) <= module.reach or j in globals_]
                rows.append(attend(queries[i : i + 1], keys[seen], values[seen], [bias(module, head, i, seen)]))
        heads.append(torch.cat(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
