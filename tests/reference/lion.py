"""LION (arXiv 2502.16249): full linear attention with a mask of decays, each a product over the positions between."""

import torch

from .linear import normalized
from .naive_attention import join_heads


def feature_map(x):
    """silu(x) + 1/2, made vectors of length 1."""
    shifted = x / (1 + (-x).exp()) + 0.5
    return shifted / shifted.norm(dim=1, keepdim=True)


def decays_of(module, head, x):
    """lambda at each position: (n,)."""
    if module.kind == "none":
        return x.new_ones(len(x))
    if module.kind == "learned":
        return (1 / (1 + (-module.decay[head]).exp())).expand(len(x))
    return 1 / (1 + (-x @ module.decay_proj.weight[head] - module.decay_proj.bias[head]).exp())


def mask(decays):
    """M: for query i and key j the decays of the key and of the positions between them."""
    indices = range(len(decays))
    rows = [[(decays[j:i] if j < i else decays[i + 1 : j + 1]).prod() for j in indices] for i in indices]
    return torch.stack([torch.stack(row) for row in rows])


def reference(module, x):
    def attend_head(head, queries, keys, values):
        weights = feature_map(queries) @ feature_map(keys).T * mask(decays_of(module, head, x))
        return normalized(weights) @ values

    return join_heads(module, x, attend_head)
