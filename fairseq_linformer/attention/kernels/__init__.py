"""Attention by kernels: PyTorch's FlexAttention for local windows, Triton for selected segments."""

from typing import NamedTuple

from torch import Tensor


class FlexInputs(NamedTuple):
    """Queries and keys of a layer.

    Attributes:
        queries: of the text, (B, n, h, d_h).
        keys, values: of projected keys and sinks, zeros, then of the text, as ``lay_out`` orders them, (B, s, h, d_h).
        prefix_len, prefix_pad: m + g, and the number of zeros before the text.
        unrotated_keys: of the text and projected, (B, h, m, d_h), if the layer selects segments.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    prefix_len: int
    prefix_pad: int
    unrotated_keys: tuple[Tensor, Tensor] | None = None
