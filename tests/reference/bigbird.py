"""BigBird (arXiv 2007.14062, internal transformer construction), one position at a time."""

import torch
from torch import Tensor

from fairseq_linformer.attention.bigbird import BigBirdAttention

from .naive_attention import attend, heads_of
from .positions import bias, rotated


def seen_blocks(module: BigBirdAttention, head: int, block: int, last: int) -> set[int]:
    if block in (0, last):
        return set(range(last + 1))
    window = {block - 1, block, block + 1}
    random = {drawn for drawn in module.random_blocks[block, head].tolist() if 0 <= drawn <= last}
    return {0, last} | window | random


def reference(module: BigBirdAttention, x: Tensor) -> Tensor:
    last = (len(x) - 1) // module.block
    heads = []
    for head, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        at = list(range(len(x)))
        queries = rotated(module, x @ wq.T + bq, at)
        keys = rotated(module, x @ wk.T + bk, at)
        values = x @ wv.T + bv
        rows = []
        for i in range(len(x)):
            blocks = seen_blocks(module, head, i // module.block, last)
            seen = [j for j in range(len(x)) if j // module.block in blocks]
            rows.append(attend(queries[i : i + 1], keys[seen], values[seen], [bias(module, head, i, seen)]))
        heads.append(torch.cat(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
