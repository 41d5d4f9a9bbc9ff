"""The quasiseparable mixer of Hydra (arXiv 2407.09941), one pair of positions at a time, each weight a product."""

import math

import torch
from torch import Tensor

from fairseq_linformer.attention.quasiseparable import QuasiseparableMixer

from .naive_attention import heads_of


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def weight(i: int, j: int, steps: Tensor, rate: Tensor) -> Tensor:
    """Of key j for query i: its own step, times what is left after each position between."""
    between = range(min(i, j) + 1, max(i, j))
    return steps[j] * math.prod(((-rate * steps[p]).exp() for p in between), start=steps.new_ones(()))


def reference(module: QuasiseparableMixer, x: Tensor) -> Tensor:
    steps = (1 + (x @ module.step_proj.weight.T + module.step_proj.bias).exp()).log()  # (n, 2 h)
    values = silu(x @ module.v_proj.weight.T + module.v_proj.bias)
    diagonal = values @ module.diagonal_proj.weight.T + module.diagonal_proj.bias
    heads, size = [], module.head_dim
    for head, ((wq, bq), (wk, bk)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj)), strict=True)
    ):
        queries, keys, own = silu(x @ wq.T + bq), silu(x @ wk.T + bk), values[:, head * size : (head + 1) * size]
        rate, rows = module.log_rate[head].exp(), []
        for i, query in enumerate(queries):
            row = diagonal[i, head] * own[i]
            for j in range(len(x)):
                if j != i:
                    side = steps[:, head + (0 if j < i else module.num_heads)]
                    row = row + (query @ keys[j]) * weight(i, j, side, rate) * own[j]
            rows.append(row)
        heads.append(torch.stack(rows))
    mixed = torch.cat(heads, dim=1)
    normed = torch.stack([row / ((row @ row) / len(row) + 1e-5).sqrt() for row in mixed]) * module.norm_weight
    gated = normed * silu(x @ module.gate_proj.weight.T + module.gate_proj.bias)
    return gated @ module.out_proj.weight.T + module.out_proj.bias
