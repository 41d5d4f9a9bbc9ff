"""Longformer: a sliding window and a few global tokens (Beltagy et al. 2020, arXiv 2004.05150, section 3).

    position i attends to {j : |i - j| <= w / 2} and to the global positions 0 … g - 1, under one softmax;
    a global position attends to every position, with separate projections of queries, keys and values.

Dimensions: B batch, n sequence length, w window, g global tokens, b block, N = ceil(n / b) blocks, d embedding, h
heads, d_h = d / h.
Cost per layer: O(B n d^2 + B n (w + g) d) time, O(B n ((w + g) h + d)) memory. Blocks of b = w / 2 queries attend to
three blocks, masked to the window: 1.5 times the scores that are needed.

The window is not dilated, as in the paper's pretrained models; it may grow from layer to layer, as in its language
models (section 4.1). In a classifier the first position, ``<s>``, is the one global token (section 3.1).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import check
from .base import Attention, register_attention
from .blocks import attend_in_blocks, block_size, narrow_prefix, sym_min, with_margins
from .options import AttentionConfig, Options, option
from .positions import add_alibi
from .value_residual import mix_values


def check_sliding_window(name: str, window: int) -> None:
    """Reject a sliding window without the same number of positions, at least one, on either side."""
    check(name, window, window >= 2 and window % 2 == 0, "even and at least 2")


@dataclass
class LongformerOptions(Options):
    longformer_window: list[int] = option(  # noqa: RUF009 (it makes a field)
        512,
        "w: a position attends to w / 2 positions on each side, and to itself; an even number, one per layer "
        "(32,64,…), or FIRST..LAST layer",
        per_layer=True,
        multiple=2,
    )
    longformer_global_tokens: int = option(1, "g: first positions, which attend to all positions; all attend to them")

    TEST_CASES: ClassVar = (
        {"longformer_window": 4},
        {"longformer_window": 6, "longformer_global_tokens": 3},
        {"longformer_window": 2, "longformer_global_tokens": 0},
    )

    def validate(self, config: AttentionConfig) -> None:
        for window in self.longformer_window:
            check_sliding_window("longformer_window", window)
        tokens, n = self.longformer_global_tokens, config.max_positions
        check("longformer_global_tokens", tokens, 0 <= tokens <= n, f"from 0 to max_positions={n}")


@register_attention("longformer", LongformerOptions)
class LongformerAttention(Attention):
    """Attention to w local and g global positions; see the module.

    Global attention has separate projections. They start as copies of the others (section 3.1): of the initial ones, or
    of those of a checkpoint without global projections, such as RoBERTa's.
    """

    RELATIVE_POSITIONS = True
    GLOBAL: ClassVar[dict[str, str]] = {  # without attention_bias there are no biases
        f"{part}_proj_global.{kind}": f"{part}_proj.{kind}" for part in "kvq" for kind in ("weight", "bias")
    }

    def __init__(self, config: AttentionConfig, options: LongformerOptions, layer: int):
        super().__init__(config, options, layer)
        self.reach = options.longformer_window[layer] // 2  # to each side
        self.global_tokens = options.longformer_global_tokens
        if self.global_tokens:
            self.k_proj_global, self.v_proj_global, self.q_proj_global = (self.build_linear(config) for _ in range(3))
        self.finish_initialisation()

    @torch.no_grad()
    def finish_initialisation(self) -> None:
        if self.global_tokens:
            parameters = dict(self.named_parameters())
            for copy, original in self.GLOBAL.items():
                if original in parameters and not parameters[original].is_meta:  # transformers 4 loads it after this
                    parameters[copy].copy_(parameters[original])

    def upgrade_state_dict_named(self, state: dict[str, Tensor], name: str) -> None:
        """Copy the local maps where a checkpoint lacks global ones."""
        if self.global_tokens and not any(f"{name}.{copy}" in state for copy in self.GLOBAL):
            copies = {copy: state.get(f"{name}.{original}") for copy, original in self.GLOBAL.items()}
            state.update({f"{name}.{copy}": value.clone() for copy, value in copies.items() if value is not None})

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        real = self.real_positions(x, padding_mask)
        if self.kernel is None:
            heads = self._attend_locally(x, real, first_values)
        else:
            heads = self.kernel(self, x, padding_mask, first_values)
        local = self.join_heads(heads)
        if self.global_tokens == 0:
            return local
        first = self._attend_globally(x, real, first_values)
        return torch.cat([first, local[:, first.size(1) :]], dim=1)

    def _first(self, x: Tensor) -> Tensor:
        """Return the global positions, at most g: (B, n, ...) -> (B, g, ...)."""
        return narrow_prefix(x, sym_min(self.global_tokens, x.size(1)), dim=1)

    def _attend_globally(self, x: Tensor, real: Tensor, first_values: Tensor | None) -> Tensor:
        """Compute full attention for the global tokens: (B, n, d) -> (B, g, d)."""
        queries = self.split_heads(self.rotated(self.q_proj_global(self._first(x))))
        values = mix_values(self.v_proj_global(x), first_values, self.value_mix)
        keys = self.split_heads(self.rotated(self.k_proj_global(x)))
        attn_mask = real[:, None, None, :]
        if self.alibi:
            position = torch.arange(x.size(1), device=x.device)
            attn_mask = add_alibi(attn_mask, self.num_heads, self._first(position.unsqueeze(0))[0], position)
        return self.join_heads(self.attend(queries, keys, self.split_heads(values), attn_mask))

    def _attend_locally(self, x: Tensor, real: Tensor, first_values: Tensor | None) -> Tensor:
        """Attend from every position to the global ones and its window: (B, n, d) -> (B, h, n, d_h)."""
        size = block_size(self.reach, x.size(1))
        queries, *kv = self.project(x, first_values)
        keys, values = (self.split_heads(self._keys(part, size).flatten(0, 1)) for part in kv)
        attn_mask = self._attn_mask(real, size).unsqueeze(2)  # (B, N, 1, b, g + 3 b)
        if self.alibi:
            attn_mask = self._biased(attn_mask, size)  # (B, N, h, b, g + 3 b)
        return attend_in_blocks(self, queries, keys, values, attn_mask, size)

    def _keys(self, positions: Tensor, size: int) -> Tensor:
        """Concatenate the keys of each block, the global ones first: (B, n, d) -> (B, N, g + 3 b, d)."""
        window = with_margins(positions, size, size)
        first = self._first(positions).unsqueeze(1).expand(-1, window.size(1), -1, -1)
        return torch.cat([first, window], dim=2)

    def _attn_mask(self, real: Tensor, size: int) -> Tensor:
        """Return the attention mask for these keys: (B, n) -> (B, N, b, g + 3 b)."""
        positions = torch.arange(real.size(1), device=real.device)
        # A global position is among the keys already, and must not count twice.
        in_window = with_margins(real & (positions >= self.global_tokens), size, size).unsqueeze(2)
        position = torch.arange(3 * size, device=real.device)  # of a key; the query's block starts at b
        distance = (position - position[size : 2 * size, None]).abs()  # (b, 3 b)
        # Every query attends to itself, so that softmax is defined under padding. Rows of global queries are unused.
        local = (in_window & (distance <= self.reach)) | (distance == 0)  # (B, N, b, 3 b)
        first = self._first(real)[:, None, None].expand(-1, local.size(1), size, -1)
        return torch.cat([first, local], dim=3)

    def _biased(self, attn_mask: Tensor, size: int) -> Tensor:
        device, keys = attn_mask.device, attn_mask.size(-1)
        starts = torch.arange(attn_mask.size(1), device=device).unsqueeze(1) * size
        local_at = starts + torch.arange(-size, 2 * size, device=device)  # (N, 3 b)
        first_at = torch.arange(keys - 3 * size, device=device).expand(local_at.size(0), -1)
        keys_at = torch.cat([first_at, local_at], dim=1).unsqueeze(1)
        return add_alibi(attn_mask, self.num_heads, local_at[:, None, size : 2 * size], keys_at)
