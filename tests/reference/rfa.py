"""Random feature attention (arXiv 2103.02143, section 3.1), one query and one key at a time.

A sine and a cosine of each random vector w give sin(w.q) sin(w.k) + cos(w.q) cos(w.k) = cos(w.(q - k)).
"""

import torch
from torch import Tensor

from fairseq_linformer.attention.rfa import RandomFeatureAttention

from .naive_attention import heads_of


def kernel(query: Tensor, key: Tensor, vectors: Tensor) -> Tensor:
    """The mean of cos(w . (q - k)) over the random vectors, for q and k of length 1."""
    difference = query / (query @ query).sqrt() - key / (key @ key).sqrt()
    return sum((vector @ difference).cos() for vector in vectors) / len(vectors)


def reference(module: RandomFeatureAttention, x: Tensor) -> Tensor:
    heads = []
    for i, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        vectors = module.draws[i] * module.scale[i] / module.temperature
        floor = torch.tensor(10 / len(vectors), dtype=x.dtype)
        keys, values = x @ wk.T + bk, x @ wv.T + bv
        rows = []
        for query in x @ wq.T + bq:
            similarities = torch.stack([kernel(query, key, vectors) for key in keys])
            rows.append(similarities @ values / torch.maximum(similarities.sum().abs(), floor))
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
