"""No attention: the control of every comparison. Each position attends to itself alone.

    out_i = W_out (W_v x_i + b_v) + b_out

Only ``local_conv`` then mixes positions. An attention that is not clearly better than this control, on some data and
recipe, cannot be compared with others there.

Dimensions: B batch, n sequence length, d embedding. Cost per layer: 2 B n d^2 multiplications.
"""

from torch import Tensor

from .base import Attention, register_attention


@register_attention("none")
class NoAttention(Attention):
    """Values alone: attention in which every query selects its own position."""

    HAS_WEIGHTS = False
    QKV_PROJECTIONS = ("v_proj",)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        return self.out_proj(self.values(x, first_values))
