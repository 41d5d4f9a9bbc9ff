"""Value residuals: the values of a layer are u V + w V_1 (ResFormer with learned u and w, arXiv 2410.17897).

V_1 are the values of the first layer. Cost: B n d; projected attention adds that of F V_1.

Dimensions: B batch, n sequence length, d embedding.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .linear_maps import is_unmodified_linear


def mix_values(values: Tensor, first_values: Tensor | None, mix: Tensor | None) -> Tensor:
    """Return u V + w V_1, of the shape of both, where `mix` is (u, w); V in a layer without a value residual."""
    if first_values is None or mix is None:
        return values
    weight, first_weight = mix
    return weight * values + first_weight * first_values


def map_and_mix(v_proj: nn.Linear, x: Tensor, first_values: Tensor, mix: Tensor) -> Tensor:
    """Return u (X W_v + b) + w V_1: (B, n, d) -> (B, n, d).

    W_v and b are multiplied by u, so that the backward pass does not need V.
    """
    if not is_unmodified_linear(v_proj):
        return mix_values(v_proj(x), first_values, mix)
    weight, first_weight = mix
    bias = None if v_proj.bias is None else weight * v_proj.bias
    return F.linear(x, weight * v_proj.weight, bias) + first_weight * first_values
