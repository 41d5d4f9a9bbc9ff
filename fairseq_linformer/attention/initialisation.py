"""How matrices start that project along the sequence.

Dimensions: n sequence length, k projected length.
"""

import torch
from torch import Tensor

from .adaptive import adaptive_pooling

NOISE = 0.002  # standard deviation of the noise on the segment means: enough to tell the rows of E and F apart


@torch.no_grad()
def draw_matrix(matrix: Tensor, start: str) -> None:
    """Draws a matrix, in place.

    Args:
        matrix: E, (..., k, n).
        start: ``segment-mean``: ``adaptive_pooling`` plus noise. ``normal``: normal with standard deviation 0.02, as
            the authors' code trains. ``johnson-lindenstrauss``: normal with variance 1 / k, as in the proof of the
            paper's theorem 2.
    """
    k, n = matrix.shape[-2:]
    matrix.normal_()
    if start == "segment-mean":
        means = adaptive_pooling(torch.tensor(n, device=matrix.device), k, n, matrix.dtype)
        matrix.mul_(NOISE).add_(means)
    else:
        matrix.mul_(0.02 if start == "normal" else k**-0.5)
