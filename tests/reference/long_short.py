"""Long-Short Transformer (arXiv 2107.02192, section 3) as the paper writes it: one head, one position at a time."""

import torch

from .naive_attention import attend
from .nystrom import convolve
from .positions import bias, rotated, without_rotary


def summaries(module, x, rows, token):
    """Return LN_G of the token and of P^T rows, with weights P per head: (g + r, d)."""
    weights = (x @ module.dynamic_projection.weight.T).softmax(0).unflatten(1, (module.num_heads, -1))  # (n, h, r)
    summary = torch.einsum("nhr,nhd->rhd", weights, rows.unflatten(1, (module.num_heads, -1))).flatten(1)
    return module.global_norm(torch.cat([token, summary]))


def reference(module, x):
    first = int(module.class_token)
    n, w, text = len(x) - first, module.window, x[first:]
    margin, heads = max(1, w // 2), []
    queries = x @ module.q_proj.weight.T + module.q_proj.bias
    token_keys, token_values = (part(x[:first]) for part in (module.k_proj, module.v_proj))
    keys, values = (module.local_norm(part(text)) for part in (module.k_proj, module.v_proj))
    summary_keys = summaries(module, text, keys, token_keys)
    summary_values = summaries(module, text, values, token_values)
    for head in range(module.num_heads):
        share = slice(head * module.head_dim, (head + 1) * module.head_dim)
        rows = [queries[:0, share]]
        for p in range(n):
            start = p - p % w  # of its segment
            local = [q for q in range(n) if start - margin <= q < start + w + margin]
            local_keys = rotated(module, keys[local, share], local)
            all_keys = torch.cat([without_rotary(module, summary_keys[:, share]), local_keys])
            all_values = torch.cat([summary_values[:, share], values[local, share]])
            biases = torch.cat([x.new_zeros(len(summary_keys)), bias(module, head, p, local)])
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
