"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768, eq. 7).

    head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / sqrt(d_h)) . F_i V W_i^V

Dimensions: B batch, n sequence length, k projected length, m = k rows, d embedding, h heads, d_h = d / h.

Keys and values are projected along the sequence before the bias is added, K = W_k (E X) + b_k, as the authors' code
does (fairseq ``examples/linformer``): E (W_k X + b_k) differs by the bias alone. ``projection.py`` and ``pooling.py``
have E and F.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import check
from .base import Attention, AttentionConfig, Options, option, register_attention
from .blocks import block_size, margins, with_margins
from .pooling import AttentionPooling, ConvProjection, MaxPooling, MeanPooling, SplitPooling
from .projection import LinearProjection, Projection, RandomProjection

SHARINGS = ("none", "headwise", "key-value", "layerwise")
PROJECTIONS: dict[str, type[Projection]] = {
    "linear": LinearProjection,
    "random": RandomProjection,
    "conv": ConvProjection,
    "mean-pool": MeanPooling,
    "max-pool": MaxPooling,
    "attention-pool": AttentionPooling,
    "split-pool": SplitPooling,
}


class ProjectedAttention(Attention):
    """What Linformer and its kin share: keys and values that E and F project along the sequence.

    Args:
        embed_dim, num_heads, dropout: as in ``Attention``.
        key_projection: E.
        value_projection: F; the same module as E where keys and values share one.
    """

    USES_PROJECTION = True

    key_projection: Projection
    value_projection: Projection

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float, key_projection: Projection, value_projection: Projection
    ):
        projections = {"key_projection": key_projection, "value_projection": value_projection}
        super().__init__(embed_dim, num_heads, dropout, **projections)

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
            built = PROJECTIONS[config.projection].build(config, layer)
            return built.requires_grad_(False) if config.freeze_projection else built

        options = cls.read_options(config)
        shared = projection(0) if config.sharing == "layerwise" else None
        layers: list[Attention] = []
        for layer in range(config.encoder_layers):
            key_projection = shared or projection(layer)
            separate = config.sharing in ("none", "headwise")
            value_projection = projection(layer) if separate else key_projection
            projections = {"key_projection": key_projection, "value_projection": value_projection}
            layers.append(cls.build(config, **projections, **cls.arguments(config, options, layer)))
        return layers

    def upgrade_state_dict_named(self, state: dict[str, Tensor], name: str) -> None:
        """Checkpoints without the multiplier of E and F, as the example's, have c = 1.

        One that lacks some, where others are not 1, is damaged: they stay missing, and it is refused.
        """
        known = [value for key, value in state.items() if key.endswith("_projection.multiplier")]
        if not all(value.numel() == 1 and value.item() == 1 for value in known):
            return
        for projection in ("key_projection", "value_projection"):
            if f"{name}.{projection}.weight" in state and isinstance(self.key_projection, LinearProjection):
                state.setdefault(f"{name}.{projection}.multiplier", torch.tensor(1.0))

    def keys_and_values(
        self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Projects keys and values; with a value residual F also projects those of the first layer.

        Returns:
            E K and F V, (B, h, m, d_h) each, and (B, m), True for the rows that queries attend to, or None for all.
        """
        real = self.zero_padding(x, padding_mask)
        if self.embedding_first(x.size(1)):
            keys = self._embed_then_project(real, padding_mask, self.key_projection, self.k_proj)
            values = self._embed_then_project(real, padding_mask, self.value_projection, self.v_proj)
        else:
            rows = self.key_projection(real, padding_mask)  # (B, n, d) -> (B, m, d), per head (B, h, m, d)
            keys = self._embed(rows, self.k_proj)
            if self.value_projection is not self.key_projection:
                rows = self.value_projection(real, padding_mask)
            values = self._embed(rows, self.v_proj)
        if first_values is not None:
            first = self.split_heads(self.zero_padding(first_values, padding_mask))
            projected = self.value_projection.project_values(first, real, padding_mask)
            values = self.with_first_values(values, projected)
        return keys, values, self.key_projection.attended_rows(padding_mask)

    def embedding_first(self, length: int) -> bool:
        """Whether E (X W_k^T) takes fewer multiplications than (E X) W_k^T, for n = length, keys and values together.

        Only matrices leave the choice. It does for sequences shorter than about k, and for one matrix per head, where
        X is compressed h times. While PyTorch compiles, the longest sequence decides: a branch on the length would
        tie the graph to some lengths.
        """
        projection = self.key_projection
        if not isinstance(projection, LinearProjection):
            return False
        k, longest = projection.weight.shape[-2:]
        n, d = longest if torch.compiler.is_compiling() else length, self.embed_dim
        if projection.weight.dim() == 3:
            compressions = 2 * self.num_heads
        else:
            compressions = 1 if self.value_projection is self.key_projection else 2
        return 2 * n * d + 2 * k * n < compressions * k * n + 2 * k * d  # each side times d

    def _embed_then_project(
        self, x: Tensor, padding_mask: Tensor | None, projection: Projection, linear: nn.Linear
    ) -> Tensor:
        """(B, n, d) -> (B, h, k, d_h) by E (X W^T) + b."""
        _, bias = self._per_head(linear)
        return projection(self.split_heads(F.linear(x, linear.weight)), padding_mask) + bias

    def _embed(self, rows: Tensor, linear: nn.Linear) -> Tensor:
        """(B, m, d) -> (B, h, m, d_h); with one matrix per head, (B, h, m, d) -> (B, h, m, d_h) by its share of W."""
        if rows.dim() == 3:
            return self.split_heads(linear(rows))
        weight, bias = self._per_head(linear)
        return rows @ weight.transpose(1, 2) + bias

    def _per_head(self, linear: nn.Linear) -> tuple[Tensor, Tensor]:
        """Each head's share of a map: its weight, (h, d_h, d), and its bias, (h, 1, d_h)."""
        weight = linear.weight.unflatten(0, (self.num_heads, self.head_dim))
        return weight, linear.bias.view(self.num_heads, 1, self.head_dim)


@dataclass
class LinformerOptions(Options):
    """The paper has no window, and its class token sees the projected rows."""

    window: list[int] = option(  # noqa: RUF009 (it makes a field)
        0,
        "w: every position also sees its segment of w positions and w / 2 on either side as they are; 0: none; a "
        "number, one per layer (0,64,…), or FIRST..LAST layer",
        per_layer=True,
    )
    class_token: bool = option(False, "the first position, <s>, attends to every position as it is")

    SMALL: ClassVar = ({}, {"window": 4}, {"window": 1}, {"class_token": True})

    def validate(self, config: AttentionConfig, prefix: str) -> None:
        for window in self.window:
            check(prefix + "window", window, window >= 0, "at least 0 (none)")


@register_attention("linformer", LinformerOptions)
class LinformerAttention(ProjectedAttention):
    """Attention over k projected positions instead of n: time and memory are O(n k) instead of O(n^2).

    Cost per layer in multiplications, with one learned matrix for keys and values: B (2 n d^2 + 3 n k d + 2 k d^2),
    where softmax attention takes B (4 n d^2 + 2 n^2 d).

    With a window the k rows and what is near stand under one softmax: queries are cut into segments of w, and see their
    own segment and w / 2 positions on either side as they are, as in Long-Short (Zhu et al. 2021, arXiv 2107.02192,
    section 3.3). That adds B (2 n d^2 + 4 n w d); where a pooling averages (mean-pool, attention-pool, split-pool) the
    rows are then those averages of the keys and values themselves, B 2 n d instead of B 2 k d^2. Otherwise a value
    residual adds F V_1: B n k d for a matrix, B n d for pooling.

    The first position attends to all n positions themselves with ``class_token``, in place of all this. That adds
    B 2 n h d, without keys and values of n positions.

    Args:
        embed_dim, num_heads, dropout, key_projection, value_projection: as in ``ProjectedAttention``.
        window: w, 0 for none.
        class_token: as in ``LinformerOptions``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float,
        key_projection: Projection,
        value_projection: Projection,
        window: int = 0,
        class_token: bool = False,
    ):
        super().__init__(embed_dim, num_heads, dropout, key_projection, value_projection)
        self.window = window
        self.class_token = class_token

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        keys, values, rows = self.keys_and_values(x, padding_mask, first_values)
        heads = self.mix(x, keys, values, rows, padding_mask)
        if self.class_token:
            first = self._attend_from_first(x, padding_mask, first_values)
            heads = torch.cat([first, heads[:, :, 1:]], dim=2)
        return self.join_heads(heads)

    def _attend_from_first(self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None) -> Tensor:
        """softmax(q K^T / sqrt(d_h)) V of the first position's query: (B, n, d) -> (B, h, 1, d_h).

        With one query it takes fewer products to move W_k and W_v to either side of X: q K^T is (q W_k) X^T but for a
        constant, which softmax does not see, and P V is (P X) W_v and what P gives of the bias.
        """
        queries = self.split_heads(self.q_proj(x[:, :1])) * self.head_dim**-0.5
        (key_weight, _), (value_weight, value_bias) = self._per_head(self.k_proj), self._per_head(self.v_proj)
        scores = (queries @ key_weight).squeeze(2) @ x.transpose(1, 2)  # (B, h, d) (B, d, n)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        values = (weights @ x).unsqueeze(2) @ value_weight.transpose(1, 2)  # (B, h, 1, d) (h, d, d_h)
        values = values + weights.sum(-1)[..., None, None] * value_bias
        if first_values is None:
            return values
        return self.with_first_values(values, weights.unsqueeze(2) @ self.split_heads(first_values))

    def keys_and_values(
        self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What queries attend to.

        Returns:
            Without a window as in ``ProjectedAttention``. With one keys and values are (B N, h, m + f, d_h): for each
            of N segments of w queries the m rows, then its own f = w + 2 e positions. The mask is that of the rows.
        """
        if not self.window:
            return super().keys_and_values(x, padding_mask, first_values)
        near = self.k_proj(x), self.values(x, first_values)
        if self.key_projection.AVERAGES:
            real = self.zero_padding(x, padding_mask)
            keys, values = (
                projection.project_values(self.split_heads(self.zero_padding(own, padding_mask)), real, padding_mask)
                for projection, own in zip((self.key_projection, self.value_projection), near, strict=True)
            )
            rows = self.key_projection.attended_rows(padding_mask)
        else:
            keys, values, rows = super().keys_and_values(x, padding_mask, first_values)
        return self._far_and_near(keys, near[0]), self._far_and_near(values, near[1]), rows

    def mix(self, x: Tensor, keys: Tensor, values: Tensor, rows: Tensor | None, padding_mask: Tensor | None) -> Tensor:
        """What each head makes of `values`; the attention weights themselves where these are the identity.

        Args:
            x, padding_mask: as in ``forward``.
            keys, rows: as from ``keys_and_values``.
            values: as from there, but of any width v in place of d_h.

        Returns:
            (B, h, n, v).
        """
        if not self.window:
            attn_mask = None if rows is None else rows[:, None, None, :]  # (B, m) -> (B, 1, 1, m)
            return self.attend(self.split_heads(self.q_proj(x)), keys, values, attn_mask)
        window = block_size(self.window, x.size(1))
        near = with_margins(self.real_positions(x, padding_mask), window)  # (B, N, f)
        far = near.new_ones((x.size(0), keys.size(2) - near.size(2))) if rows is None else rows
        attn_mask = torch.cat([far.unsqueeze(1).expand(-1, near.size(1), -1), near], dim=2)  # (B, N, m + f)
        return self.attend_in_blocks(self.q_proj(x), keys, values, attn_mask, window)

    def _far_and_near(self, far: Tensor, positions: Tensor) -> Tensor:
        """(B, h, m, d_h) and (B, n, d) -> (B N, h, m + f, d_h)."""
        near = margins(positions, block_size(self.window, positions.size(1)))  # (B, N, e or w, d)
        everywhere = far.unsqueeze(1).expand(-1, near[0].size(1), -1, -1, -1)
        # Joined once: each copy is as large as all that the queries see.
        parts = (everywhere, *(own.unflatten(-1, (self.num_heads, -1)).transpose(2, 3) for own in near))
        return torch.cat(parts, dim=3).flatten(0, 1)
