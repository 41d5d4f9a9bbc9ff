"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768, eq. 7).

    head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / sqrt(d_h)) . F_i V W_i^V

Dimensions: B batch, n sequence length, k projected length, m = k rows, d embedding, h heads, d_h = d / h.

Keys and values are projected along the sequence before the bias is added, K = W_k (E X) + b_k, as the authors' code
does (fairseq ``examples/linformer``): E (W_k X + b_k) differs by the bias alone. ``projection.py`` and ``pooling.py``
have E and F.
"""

from typing import Any

import torch
from torch import Tensor

from .base import Attention
from .blocks import attend_in_blocks
from .local import LinformerOptions, Seen, attend_from_first, see_near
from .options import AttentionConfig
from .product_order import embed_rows, embed_then_project, embedding_first
from .projection import Projection
from .registry import PROJECTIONS, register_attention


class ProjectedAttention(Attention):
    """What Linformer and its kin share: keys and values that E and F project along the sequence.

    Args:
        config, options, layer: as in ``Attention``.
        key_projection: E.
        value_projection: F; the same module as E where keys and values share one.
    """

    USES_PROJECTION = True

    key_projection: Projection
    value_projection: Projection

    def __init__(
        self,
        config: AttentionConfig,
        options: Any,
        layer: int,
        key_projection: Projection,
        value_projection: Projection,
    ):
        projections = {"key_projection": key_projection, "value_projection": value_projection}
        super().__init__(config, options, layer, **projections)

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list[Attention]:
        """One attention per layer; ``sharing`` says how many matrices (kernels, …) there are for L layers of h heads.

        ========= ============================= ========
        sharing   E and F                       matrices
        ========= ============================= ========
        none      one E and one F per head      2 h L
        headwise  one E and one F per layer     2 L
        key-value one E = F per layer           L
        layerwise one E = F for the whole model 1
        ========= ============================= ========
        """

        def projection(layer: int) -> Projection:
            built = PROJECTIONS[config.projection](config, layer)
            return built.requires_grad_(False) if config.freeze_projection else built

        options = cls.Options.read(config)
        shared = projection(0) if config.sharing == "layerwise" else None
        layers: list[Attention] = []
        for layer in range(config.encoder_layers):
            key_projection = shared or projection(layer)
            separate = config.sharing in ("none", "headwise")
            value_projection = projection(layer) if separate else key_projection
            layers.append(cls(config, options, layer, key_projection, value_projection))
        return layers

    def keys_and_values(
        self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Projects keys and values; with a value residual F also projects those of the first layer.

        Returns:
            E K and F V, (B, h, m, d_h) each, and (B, m), True for the rows that queries attend to, or None for all.
        """
        real = self.zero_padding(x, padding_mask)
        if embedding_first(self.key_projection, self.value_projection, *x.shape[1:]):
            keys = embed_then_project(self, real, padding_mask, self.key_projection, self.k_proj)
            values = embed_then_project(self, real, padding_mask, self.value_projection, self.v_proj)
        else:
            rows = self.key_projection(real, padding_mask)  # (B, n, d) -> (B, m, d), per head (B, h, m, d)
            keys = embed_rows(self, rows, self.k_proj)
            if self.value_projection is not self.key_projection:
                rows = self.value_projection(real, padding_mask)
            values = embed_rows(self, rows, self.v_proj)
        if first_values is not None:
            first = self.split_heads(self.zero_padding(first_values, padding_mask))
            projected = self.value_projection.project_values(first, real, padding_mask)
            values = self.with_first_values(values, projected)
        return keys, values, self.key_projection.attended_rows(padding_mask)


@register_attention("linformer", LinformerOptions)
class LinformerAttention(ProjectedAttention):
    """Attention over k projected positions instead of n: time and memory are O(n k) instead of O(n^2).

    Cost per layer in multiplications, with one learned matrix for keys and values: B (2 n d^2 + 3 n k d + 2 k d^2),
    where softmax attention takes B (4 n d^2 + 2 n^2 d).

    ``LinformerOptions`` says what a window and a class token change and cost.
    """

    RELATIVE_POSITIONS = True

    def __init__(self, config: AttentionConfig, options: LinformerOptions, layer: int, *projections: Projection):
        super().__init__(config, options, layer, *projections)
        self.window = options.linformer_window[layer]
        self.block = options.linformer_block or self.window
        self.sinks, self.fetch = options.linformer_sinks, options.linformer_fetch[layer]
        self.class_token = options.linformer_class_token

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        inputs = (x, padding_mask, first_values)
        heads = self.mix(self.see(*inputs)) if self.flex is None else self.flex(self, *inputs)
        if self.class_token:
            first = attend_from_first(self, *inputs)
            heads = torch.cat([first, heads[:, :, 1:]], dim=2)
        return self.join_heads(heads)

    def mix(self, seen: Seen) -> Tensor:
        """What each head makes of the values, of whatever width v: (B, h, n, v)."""
        queries, keys, values, attn_mask, near = seen
        if near is not None and attn_mask is not None:
            return attend_in_blocks(self, queries, keys, values, attn_mask, near.size)
        return self.attend(self.split_heads(queries), keys, values, attn_mask)

    def see(self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None = None) -> Seen:
        """Queries, and what they attend to; see ``forward`` for the arguments."""
        queries = self.q_proj(x)
        if not self.window:
            keys, values, rows = self.keys_and_values(x, padding_mask, first_values)
            return Seen(queries, keys, values, None if rows is None else rows[:, None, None], None)
        return see_near(self, queries, x, padding_mask, first_values)
