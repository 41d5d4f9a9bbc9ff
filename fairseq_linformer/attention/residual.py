"""Value residuals: a layer mixes the first layer's values into its own.

ResFormer with learned weights (Zhou et al. 2024, arXiv 2410.17897).

Dimensions: B batch, n sequence length, d embedding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def is_plain(linear: nn.Module) -> bool:
    """Whether a map is its weight and bias alone, which may be read then; any other must be called.

    That is one which an adapter (LoRA) wraps, which is quantized, or whose weight a hook brings, as accelerate's do.
    """
    hooked = linear._forward_pre_hooks or linear._forward_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not hooked


class ValueResidual(nn.Module):
    """The values of an attention, with a value residual once ``add_value_residual`` was called."""

    v_proj: nn.Linear
    value_mix: nn.Parameter | None

    def add_value_residual(self) -> None:
        """From now on ``forward`` mixes the first layer's values into its own; ``values`` says how."""
        self.value_mix = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets both weights of a value residual to their start."""
        if self.value_mix is not None:
            nn.init.constant_(self.value_mix, 0.5)

    def values(self, x: Tensor, first_values: Tensor | None) -> Tensor:
        """V = X W_v + b, (B, n, d) -> (B, n, d); with a value residual u V + w V_1, ``value_mix`` being (u, w).

        V_1 (B, n, d) are the values of the first layer. Both weights start at 1/2. It costs B n d, and in projected
        attention F V_1. u is multiplied into W_v and b, so that no V is kept for its gradient.
        """
        if self.value_mix is None or first_values is None or not is_plain(self.v_proj):
            return self.with_first_values(self.v_proj(x), first_values)
        own, first = self.value_mix
        return F.linear(x, own * self.v_proj.weight, own * self.v_proj.bias) + first * first_values

    def with_first_values(self, values: Tensor, first_values: Tensor | None) -> Tensor:
        """Values of any shape and the first layer's of the same one, mixed; without a value residual the former."""
        if self.value_mix is None or first_values is None:
            return values
        own, first = self.value_mix
        return own * values + first * first_values
