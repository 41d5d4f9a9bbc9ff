"""Sparse Transformer (arXiv 1904.10509, section 4, with the merged head of section 5.1), one position at a time."""

import torch
from torch import Tensor

from fairseq_linformer.attention.sparse import SparseAttention

from .naive_attention import attend, heads_of


def sees(module: SparseAttention, head: int, i: int, j: int) -> bool:
    stride = module.stride
    if module.strided:
        return abs(i - j) < stride or (i - j) % stride == 0
    c = module.expressivity
    end = stride - c * (head % (stride // c))  # of the head's sub-block: the first head has the last one
    return i // stride == j // stride or end - c <= j % stride < end


def reference(module: SparseAttention, x: Tensor) -> Tensor:
    heads = []
    for head, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        queries, keys = x @ wq.T + bq, x @ wk.T + bk
        values = x @ wv.T + bv
        rows = []
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if sees(module, head, i, j)]
            rows.append(attend(queries[i : i + 1], keys[seen], values[seen]))
        heads.append(torch.cat(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
