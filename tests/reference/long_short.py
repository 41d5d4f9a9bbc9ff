"""Long-Short Transformer (arXiv 2107.02192, section 3) as the paper writes it: one head, one position at a time."""

import torch
from torch import Tensor, nn

from fairseq_linformer.attention.long_short import LongShortAttention
from tests.reference.naive_attention import attend, heads_of


def norm(layer: nn.LayerNorm, row: Tensor) -> Tensor:
    centred = row - row.mean()
    return layer.weight * centred / ((centred**2).mean() + layer.eps).sqrt() + layer.bias


def summaries(module: LongShortAttention, x: Tensor, rows: Tensor) -> Tensor:
    """LN_G(P^T rows): (r, d), where each head has weights of its own for the positions."""
    size, r = module.head_dim, module.rank
    weight = module.dynamic_projection.weight
    found = []
    for j in range(r):
        heads = []
        for i in range(module.num_heads):
            scores = torch.stack([position @ weight[i * r + j] for position in x])
            shares = scores.exp() / scores.exp().sum()
            heads.append(sum(share * row[i * size : (i + 1) * size] for share, row in zip(shares, rows, strict=True)))
        found.append(norm(module.global_norm, torch.cat(heads)))
    return torch.stack(found)


def reference(module: LongShortAttention, x: Tensor) -> Tensor:
    """(n, d) -> (n, d)."""
    local_keys, local_values = (
        torch.stack([norm(module.local_norm, linear.weight @ position + linear.bias) for position in x])
        for linear in (module.k_proj, module.v_proj)
    )
    global_keys, global_values = summaries(module, x, local_keys), summaries(module, x, local_values)
    n, w, size = len(x), module.window, module.head_dim
    beside = max(1, w // 2)
    heads = []
    for i, (weight, bias) in enumerate(heads_of(module, module.q_proj)):
        own = slice(i * size, (i + 1) * size)
        rows = []
        for p in range(n):
            first = p - p % w  # of its segment
            seen = [q for q in range(n) if first - beside <= q < first + w + beside]
            keys = torch.cat([global_keys[:, own], local_keys[seen][:, own]])
            values = torch.cat([global_values[:, own], local_values[seen][:, own]])
            rows.append(attend((weight @ x[p] + bias).unsqueeze(0), keys, values))
        heads.append(torch.cat(rows))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
