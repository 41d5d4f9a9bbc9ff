"""Long-Short Transformer (arXiv 2107.02192, section 3) as the paper writes it: one head, one position at a time."""

import torch
from torch import Tensor, nn

from fairseq_linformer.attention.long_short import LongShortAttention

from .naive_attention import attend
from .nystrom import convolve
from .positions import bias, rotated, without_rotary


def norm(layer: nn.LayerNorm, rows: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return layer.weight * centred / ((centred**2).mean(1, keepdim=True) + layer.eps).sqrt() + layer.bias


def summaries(module: LongShortAttention, x: Tensor, rows: Tensor, token: Tensor) -> Tensor:
    """LN_G(P^T rows), where each head has weights of its own for the positions; before it LN_G(token): (g + r, d)."""
    weights = (x @ module.dynamic_projection.weight.T).softmax(0).unflatten(1, (module.num_heads, -1))  # (n, h, r)
    far = torch.einsum("nhr,nhd->rhd", weights, rows.unflatten(1, (module.num_heads, -1))).flatten(1)
    return norm(module.global_norm, torch.cat([token, far]))


def reference(module: LongShortAttention, x: Tensor) -> Tensor:
    first = int(module.class_token)
    n, w, rest = len(x) - first, module.window, x[first:]
    margin, heads = max(1, w // 2), []
    queries = x @ module.q_proj.weight.T + module.q_proj.bias
    token_keys, token_values = (part(x[:first]) for part in (module.k_proj, module.v_proj))
    keys, values = (norm(module.local_norm, part(rest)) for part in (module.k_proj, module.v_proj))
    far_keys, far_values = (
        summaries(module, rest, rows, token) for rows, token in ((keys, token_keys), (values, token_values))
    )
    for head in range(module.num_heads):
        share = slice(head * module.head_dim, (head + 1) * module.head_dim)
        rows = [queries[:0, share]]
        for p in range(n):
            start = p - p % w  # of its segment
            local = [q for q in range(n) if start - margin <= q < start + w + margin]
            local_keys = rotated(module, keys[local, share], local)
            all_keys = torch.cat([without_rotary(module, far_keys[:, share]), local_keys])
            all_values = torch.cat([far_values[:, share], values[local, share]])
            biases = torch.cat([x.new_zeros(len(far_keys)), bias(module, head, p, local)])
            query = rotated(module, queries[first + p : first + p + 1, share], [p])
            rows.append(attend(query, all_keys, all_values, biases))
        out = local_out = torch.cat(rows)
        if module.conv is not None and n:
            out = out + convolve(module.conv.weight[head].flatten(), values[:, share])
        if first:
            all_keys, all_values = (torch.cat([part[:, share], local_out]) for part in (token_keys, token_values))
            out = torch.cat([attend(queries[:1, share], all_keys, all_values), out])
        heads.append(out)
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
