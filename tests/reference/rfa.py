"""Random feature attention (arXiv 2103.02143, section 3.1), with all n x n weights.

A sine and a cosine of each random vector w give sin(w.q) sin(w.k) + cos(w.q) cos(w.k) = cos(w.(q - k)).
"""

from .naive_attention import join_heads


def reference(module, x):
    def attend_head(head, queries, keys, values):
        vectors = module.draws[head] * module.scale[head] / module.temperature  # (m, d_h)
        queries, keys = (rows / rows.norm(dim=1, keepdim=True) for rows in (queries, keys))
        weights = ((queries[:, None] - keys) @ vectors.T).cos().mean(2)
        return weights @ values / weights.sum(1, keepdim=True).abs().clamp(min=10 / len(vectors))

    return join_heads(module, x, attend_head)
