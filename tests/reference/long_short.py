"""Long-Short Transformer (arXiv 2107.02192, section 3) as the paper writes it: one head, one position at a time."""

import torch
from torch import Tensor, nn

from fairseq_linformer.attention.long_short import LongShortAttention

from .naive_attention import attend, heads_of
from .nystrom import convolve
from .positions import bias, rotated, without_rotary


def norm(layer: nn.LayerNorm, row: Tensor) -> Tensor:
    centred = row - row.mean()
    return layer.weight * centred / ((centred**2).mean() + layer.eps).sqrt() + layer.bias


def summaries(module: LongShortAttention, x: Tensor, rows: Tensor, token: list[Tensor]) -> Tensor:
    """LN_G(P^T rows): (r, d), where each head has weights of its own for the positions; before them LN_G(token)."""
    size, r = module.head_dim, module.rank
    weight = module.dynamic_projection.weight
    found = [norm(module.global_norm, row) for row in token]
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
    first = 1 if module.class_token else 0
    token, rest = x[:first], x[first:]
    sides = []
    for linear in (module.k_proj, module.v_proj):
        rows = [linear.weight @ position + linear.bias for position in x]
        own, near = rows[:first], [norm(module.local_norm, row) for row in rows[first:]]
        far = summaries(module, rest, near, own) if near else []
        sides.append((own, far, near))
    (token_keys, far_keys, near_keys), (token_values, far_values, near_values) = sides
    n, w, size = len(rest), module.window, module.head_dim
    beside = max(1, w // 2)
    heads = []
    for i, (weight, added) in enumerate(heads_of(module, module.q_proj)):
        own = slice(i * size, (i + 1) * size)
        rows = []
        for p in range(n):
            start = p - p % w  # of its segment
            seen = [q for q in range(n) if start - beside <= q < start + w + beside]
            near = rotated(module, torch.stack([near_keys[q] for q in seen])[:, own], seen)
            keys = torch.cat([without_rotary(module, far_keys[:, own]), near])
            values = torch.stack([*far_values, *(near_values[q] for q in seen)])[:, own]
            query = rotated(module, (weight @ rest[p] + added).unsqueeze(0), [p])
            biases = torch.cat([torch.zeros(len(far_keys), dtype=x.dtype), bias(module, i, p, seen)])
            rows.append(attend(query, keys, values, [biases])[0])
        out = list(rows)
        if module.conv is not None and rows:
            convolved = convolve(module.conv.weight[i].flatten(), torch.stack(near_values)[:, own])
            out = [row + added_row for row, added_row in zip(rows, convolved, strict=True)]
        if module.class_token:
            keys, values = torch.stack([token_keys[0][own], *rows]), torch.stack([token_values[0][own], *rows])
            query = (weight @ token[0] + added).unsqueeze(0)
            out = [attend(query, keys, values)[0], *out]
        heads.append(torch.stack(out))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
