"""Projections that adapt to the length of a text.

By default a text of l tokens is projected by the first l columns of a matrix, or pooled in about k l / n windows. With
``adaptive_length`` a matrix is applied to the text stretched to n positions, and the text is divided into k windows,
whatever its length. At l = n both are the same.

Dimensions: B batch, n longest sequence, l length of a text, k projected length.
"""

import torch
from torch import Tensor


def text_lengths(length: int, padding_mask: Tensor | None, device: torch.device) -> Tensor:
    """Return the number of unmasked tokens of each sequence, at least 1: (B,), or (1,) without padding."""
    if padding_mask is None:
        return torch.full((1,), length, device=device)
    return (~padding_mask).sum(1).clamp(min=1)


def stretch_columns(matrix: Tensor, lengths: Tensor, length: int) -> Tensor:
    """Return E S, so that (E S) X = E (S X); S stretches the first l positions of X to n by linear interpolation.

    Position p of S X is position p (l - 1) / (n - 1) of X: the ends are kept, and S is the identity at l = n. E S costs
    B k n, the product with X B k l d.

    Args:
        matrix: E, (..., k, n).
        lengths: (B,), l of each text.
        length: columns of the result; the largest l, or more.

    Returns:
        (B, ..., k, length).
    """
    n = matrix.size(-1)
    scaled = torch.arange(n, device=matrix.device) * (lengths.unsqueeze(1) - 1)  # (B, n), the position times n - 1
    lower = scaled // max(1, n - 1)
    fraction = (scaled - lower * max(1, n - 1)).to(matrix.dtype) / max(1, n - 1)
    shape = (lengths.size(0), *(1,) * (matrix.dim() - 1), n)
    sizes = (lengths.size(0), *matrix.shape)
    stretched = matrix.new_zeros((*sizes[:-1], length))
    for columns, weights in ((lower, 1 - fraction), ((lower + 1).clamp(max=length - 1), fraction)):
        stretched = stretched.scatter_add(-1, columns.view(shape).expand(sizes), weights.view(shape) * matrix)
    return stretched
