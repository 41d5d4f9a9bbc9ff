"""Linear maps of which a mechanism needs more than a call: the weights, the product without the bias, single heads.

Dimensions: B batch, n sequence length, m rows, d embedding, h heads, d_h = d / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_unmodified_linear(linear: nn.Module) -> bool:
    """Return True for an unmodified ``nn.Linear``, whose weight and bias may be read; any other must be called.

    An adapter (LoRA) may wrap it, it may be quantized, or a hook may load its weight, as those of accelerate do.
    """
    hooked = linear._forward_pre_hooks or linear._forward_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not hooked


def per_head_params(linear: nn.Linear, heads: int) -> tuple[Tensor, Tensor]:
    """Return the weight, (h, d_h, d), and the bias, (h, 1, d_h), of each head of an unmodified linear map.

    A map without a bias has a bias of zeros.
    """
    weight = linear.weight.unflatten(0, (heads, -1))
    bias = weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    return weight, bias.view(heads, 1, -1)


def map_without_bias(linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return X W^T, (B, n, d), and b, (B or 1, 1, d): that of an adapter may differ between sequences."""
    if is_unmodified_linear(linear):
        return F.linear(x, linear.weight), per_head_params(linear, heads=1)[1]
    bias = linear(torch.zeros_like(x[:, :1]))
    return linear(x) - bias, bias


def map_per_head(linear: nn.Linear, x: Tensor) -> Tensor:
    """Map the rows of each head, (B, h, m, d) -> (B, h, m, d_h): head i is multiplied by the i-th slice of W."""
    heads = x.size(1)
    if is_unmodified_linear(linear):
        weight, bias = per_head_params(linear, heads)
        return x @ weight.transpose(1, 2) + bias
    mapped = linear(x).unflatten(-1, (heads, -1))  # (B, h, m, h, d_h)
    return mapped.diagonal(dim1=1, dim2=3).movedim(-1, 1)
