"""Linear attention (arXiv 2006.16236, eq. 4) and Hedgehog (2402.04347), one query at a time, with all n weights."""

import torch
from torch import Tensor

from fairseq_linformer.attention.linear import LinearAttention

from .naive_attention import heads_of


def feature_map(x: Tensor, weight: Tensor | None) -> Tensor:
    """elu(x) + 1, or with W Hedgehog's."""
    if weight is not None:
        return torch.cat([(weight @ x).exp(), (-(weight @ x)).exp()])
    return torch.stack([value + 1 if value > 0 else value.exp() for value in x])


def reference(module: LinearAttention, x: Tensor) -> Tensor:
    heads = []
    for head, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        of_queries, of_keys = (None, None) if module.feature_map is None else module.feature_map.weight[:, head]
        keys, values = x @ wk.T + bk, x @ wv.T + bv
        rows = []
        for query in x @ wq.T + bq:
            similarities = torch.stack([feature_map(query, of_queries) @ feature_map(key, of_keys) for key in keys])
            rows.append((similarities / similarities.sum()) @ values)
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
