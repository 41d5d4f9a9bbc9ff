"""Efficient attention (arXiv 1812.01243, section 3.2) with its n x n matrix: rho_q(Q) rho_k(K)^T, times V."""

import torch
from torch import Tensor

from fairseq_linformer.attention.efficient import EfficientAttention

from .naive_attention import heads_of


def reference(module: EfficientAttention, x: Tensor) -> Tensor:
    heads = []
    for (wq, bq), (wk, bk), (wv, bv) in zip(
        *(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True
    ):
        queries = torch.stack([query.exp() / query.exp().sum() for query in x @ wq.T + bq])  # one position at a time
        columns = [feature.exp() / feature.exp().sum() for feature in (x @ wk.T + bk).T]  # one feature at a time
        weights = queries @ torch.stack(columns)  # (n, d_h) @ (d_h, n)
        heads.append(weights @ (x @ wv.T + bv))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
