"""LION (arXiv 2502.16249): full linear attention with a mask of decays, each a product over the positions between."""

import math

import torch
from torch import Tensor

from fairseq_linformer.attention.lion import LionAttention

from .naive_attention import heads_of


def feature_map(x: Tensor) -> Tensor:
    """silu(x) + 1/2, made a vector of length 1."""
    shifted = torch.stack([value / (1 + (-value).exp()) + 0.5 for value in x])
    return shifted / (shifted @ shifted).sqrt()


def decays_of(module: LionAttention, head: int, x: Tensor) -> list[Tensor]:
    """lambda at each position."""
    if module.kind == "none":
        return [x.new_ones(())] * len(x)
    if module.kind == "learned":
        return [1 / (1 + (-module.decay[head]).exp())] * len(x)
    weight, bias = module.decay_proj.weight[head], module.decay_proj.bias[head]
    return [1 / (1 + (-(weight @ row) - bias).exp()) for row in x]


def mask(decays: list[Tensor], i: int, j: int) -> Tensor:
    """M_ij: the decays of the key and of what stands between it and the query."""
    passed = decays[j:i] if j < i else decays[i + 1 : j + 1]
    return math.prod(passed, start=decays[0].new_ones(()))


def reference(module: LionAttention, x: Tensor) -> Tensor:
    heads = []
    for head, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        keys = [feature_map(key) for key in x @ wk.T + bk]
        decays, values, rows = decays_of(module, head, x), x @ wv.T + bv, []
        for i, query in enumerate(x @ wq.T + bq):
            weights = torch.stack([feature_map(query) @ key * mask(decays, i, j) for j, key in enumerate(keys)])
            rows.append((weights / weights.sum()) @ values)
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
