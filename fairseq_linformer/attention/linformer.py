"""Linformer: self-attention with linear complexity (Wang et al. 2020, arXiv 2006.04768, eq. 7).

    head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / sqrt(d_h)) . F_i V W_i^V

Dimensions: B batch, n sequence length, k projected length, m = k projected keys, d embedding, h heads, d_h = d / h;
with a local window b block, e margin, N = ceil(n / b) blocks, s keys of a block.

Keys and values are projected along the sequence before the bias is added, K = W_k (E X) + b_k, as in the authors' code
(fairseq ``examples/linformer``): E (W_k X + b_k) differs in the bias alone. ``projection.py`` and ``pooling.py`` define
E and F.

Rotary and ALiBi positions apply to local keys only. All other keys are scored by content, as averaging rotated keys
would weaken them. If all dimensions are rotary (as in a model that was trained with full attention), no dimension is
left to score content alone. Then sinks are rotary, too, and projected keys are means of rotary keys: the score of a
projected key is the mean of its tokens' scores.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import check
from .base import Attention, register_attention
from .blocks import attend_in_blocks, block_size, half_window
from .class_token import attend_from_first
from .linear_maps import map_per_head, map_without_bias
from .local import LocalContext
from .options import AttentionConfig, Options, option
from .pooling import AttentionPooling, ConvProjection, MaxPooling, MeanPooling, SplitPooling, WindowProjection
from .positions import add_alibi, check_unrotated_dims
from .projection import LinearProjection, Projection, RandomProjection
from .value_residual import mix_values

PROJECTIONS: dict[str, type[Projection]] = {
    "linear": LinearProjection,
    "random": RandomProjection,
    "conv": ConvProjection,
    "mean-pool": MeanPooling,
    "max-pool": MaxPooling,
    "attention-pool": AttentionPooling,
    "split-pool": SplitPooling,
}
SHARINGS = ("none", "headwise", "key-value", "layerwise")  # see ProjectedAttention.build_layers


class ProjectedAttention(Attention):
    """Base of Linformer and related mechanisms: keys and values that E and F project along the sequence."""

    key_projection: Projection  # E
    value_projection: Projection  # F; the same module as E if keys and values share one

    def __init__(self, config: AttentionConfig, options: Options, layer: int, keys: Projection, values: Projection):
        super().__init__(config, options, layer, key_projection=keys, value_projection=values)

    @classmethod
    def uses_projection(cls, config: AttentionConfig) -> bool:
        return True

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list[Attention]:
        """Build one attention per layer; `sharing` gives the number of matrices (kernels, …) for L layers of h heads.

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
        self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return E K and F V: (B, n, d) -> two (B, h, m, d_h). With a value residual F also projects V_1."""
        real = self.zero_padding(x, padding_mask)
        if embedding_first(self.key_projection, self.value_projection, *x.shape[1:]):
            keys = self._embed_then_project(real, padding_mask, self.key_projection, self.k_proj)
            values = self._embed_then_project(real, padding_mask, self.value_projection, self.v_proj)
        else:
            compressed = self.key_projection(real, padding_mask)  # (B, n, d) -> (B, m, d), per head (B, h, m, d)
            keys = self._embed_rows(compressed, self.k_proj)
            if self.value_projection is not self.key_projection:
                compressed = self.value_projection(real, padding_mask)
            values = self._embed_rows(compressed, self.v_proj)
        if first_values is not None:
            first = self.split_heads(self.zero_padding(first_values, padding_mask))
            projected = self.value_projection.project_values(first, real, padding_mask)
            values = mix_values(values, projected, self.value_mix)
        return keys, values

    def _embed_then_project(
        self, x: Tensor, padding_mask: Tensor | None, projection: Projection, linear: nn.Linear
    ) -> Tensor:
        """Compute E (X W^T) + b: (B, n, d) -> (B, h, k, d_h)."""
        embedded, bias = map_without_bias(linear, x)
        return projection(self.split_heads(embedded), padding_mask) + self.split_heads(bias)

    def _embed_rows(self, projected: Tensor, linear: nn.Linear) -> Tensor:
        """Apply W: (B, m, d), or (B, h, m, d) with one E per head, to (B, h, m, d_h)."""
        if projected.dim() == 3:
            return self.split_heads(linear(projected))
        return map_per_head(linear, projected)


def embedding_first(key_projection: Projection, value_projection: Projection, length: int, d: int) -> bool:
    """Choose the cheaper order for the product E X W: True if it is E (X W_k^T), for keys and values together.

    Only matrices allow both orders. E (X W_k^T) is cheaper for sequences shorter than about k, and for one matrix
    per head, where X is compressed h times. While PyTorch compiles, the longest sequence decides: a branch on the
    length would specialise the graph to some lengths.
    """
    if not isinstance(key_projection, LinearProjection):
        return False
    k, longest = key_projection.weight.shape[-2:]
    n = longest if torch.compiler.is_compiling() else length
    if key_projection.weight.dim() == 3:
        compressions = 2 * key_projection.weight.size(0)
    else:
        compressions = 1 if value_projection is key_projection else 2
    return 2 * n * d + 2 * k * n < compressions * k * n + 2 * k * d  # both sides divided by d


@dataclass
class LinformerOptions(Options):
    """Options of ``linformer``. In the paper all queries, including the class token's, attend to projected keys alone.

    With a window of width w the k projected keys and the local keys share one softmax. Queries are cut into blocks of
    b, and attend to their block and w / 2 positions on either side; b = w, the default, is that of Long-Short (Zhu et
    al. 2021, arXiv 2107.02192, section 3.3). A window adds B (2 n d^2 + 2 n (b + w) d). If a pooling averages
    (mean-pool, attention-pool, split-pool), the keys and values of all positions are averaged, which costs B 2 n d
    instead of B 2 k d^2. Otherwise a value residual adds F V_1: B n k d for a matrix, B n d for pooling.

    With a class token the first position attends to all n positions, by content alone, and to nothing else.
    """

    linformer_window: list[int] = option(  # noqa: RUF009 (`option` returns a field)
        0,
        "w: every position also attends to the exact keys of its block and of w / 2 positions on either side of it; 0 "
        "for none; a number, one per layer (0,64,…), or FIRST..LAST layer",
        smallest=0,
        per_layer=True,
    )
    linformer_block: int = option(0, "with a window: queries of a block; 0 for the width of the window", smallest=0)
    linformer_sinks: int = option(0, "with a window: first positions that all positions attend to", smallest=0)
    linformer_class_token: bool = option(False, "the first position, <s>, attends to the exact keys of all positions")

    TEST_CASES: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"linformer_window": 4},
        {"linformer_window": 1},
        {"linformer_class_token": True},
        {"linformer_window": 6, "linformer_block": 2, "linformer_sinks": 2},
    )

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        windowed = min(self.linformer_window) > 0
        for name in ("linformer_block", "linformer_sinks"):
            value = getattr(self, name)
            check(name, value, value == 0 or windowed, "0 without linformer_window in each layer")
        allowed = "learned without linformer_window in each layer"
        check("positions", config.positions, config.positions == "learned" or windowed, allowed)
        scores_by_content = not PROJECTIONS[config.projection].ROWS_ARE_MEANS or self.linformer_class_token
        if config.positions == "rotary" and scores_by_content:
            check_unrotated_dims(config)


class WindowedKeyValues(NamedTuple):
    """Keys and values of a layer with a window, before they are concatenated for each block.

    Attributes:
        projected_keys, projected_values: (B, h, m, d_h).
        rotary_keys, unrotated_keys, values: one per position, (B, n, h, d_h). If all dimensions are rotary, the first
            two are the same.
    """

    projected_keys: Tensor
    projected_values: Tensor
    rotary_keys: Tensor
    unrotated_keys: Tensor
    values: Tensor


@register_attention("linformer", LinformerOptions)
class LinformerAttention(ProjectedAttention):
    """Attention to k projected positions instead of n: time and memory are O(n k) instead of O(n^2).

    Cost per layer in multiplications, with one learned matrix for keys and values: B (2 n d^2 + 3 n k d + 2 k d^2);
    softmax attention takes B (4 n d^2 + 2 n^2 d). ``LinformerOptions`` has the cost of a window and a class token.
    """

    RELATIVE_POSITIONS = True

    def __init__(self, config: AttentionConfig, options: LinformerOptions, layer: int, *projections: Projection):
        super().__init__(config, options, layer, *projections)  # E and F
        self.window = options.linformer_window[layer]
        self.block = options.linformer_block or self.window
        self.sinks, self.class_token = options.linformer_sinks, options.linformer_class_token

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        if self.kernel is not None:
            heads = self.kernel(self, x, padding_mask, first_values)
        elif self.window:
            heads = self._attend_in_windows(x, padding_mask, first_values)
        else:
            queries = self.split_heads(self.q_proj(x))
            attended = self.key_projection.attended_rows(padding_mask)  # (B, m)
            attn_mask = None if attended is None else attended[:, None, None]
            heads = self.attend(queries, *self.keys_and_values(x, padding_mask, first_values), attn_mask)
        if self.class_token:
            first = attend_from_first(self, x, padding_mask, first_values)
            heads = torch.cat([first, heads[:, :, 1:]], dim=2)
        return self.join_heads(heads)

    def _attend_in_windows(self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None) -> Tensor:
        """Attend to projected, sink and local keys: (B, n, d) -> (B, h, n, d_h)."""
        queries, kv = self.q_proj(x), self.project_windowed_kv(x, padding_mask, first_values)
        context, real = self.local_context(x.size(1)), self.real_positions(x, padding_mask)
        keys = context.concat_keys(kv.projected_keys, kv.unrotated_keys, kv.rotary_keys)
        values = context.concat_keys(kv.projected_values, kv.values, kv.values)
        attended = self.key_projection.attended_rows(padding_mask)
        if attended is None:
            attended = torch.ones_like(kv.projected_keys[:, 0, :, 0], dtype=torch.bool)
        attn_mask = context.attn_mask(attended, real)
        if self.alibi:
            local_at = torch.arange(context.size + 2 * context.margin, device=x.device)  # from the start of the margin
            queries_at = local_at[context.margin : context.margin + context.size]
            attn_mask = add_alibi(attn_mask, self.num_heads, queries_at, local_at, keys.size(2) - local_at.size(0))
        return attend_in_blocks(self, self.rotated(queries), keys, values, attn_mask, context.size)

    def project_windowed_kv(
        self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None
    ) -> WindowedKeyValues:
        """Return the keys and values of a layer with a window; the arguments are those of ``forward``."""
        keys, values = self.k_proj(x), self.values(x, first_values)
        rotary_keys = self.rotated(keys)
        unrotated_keys = rotary_keys if self.rotary_dim == self.head_dim else self.zero_rotary_dims(keys)
        if self.key_projection.ROWS_ARE_MEANS:
            real_x = self.zero_padding(x, padding_mask)
            real_keys, real_values = (self.zero_padding(part, padding_mask) for part in (unrotated_keys, values))
            projected_keys = self.key_projection.project_values(self.split_heads(real_keys), real_x, padding_mask)
            projected_values = self.value_projection.project_values(self.split_heads(real_values), real_x, padding_mask)
        else:
            projected_keys, projected_values = self.keys_and_values(x, padding_mask, first_values)
            projected_keys = self.zero_rotary_dims(projected_keys)
        positions = (rotary_keys, unrotated_keys, values)
        heads = (part.unflatten(-1, (self.num_heads, self.head_dim)) for part in positions)
        return WindowedKeyValues(projected_keys, projected_values, *heads)

    def local_context(self, length: int) -> LocalContext:
        """Return the local context of the blocks of a text of that length."""
        size, margin = block_size(self.block, length), block_size(half_window(self.window), length)
        pooling = cast(WindowProjection, self.key_projection) if self.key_projection.ROWS_ARE_MEANS else None
        return LocalContext(size, margin, self.sinks, pooling)
