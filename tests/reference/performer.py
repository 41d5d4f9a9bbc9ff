"""FAVOR+ (arXiv 2009.14794, lemma 1, with the authors' stabiliser), one query and one key at a time."""

import torch
from torch import Tensor

from fairseq_linformer.attention.performer import PerformerAttention

from .naive_attention import heads_of


def features(vector: Tensor, projection: Tensor, largest: Tensor) -> Tensor:
    """exp(w_r . x - |x|^2 / 2 - largest) + 1e-4 for each row w_r."""
    return torch.stack([(row @ vector - vector @ vector / 2 - largest).exp() + 1e-4 for row in projection])


def reference(module: PerformerAttention, x: Tensor) -> Tensor:
    projection = module.projection
    root = module.head_dim**0.25
    heads = []
    for (wq, bq), (wk, bk), (wv, bv) in zip(
        *(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True
    ):
        queries, keys = (x @ wq.T + bq) / root, (x @ wk.T + bk) / root
        values = x @ wv.T + bv
        largest = max(row @ key for key in keys for row in projection).detach()
        of_keys = [features(key, projection, largest) for key in keys]
        rows = []
        for query in queries:
            of_query = features(query, projection, max(row @ query for row in projection).detach())
            similarities = torch.stack([of_query @ of_key for of_key in of_keys])
            rows.append((similarities / similarities.sum()) @ values)
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
