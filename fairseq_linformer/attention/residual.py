"""Value residuals: a layer mixes the first layer's values into its own.

ResFormer with learned weights (Zhou et al. 2024, arXiv 2410.17897).

Dimensions: B batch, n sequence length, d embedding.
"""

import torch
from torch import Tensor, nn


class ValueResidual(nn.Module):
    """The values of an attention, with a value residual once ``add_value_residual`` was called."""

    v_proj: nn.Linear
    value_mix: nn.Parameter | None

    def add_value_residual(self) -> None:
        """From now on ``forward`` mixes the first layer's values into its own; ``values`` says how."""
        self.value_mix = nn.Parameter(torch.empty(2))
        self.reset_value_mix()

    def reset_value_mix(self) -> None:
        """Sets both weights of a value residual to their start."""
        if self.value_mix is not None:
            nn.init.constant_(self.value_mix, 0.5)  # not fill_: transformers sees to it that this spares loaded weights

    def values(self, x: Tensor, first_values: Tensor | None) -> Tensor:
        """V = X W_v + b, (B, n, d) -> (B, n, d); with a value residual u V + w V_1, ``value_mix`` being (u, w).

        V_1 (B, n, d) are the values of the first layer. Both weights start at 1/2. It costs B n d, and in projected
        attention F V_1.
        """
        return self.with_first_values(self.v_proj(x), first_values)

    def with_first_values(self, values: Tensor, first_values: Tensor | None) -> Tensor:
        """Values of any shape and the first layer's of the same one, mixed; without a value residual the former."""
        if self.value_mix is None or first_values is None:
            return values
        own, first = self.value_mix
        return own * values + first * first_values
