"""Quasiseparable mixing: a state space from each side and a diagonal, Hydra's (Hwang et al. 2024, arXiv 2407.09941).

    y_i = sum_{j<i} (c_i . b_j) D_j l_ij v_j + s_i v_i + sum_{j>i} (c_i . b_j) D'_j r_ij v_j
    l_ij = exp(-A sum_{j<p<i} D_p),    r_ij = exp(-A sum_{i<p<j} D'_p),    out_i = W_o (rmsnorm(y_i) * silu(W_z x_i))
    (D_i, D'_i) = softplus(W_d x_i + t),    s_i = W_s v_i + u,    A = e^a,    c, b, v = silu of queries, keys, values

The paper writes it shift(SS(X)) + flip(shift(SS(flip(X)))) + s X, where SS is Mamba-2's state space: only the diagonal
maps a position to itself. Weights have signs and are not normalised; the norm replaces that. D, D', s and A are one
number per head.

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h, b chunk, s = ceil(log2 ceil(n / b)) steps.
Cost per layer: O(B n (b + d_h) d) time besides the linear maps, of which W_z is one more, and O(B n (h b + d)) memory,
in training O(B n (h b + d + s d_h d / b)) for the backward pass. See ``decay.py``.

Departures from the authors' code (goombalab/hydra): the shift does not apply to c, which is c_i instead of that of the
position before; both sides share c and b, as in the code of their matrix mixers; each side has a bias t where theirs is
one for both; D is at least 1e-6, and starts evenly spaced over the heads where theirs is drawn. Their block, which also
replaces a layer's feed-forward network, doubles the width and has a convolution before c, b and v; here ``local_conv``
is an option of the layer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Attention, register_attention
from .decay import Decay, decayed_attention
from .options import AttentionConfig, Options, option

SMALLEST_STEP = 1e-6
FIRST_STEPS = (1e-3, 1e-1)  # initial D of the first and the last head: ranges of some 1,000 and 10 positions on a side


@dataclass
class QuasiseparableOptions(Options):
    quasiseparable_chunk: int = option(32, "b: positions computed together; it does not change the result", smallest=1)

    TEST_CASES: ClassVar = ({"quasiseparable_chunk": 4}, {"quasiseparable_chunk": 2})


@register_attention("quasiseparable", QuasiseparableOptions)
class QuasiseparableMixer(Attention):
    """States from both sides, a diagonal, a norm and a gate; see the module."""

    HAS_WEIGHTS = False  # weights do not sum to 1

    def __init__(self, config: AttentionConfig, options: QuasiseparableOptions, layer: int):
        super().__init__(config, options, layer)
        self.chunk, self.longest = options.quasiseparable_chunk, config.max_positions
        self.gate_proj = nn.Linear(self.embed_dim, self.embed_dim)  # W_z
        self.step_proj = nn.Linear(self.embed_dim, 2 * self.num_heads)  # W_d and t
        self.diagonal_proj = nn.Linear(self.embed_dim, self.num_heads)  # W_s and u
        self.log_rate = nn.Parameter(torch.empty(self.num_heads))  # a
        self.norm_weight = nn.Parameter(torch.empty(self.embed_dim))
        self.finish_initialisation()

    @torch.no_grad()
    def finish_initialisation(self) -> None:
        first, last = (math.log(step) for step in FIRST_STEPS)
        steps = torch.linspace(first, last, self.num_heads).exp()
        self.step_proj.bias.copy_(steps.expm1().log().repeat(2))  # the inverse of softplus
        self.diagonal_proj.bias.fill_(1.0)
        self.log_rate.zero_()
        self.norm_weight.fill_(1.0)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        mapped = (*self.project(x, first_values), self.gate_proj(x))
        queries, keys, values, gate = (F.silu(part.to(wide)) for part in mapped)
        steps = F.softplus(self.step_proj(x).to(wide)).clamp_min(SMALLEST_STEP)  # (B, n, 2 h)
        diagonal = self.diagonal_proj(values.to(x.dtype)).to(wide)  # (B, n, h)
        with torch.autocast(x.device.type, enabled=False):
            mixed = self._mix(queries, self.zero_padding(keys, padding_mask), values, steps, padding_mask)
            mixed = mixed.transpose(1, 2) + diagonal.unsqueeze(3) * values.unflatten(2, (self.num_heads, -1))
            normed = F.rms_norm(mixed.flatten(2), (self.embed_dim,), self.norm_weight.to(wide), 1e-5)  # (B, n, d)
        return self.out_proj((normed * gate).to(x.dtype))

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, steps: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return y without its diagonal, from (B, n, d) each and steps (B, n, 2 h): (B, h, n, d_h)."""
        passing = self.zero_padding(-steps * self.log_rate.to(steps.dtype).exp().repeat(2), padding_mask)
        exponents = (part.transpose(1, 2).chunk(2, dim=1) for part in (passing, steps.log()))  # (B, h, n) each
        left, right = (Decay(*side) for side in zip(*exponents, strict=True))
        queries, keys, values = (self.split_heads(part) for part in (queries, keys, values))
        return decayed_attention(queries, keys, values, left, right, -math.inf, self.chunk, self.longest)
