"""Random feature attention, without gates (Peng et al. 2021, arXiv 2103.02143, section 3.1).

    head_i = phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j)
    phi(x) = [sin(w_1 . x'), ..., sin(w_m . x'), cos(w_1 . x'), ..., cos(w_m . x')] / sqrt(m),    x' = x / |x|
    w_r = s * g_r / t,    g_r drawn from N(0, I),  s learned by each head, t the temperature

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h, m random vectors, hence 2 m features.
Cost per layer: O(B n m d) time besides the linear maps, O(B h n m) memory.

With the initial s = 1 the mean of phi(q) . phi(k) over draws is exp(-|q' - k'|^2 / (2 t^2)), proportional to exp(q' .
k' / t^2): softmax attention of queries and keys of length 1. The authors learn s by reparametrisation, so that each
head learns a temperature in each dimension, with t = 1.

Unlike positive features, sines and cosines give weights that may be negative, and a denominator that may be near zero
or negative. As in the authors' code (Noahs-ARK/RFA) its absolute value is raised to a minimum, here 10 / m; theirs is
100 / m, which damps sequences of few positions. As in theirs, each head draws other g_r in each training step and has
fixed ones in inference. Theirs come from some hundreds that are drawn beforehand, the first in inference; here it is
the last draw.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .base import register_attention
from .linear import RandomKernelAttention
from .options import AttentionConfig, Options, option


@dataclass
class RandomFeatureOptions(Options):
    rfa_features: int = option(64, "m: random vectors, each a sine and a cosine; at least d / h is usual", smallest=1)
    rfa_temperature: float = option(1.0, "t: queries and keys of length 1 have the scores q . k / t^2, before training")
    rfa_redraw_interval: int = option(1, "updates between draws; 0 keeps the first vectors", smallest=0)

    TEST_CASES: ClassVar = ({"rfa_features": 16}, {"rfa_features": 5, "rfa_temperature": 0.7})

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        temperature = self.rfa_temperature
        check("rfa_temperature", temperature, 0 < temperature < float("inf"), "above 0, and finite")


@register_attention("rfa", RandomFeatureOptions)
class RandomFeatureAttention(RandomKernelAttention):
    """Softmax attention of queries and keys of length 1 by random Fourier features, different in each head."""

    draws: Tensor  # (h, m, d_h): the g_r

    def __init__(self, config: AttentionConfig, options: RandomFeatureOptions, layer: int):
        super().__init__(config, options, layer, options.rfa_redraw_interval)
        self.temperature = options.rfa_temperature
        self.smallest_denominator = 10 / options.rfa_features
        self.scale = nn.Parameter(torch.ones(self.num_heads, 1, self.head_dim))  # s
        self.register_buffer("draws", torch.empty(self.num_heads, options.rfa_features, self.head_dim))
        self.reset_buffers()

    def finish_initialisation(self) -> None:
        nn.init.ones_(self.scale)

    def draw(self, generator: torch.Generator) -> None:
        self.draws.copy_(torch.randn(self.draws.shape, generator=generator, device="cpu", dtype=torch.float32))

    def bounded(self, denominators: Tensor) -> Tensor:
        return super().bounded(denominators.abs())

    def query_features(self, queries: Tensor) -> Tensor:
        vectors = (self.scale * self.draws).to(queries.dtype) / self.temperature  # (h, m, d_h)
        angles = F.normalize(queries, dim=3) @ vectors.transpose(1, 2)  # (B, h, n, d_h) @ (h, d_h, m) -> (B, h, n, m)
        return torch.cat((angles.sin(), angles.cos()), dim=3) * self.draws.size(1) ** -0.5
