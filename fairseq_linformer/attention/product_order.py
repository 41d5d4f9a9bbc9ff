"""In which order the products of E, X and W are taken: whichever costs less.

Dimensions: B batch, n sequence length, k projected length, m rows, d embedding, h heads, d_h = d / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention
from .projection import LinearProjection, Projection
from .residual import is_plain


def embedding_first(key_projection: Projection, value_projection: Projection, length: int, d: int) -> bool:
    """Whether E (X W_k^T) takes fewer multiplications than (E X) W_k^T, for n = length, keys and values together.

    Only matrices leave the choice. It does for sequences shorter than about k, and for one matrix per head, where
    X is compressed h times. While PyTorch compiles, the longest sequence decides: a branch on the length would
    tie the graph to some lengths.

    Args:
        key_projection: E.
        value_projection: F; the same module where keys and values share one.
        length: n.
        d: embedding dimension.
    """
    if not isinstance(key_projection, LinearProjection):
        return False
    k, longest = key_projection.weight.shape[-2:]
    n = longest if torch.compiler.is_compiling() else length
    if key_projection.weight.dim() == 3:
        compressions = 2 * key_projection.weight.size(0)
    else:
        compressions = 1 if value_projection is key_projection else 2
    return 2 * n * d + 2 * k * n < compressions * k * n + 2 * k * d  # each side times d


def embed_then_project(
    attention: Attention, x: Tensor, padding_mask: Tensor | None, projection: Projection, linear: nn.Linear
) -> Tensor:
    """(B, n, d) -> (B, h, k, d_h) by E (X W^T) + b."""
    if is_plain(linear):
        embedded, bias = F.linear(x, linear.weight), attention.of_each_head(linear)[1]
    else:
        bias = linear(torch.zeros_like(x[:, :1]))  # of each row: adapters may differ between rows
        embedded, bias = linear(x) - bias, attention.split_heads(bias)
    return projection(attention.split_heads(embedded), padding_mask) + bias


def embed_rows(attention: Attention, rows: Tensor, linear: nn.Linear) -> Tensor:
    """(B, m, d) -> (B, h, m, d_h); with one matrix per head, (B, h, m, d) -> (B, h, m, d_h) by its share of W."""
    if rows.dim() == 3:
        return attention.split_heads(linear(rows))
    if not is_plain(linear):
        heads = linear(rows).unflatten(-1, (attention.num_heads, attention.head_dim))  # (B, h, m, h, d_h)
        return heads.diagonal(dim1=1, dim2=3).movedim(-1, 1)
    weight, bias = attention.of_each_head(linear)
    return rows @ weight.transpose(1, 2) + bias
