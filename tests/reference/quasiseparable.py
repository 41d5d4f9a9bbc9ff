"""The quasiseparable mixer of Hydra (arXiv 2407.09941), one pair of positions at a time, each weight a product."""

import torch
from torch.nn.functional import silu

from .naive_attention import embed


def weight(i, j, steps, rate):
    """Return the weight of key j for query i: the key's step times the decays of the positions between them."""
    return steps[j] * (-rate * steps[min(i, j) + 1 : max(i, j)].sum()).exp()


def reference(module, x):
    steps = (1 + (x @ module.step_proj.weight.T + module.step_proj.bias).exp()).log()  # (n, 2 h)
    values = silu(x @ module.v_proj.weight.T + module.v_proj.bias)
    diagonal = values @ module.diagonal_proj.weight.T + module.diagonal_proj.bias
    heads, size, positions = [], module.head_dim, range(len(x))
    for head in range(module.num_heads):
        products = silu(embed(module, "q_proj", head, x)) @ silu(embed(module, "k_proj", head, x)).T
        rate, left, right = module.log_rate[head].exp(), steps[:, head], steps[:, module.num_heads + head]
        mixing = [[weight(i, j, left if j < i else right, rate) for j in positions] for i in positions]
        matrix = products * torch.stack([torch.stack(row) for row in mixing])
        matrix = matrix.masked_fill(torch.eye(len(x), dtype=torch.bool), 0.0) + diagonal[:, head].diag()
        heads.append(matrix @ values[:, head * size : (head + 1) * size])
    mixed = torch.cat(heads, dim=1)
    normed = mixed / ((mixed * mixed).mean(1, keepdim=True) + 1e-5).sqrt() * module.norm_weight
    gated = normed * silu(x @ module.gate_proj.weight.T + module.gate_proj.bias)
    return gated @ module.out_proj.weight.T + module.out_proj.bias
