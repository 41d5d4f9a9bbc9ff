"""Revisited Linformer (arXiv 2101.10277) as its formula stands: one head, one feature, one position at a time."""

import torch
from torch import Tensor

from fairseq_linformer.attention.revisited_linformer import RevisitedLinformerAttention
from tests.reference.naive_attention import heads_of, project


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


def reference(module: RevisitedLinformerAttention, x: Tensor) -> Tensor:
    """From left to right, with the (n, m) matrix that the mechanism avoids: (n, d) -> (n, d)."""
    heads = []
    for i, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        keys = project(module.key_projection, i, x) @ wk.T + bk
        values = project(module.value_projection, i, x) @ wv.T + bv
        root = module.head_dim**0.5
        queries = torch.stack([softmax((wq @ position + bq) / root) for position in x])  # (n, d_h)
        features = torch.stack([softmax(feature / root) for feature in keys.T])  # (d_h, m)
        heads.append((queries @ features) @ values)
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
