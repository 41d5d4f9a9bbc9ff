"""LION: bidirectional linear attention with decay (Afzal et al. 2025, arXiv 2502.16249).

    head_i = sum_j M_ij (phi(q_i) . phi(k_j)) v_j / sum_j M_ij (phi(q_i) . phi(k_j)),    phi(x) = s / |s|
    s = silu(x) + 1/2
    M_ij = lambda_j ... lambda_(i-1) for j < i,    1 for j = i,    lambda_(i+1) ... lambda_j for j > i

This is the paper's full linear attention, Y = Scale(Q K^T * M) V, and equals its two recurrences S_i = lambda S_(i-1) +
k_i v_i^T, from the left and from the right. Its three variants are ``lion_decay``:

    none       LION-LIT  lambda = 1
    learned    LION-D    lambda = sigmoid(a), one a per head
    selective  LION-S    lambda_i = sigmoid(w . x_i + b), one w and b per head

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h, b chunk, s = ceil(log2 ceil(n / b)) steps.
Cost per layer: O(B n (b + d_h) d) time besides the linear maps, O(B h n (b + d_h)) memory, in training O(B h n (b + d_h
+ s d_h^2 / b)) for the backward pass; without decay that of ``linear``. See ``decay.py``.

The mask is that of the authors' code (LIONS-EPFL/LION): the weight of a key includes its lambda, not that of the query.
There are three departures. Initial decays differ between heads, as in RetNet, which LION-D extends: 1 - lambda is from
1/2 to 1/128, a range of about 2 to 128 positions on a side; theirs all start near lambda = 1/2. All variants have the
same phi, where theirs has elu + 1 in LION-LIT, which would equal ``linear``. All are normalised, as in the paper; their
code for masked language modelling has a layer norm instead.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .base import register_attention
from .decay import Decay, decayed_attention
from .linear import KernelAttention
from .options import AttentionConfig, Options, option

DECAYS = ("none", "learned", "selective")
FIRST_REACH = (2, 128)  # initial 1 / (1 - lambda) of the first and the last head


@dataclass
class LionOptions(Options):
    lion_decay: str = option("selective", f"decay with distance: {', '.join(DECAYS)} (LION-LIT, LION-D, LION-S)")
    lion_chunk: int = option(32, "b: positions computed together; it does not change the result", smallest=1)

    TEST_CASES: ClassVar = ({"lion_chunk": 4}, {"lion_decay": "learned", "lion_chunk": 2}, {"lion_decay": "none"})

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        check("lion_decay", self.lion_decay, self.lion_decay in DECAYS, f"one of {', '.join(DECAYS)}")


@register_attention("lion", LionOptions)
class LionAttention(KernelAttention):
    """Linear attention with decay; see the module."""

    def __init__(self, config: AttentionConfig, options: LionOptions, layer: int):
        super().__init__(config, options, layer)
        self.chunk, self.longest, self.kind = options.lion_chunk, config.max_positions, options.lion_decay
        self.decay_proj = nn.Linear(self.embed_dim, self.num_heads) if self.kind == "selective" else None
        self.decay = nn.Parameter(torch.empty(self.num_heads)) if self.kind == "learned" else None
        self.finish_initialisation()

    @torch.no_grad()
    def finish_initialisation(self) -> None:
        start = self.decay if self.decay_proj is None else self.decay_proj.bias
        if start is not None:
            first, last = (math.log2(reach) for reach in FIRST_REACH)
            reach = torch.exp2(torch.linspace(first, last, self.num_heads))
            start.copy_((reach - 1).log())  # lambda = sigmoid(a) has 1 / (1 - lambda) = 1 + e^a

    def query_features(self, queries: Tensor) -> Tensor:
        return F.normalize(F.silu(queries) + 0.5, dim=3)

    def attend_by_features(
        self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        if self.kind == "none":
            return super().attend_by_features(x, queries, keys, values, padding)
        if padding is not None:
            keys = keys.masked_fill(padding, 0.0)
        decays = self._log_decays(x, padding).to(values.dtype)
        side = Decay(decays, decays)
        counted = torch.cat([values, torch.ones_like(values[..., :1])], dim=3)  # (B, h, n, d_h + 1)
        sums = decayed_attention(queries, keys, counted, side, side, 0.0, self.chunk, self.longest)
        return sums[..., :-1] / self.bounded(sums[..., -1:])

    def _log_decays(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return log lambda: (B, n, d) -> (B, h, n), 0 where padding (B, 1, n, 1); (h,) if all positions share it."""
        if self.decay_proj is None:
            return F.logsigmoid(cast(Tensor, self.decay))
        decays = F.logsigmoid(self.decay_proj(x.to(self.decay_proj.weight.dtype))).transpose(1, 2)
        return decays if padding is None else decays.masked_fill(padding.squeeze(3), 0.0)
