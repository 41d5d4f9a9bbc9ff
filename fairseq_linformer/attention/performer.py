"""Performer: FAVOR+, positive orthogonal random features (Choromanski et al. 2020, arXiv 2009.14794, lemma 1).

    head_i = phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j)
    phi(x)_r = exp(w_r . x' - |x'|^2 / 2),    x' = x / d_h^(1/4),    w_r of length chi(d_h), orthogonal in blocks of d_h

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h, m random features.
Cost per layer: O(B n m d) time besides the linear maps, O(B h n m) memory.

The mean of phi(q)_r phi(k)_r over draws of w_r is exp(q . k / sqrt(d_h)): an unbiased estimate of the unnormalised
weights of softmax attention, which improves with the number of features. The paper's factor 1 / sqrt(m) cancels. The
numerical stabiliser is that of the authors' JAX code: the exponent is lowered by the largest w_r . x' of the query, or
for keys of the head and sequence, then every feature is raised by 1e-4.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import register_attention
from .linear import RandomKernelAttention
from .options import AttentionConfig, Options, option

STABILIZER = 1e-4


@dataclass
class PerformerOptions(Options):
    performer_features: int = option(256, "m: number of random features", smallest=1)
    performer_redraw_interval: int = option(1000, "updates between draws; 0 keeps the first features", smallest=0)

    TEST_CASES: ClassVar = ({"performer_features": 10}, {"performer_features": 3})


def orthogonal_features(number: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw (number, size), float32: each row is N(0, I) distributed, and rows are orthogonal in blocks of `size`."""
    exact: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}  # in any default precision
    directions = torch.empty(number, size, **exact)
    for block in directions.split(size):
        nn.init.orthogonal_(block, generator=generator)
    lengths = torch.randn(number, size, generator=generator, **exact).norm(dim=1, keepdim=True)
    return lengths * directions


@register_attention("performer", PerformerOptions)
class PerformerAttention(RandomKernelAttention):
    """Softmax attention by random features, the same for all heads of a layer."""

    smallest_denominator = 1e-12  # never reached: no feature is below STABILIZER
    projection: Tensor  # (m, d_h): the w_r

    def __init__(self, config: AttentionConfig, options: PerformerOptions, layer: int):
        super().__init__(config, options, layer, options.performer_redraw_interval)
        self.register_buffer("projection", torch.empty(options.performer_features, self.head_dim))
        self.reset_buffers()

    def draw(self, generator: torch.Generator) -> None:
        self.projection.copy_(orthogonal_features(self.projection.size(0), self.head_dim, generator))

    def query_features(self, queries: Tensor) -> Tensor:
        projected, half_squares = self._project(queries)
        largest = projected.detach().amax(dim=3, keepdim=True)  # (B, h, n, 1)
        return (projected - half_squares - largest).exp() + STABILIZER

    def key_features(self, keys: Tensor, padding: Tensor | None) -> Tensor:
        projected, half_squares = self._project(keys)
        if padding is not None:
            projected = projected.masked_fill(padding, torch.finfo(projected.dtype).min)
        largest = projected.detach().amax(dim=(2, 3), keepdim=True)  # (B, h, 1, 1): one for all keys preserves ratios
        return (projected - half_squares - largest).exp() + STABILIZER

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return w_r . x' and |x'|^2 / 2: (B, h, n, d_h) -> (B, h, n, m), (B, h, n, 1)."""
        x = x * self.head_dim**-0.25
        return x @ self.projection.to(x.dtype).T, x.square().sum(dim=3, keepdim=True) / 2
