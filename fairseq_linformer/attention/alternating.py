"""Alternating attention: full or Linformer's attention in every third layer, a sliding window in all others.

The layers of ModernBERT (Warner et al. 2024, arXiv 2412.13663, section 2.1.2), of which the first is full. In a layer
with a window position i attends to {j : |i - j| <= w / 2}. ModernBERT has two rotary bases, 160,000 in full layers
(``rotary_base``) and 10,000 in the others (``alternating_rotary_base``).

With ``alternating_full=linformer`` the full layers are layers of ``linformer`` with its options: the cost of every
layer is linear in n.

Dimensions: B batch, n sequence length, w window, d embedding.
Cost per layer: that of ``softmax``, O(B n^2 d), or of ``linformer`` in a full layer, and O(B n w d) in the others.
"""

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from ..errors import check
from .base import Attention, register_attention
from .linformer import LinformerAttention, LinformerOptions
from .longformer import LongformerAttention, LongformerOptions, check_sliding_window
from .options import AttentionConfig, Options, option
from .softmax import SoftmaxAttention

FULL = ("softmax", "linformer")  # mechanisms of full layers


@dataclass
class AlternatingOptions(LinformerOptions):
    """Options of ``alternating``; ModernBERT's are the defaults. Those of ``linformer`` are for its full layers."""

    alternating_window: int = option(
        128, "w: in a layer with a window a position attends to w / 2 positions on each side; an even number"
    )
    alternating_every: int = option(3, "distance between full layers: 3 for every third", smallest=1)
    alternating_first: int = option(0, "the first full layer, counted from 0", smallest=0)
    alternating_rotary_base: float = option(
        0.0, "positions=rotary: rotary_base of the layers with a window; 0 for that of the full layers"
    )
    alternating_full: str = option("softmax", f"mechanism of the full layers: {' or '.join(FULL)}")

    TEST_CASES: ClassVar = (
        {},
        {"alternating_window": 4, "alternating_every": 2, "alternating_first": 1, "alternating_rotary_base": 5.0},
    )

    def kind_of_layer(self, layer: int) -> str:
        every = max(1, self.alternating_every)  # called before validate
        return "full" if layer % every == self.alternating_first else "windowed"

    def validate(self, config: AttentionConfig) -> None:
        Options.validate(self, config)
        full = self.alternating_full
        check("alternating_full", full, full in FULL, " or ".join(FULL))
        if full == "linformer":
            super().validate(config)
        for option_field in fields(LinformerOptions) if full == "softmax" else ():
            value = getattr(self, option_field.name)
            is_unset = not (any(value) if isinstance(value, list) else value)
            check(option_field.name, value, is_unset, "left out with alternating_full=softmax")
        check_sliding_window("alternating_window", self.alternating_window)
        first, every = self.alternating_first, self.alternating_every
        check("alternating_first", first, first < every, f"below alternating_every={every}")
        base = self.alternating_rotary_base
        check("alternating_rotary_base", base, base == 0 or 1 < base < math.inf, "0 or a number above 1")


@register_attention("alternating", AlternatingOptions)
class AlternatingAttention(Attention):
    """Builder of full layers, and of ``longformer`` layers without global tokens; no layer has this class."""

    RELATIVE_POSITIONS = True

    @classmethod
    def uses_projection(cls, config: AttentionConfig) -> bool:
        return AlternatingOptions.read(config).alternating_full == "linformer"

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list[Attention]:
        options = AlternatingOptions.read(config)
        local = LongformerOptions([options.alternating_window] * config.encoder_layers, longformer_global_tokens=0)
        projected = LinformerAttention.build_layers(config) if cls.uses_projection(config) else None

        def build(layer: int) -> Attention:
            if options.kind_of_layer(layer) == "full":
                return projected[layer] if projected else SoftmaxAttention(config, options, layer)
            windowed = LongformerAttention(config, local, layer)
            windowed.rotary_base = options.alternating_rotary_base or config.rotary_base
            return windowed

        return [build(layer) for layer in range(config.encoder_layers)]
