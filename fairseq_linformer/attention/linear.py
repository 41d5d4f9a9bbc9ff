"""Linear transformer (Katharopoulos et al. 2020, arXiv 2006.16236, eq. 4 to 7), and the base of kernel attentions.

    head_i = phi(q_i) . sum_j phi(k_j) v_j^T / phi(q_i) . sum_j phi(k_j)

with ``linear_feature_map``:

    elu       phi(x) = elu(x) + 1
    hedgehog  phi(x) = [exp(W x), exp(-W x)], a W for the queries and one for the keys of each head (Zhang et al. 2024,
              arXiv 2402.04347, whose W x also has a bias)

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h, m features: d_h, with hedgehog 2 d_h.
Cost per layer: O(B h n m d_h) time besides the linear maps, O(B h n m) memory: each sum over j is shared by all i.

The weights phi(q_i) . phi(k_j) / sum_j phi(q_i) . phi(k_j) are never materialised, so attention dropout does not apply.
Hedgehog's W starts as the identity. It is meant for conversions, which fit it to a teacher's attention with all other
parameters fixed (``convert.py``); in a model trained from random weights it is redundant with q_proj and k_proj.

``performer.py`` and ``rfa.py`` have random phi with phi(q) . phi(k) near exp(q . k), by ``RandomKernelAttention``.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .base import Attention, register_attention
from .options import AttentionConfig, Options, option


class KernelAttention(Attention):
    """Attention with weights in proportion to phi(q) . phi(k), for the feature maps phi of a subclass.

    Computed at least in float32 between the linear maps: sums over n positions overflow half precision, and
    exponentials lose small differences.
    """

    HAS_WEIGHTS = False
    smallest_denominator: float = 1e-6

    def features(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return phi of queries and of keys; a common factor per feature may be chosen for both."""
        return self.query_features(queries), self.key_features(keys, padding)

    @abstractmethod
    def query_features(self, queries: Tensor) -> Tensor:
        """Return phi of queries, (B, h, n, d_h) -> (B, h, n, m)."""

    def key_features(self, keys: Tensor, padding: Tensor | None) -> Tensor:
        """Return phi of keys, (B, h, n, d_h) -> (B, h, n, m); arbitrary where padding (B, 1, n, 1) is True."""
        return self.query_features(keys)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        padding = None if padding_mask is None else padding_mask[:, None, :, None]  # (B, n) -> (B, 1, n, 1)
        wide = torch.promote_types(x.dtype, torch.float32)
        queries, keys, values = (self.split_heads(part).to(wide) for part in self.project(x, first_values))
        with torch.autocast(x.device.type, enabled=False):
            heads = self.attend_by_features(x, *self.features(queries, keys, padding), values, padding)
        return self.join_heads(heads.to(x.dtype))

    def bounded(self, denominators: Tensor) -> Tensor:
        """Raise denominators to a minimum that can be divided by."""
        return denominators.clamp_min(self.smallest_denominator)

    def attend_by_features(
        self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, padding: Tensor | None
    ) -> Tensor:
        """Map features of queries and keys (B, h, n, m) and values (B, h, n, d_h) to heads (B, h, n, d_h).

        `x` (B, n, d) is the layer's input, for weights that also depend on it.
        """
        if padding is not None:
            keys = keys.masked_fill(padding, 0.0)
        totals = keys.sum(dim=2).unsqueeze(3)  # (B, h, n, m) -> (B, h, m, 1)
        denominators = self.bounded(queries @ totals)  # (B, h, n, 1)
        return queries @ (keys.transpose(2, 3) @ values) / denominators  # (B, h, n, m) @ (B, h, m, d_h)


class RandomKernelAttention(KernelAttention):
    """Attention by random features that are redrawn in training.

    Each draw depends on its number and the buffer ``seed`` alone. So draws are reproducible, equal on every worker, and
    the same after a run is resumed. The last draw is a buffer too, which inference and a loaded model use.

    Args:
        config, options, layer: as in ``Attention``.
        redraw_interval: updates between draws; 0 for the first draw alone.
    """

    seed: Tensor

    def __init__(self, config: AttentionConfig, options: Options, layer: int, redraw_interval: int):
        super().__init__(config, options, layer)
        self.redraw_interval = redraw_interval
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64, device="cpu"))

    def reset_buffers(self) -> None:
        self.seed.random_(2**24)  # exact in float32, if a copy is cast to it
        self.redraw(0)

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Replace the random features by ones from that generator, on the CPU."""

    def redraw(self, number: int) -> None:
        """Replace the random features by draw `number`."""
        self.draw(torch.Generator().manual_seed(int(self.seed) + number))

    def set_num_updates(self, num_updates: int) -> None:
        """Redraw when due. fairseq calls it before each forward and backward pass of training.

        A redraw in ``forward`` would fall between a pass and its recomputation (``checkpoint_activations``), which
        would make gradients wrong, and would count several passes for a batch that is split.
        """
        if self.redraw_interval and num_updates and num_updates % self.redraw_interval == 0:
            self.redraw(num_updates // self.redraw_interval)


FEATURE_MAPS = ("elu", "hedgehog")


@dataclass
class LinearOptions(Options):
    linear_feature_map: str = option("elu", f"phi: {' or '.join(FEATURE_MAPS)}, which is learned")

    TEST_CASES: ClassVar = ({}, {"linear_feature_map": "hedgehog"})

    def validate(self, config: AttentionConfig) -> None:
        feature_map = self.linear_feature_map
        check("linear_feature_map", feature_map, feature_map in FEATURE_MAPS, f"one of {', '.join(FEATURE_MAPS)}")


class HedgehogMap(nn.Module):
    """Hedgehog's phi of the queries and of the keys of a layer, without bias; ``weight``, W, is (2, h, d_h, d_h)."""

    def __init__(self, heads: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, heads, size, size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(torch.eye(self.weight.size(-1)))

    def forward(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Map (B, h, n, d_h) each, and padding (B, 1, n, 1), to (B, h, n, 2 d_h) each.

        Every key feature is divided by its maximum over all keys, and the query feature multiplied by it; then the
        features of a query are divided by their maximum. Weights do not change, nothing overflows, and no denominator
        is below 1.
        """
        pairs = zip((queries, keys), self.weight.to(keys.dtype).transpose(2, 3), strict=True)
        query_logits, key_logits = (torch.cat([y, -y], dim=3) for y in (x @ w for x, w in pairs))
        if padding is not None:
            key_logits = key_logits.masked_fill(padding, torch.finfo(key_logits.dtype).min)
        largest = key_logits.detach().amax(dim=2, keepdim=True)  # (B, h, 1, 2 d_h)
        query_logits = query_logits + largest
        return (query_logits - query_logits.detach().amax(dim=3, keepdim=True)).exp(), (key_logits - largest).exp()


@register_attention("linear", LinearOptions)
class LinearAttention(KernelAttention):
    """Linear attention with phi(x) = elu(x) + 1, which is positive with d_h features, or with a learned phi."""

    def __init__(self, config: AttentionConfig, options: LinearOptions, layer: int):
        super().__init__(config, options, layer)
        learned = options.linear_feature_map == "hedgehog"
        self.feature_map = HedgehogMap(self.num_heads, self.head_dim) if learned else None

    def features(self, queries: Tensor, keys: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.feature_map is not None:
            return self.feature_map(queries, keys, padding)
        return super().features(queries, keys, padding)

    def query_features(self, queries: Tensor) -> Tensor:
        return F.elu(queries) + 1
