"""Base class of all attention mechanisms, their shared functions, and their registry.

Nothing under ``attention/`` imports fairseq, so that each mechanism can be read, tested, timed and exported alone.

Dimensions: B batch, n sequence length, m keys, d embedding, h heads, d_h = d / h.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from .chunked import attend_on_cpu
from .options import AttentionConfig, Options
from .positions import bias_in_precision, rotary_dimensions, rotate
from .value_residual import map_and_mix


class Attention(nn.Module, ABC):
    """Bidirectional self-attention over a batch of sequences.

    Contract, tested for the whole registry:

    * ``forward(x, padding_mask, first_values)`` takes x (B, n, d) and a boolean mask (B, n), True for padding, or None;
      it returns (B, n, d). Padding is on the right.
    * After ``add_value_residual`` it takes ``first_values`` (B, n, d), the values of the first layer, and computes its
      values by ``values``.
    * The output at unmasked positions does not depend on padding or on the other sequences of the batch. The output at
      padded positions is finite and otherwise arbitrary.
    * n is any length from 1 to ``max_positions``; the encoder rejects longer ones.
    * A mechanism with ``RELATIVE_POSITIONS`` supports rotary and ALiBi positions: wherever a query attends to a single
      position, it applies ``rotated`` to queries and keys, or ``add_alibi`` to the mask. The configuration rejects
      these positions for all other mechanisms.
    * Attention dropout applies to the attention weights, in training only. A mechanism without attention weights
      (``HAS_WEIGHTS``) is built without it.
    """

    name: ClassVar[str]  # set by register_attention, which also sets the options
    Options: ClassVar[type[Options]] = Options
    HAS_WEIGHTS: ClassVar[bool] = True
    RELATIVE_POSITIONS: ClassVar[bool] = False
    QKV_PROJECTIONS: ClassVar[tuple[str, ...]] = ("k_proj", "v_proj", "q_proj")  # in the order of fairseq's code
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    value_mix: nn.Parameter | None
    # Kernel (``kernels/flex.py``) that computes the heads from the arguments of ``forward``, in place of the mechanism.
    kernel: "Callable[[Attention, Tensor, Tensor | None, Tensor | None], Tensor] | None" = None

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        """Map (B, n, d) to (B, n, d); see the class for the contract."""

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list["Attention"]:
        """Build the attention of all layers together, so that layers can share parameters."""
        options = cls.Options.read(config)
        return [cls(config, options, layer) for layer in range(config.encoder_layers)]

    @classmethod
    def uses_projection(cls, config: AttentionConfig) -> bool:
        """Return True if the mechanism reads the options of E and F with this configuration."""
        return False

    def finish_initialisation(self) -> None:
        """Set parameters whose initial values are not random; called again once the model has drawn its linear maps."""

    def reset_buffers(self) -> None:
        """Draw the buffers, which transformers builds in uninitialised memory."""

    def __init__(self, config: AttentionConfig, options: Any, layer: int, **before_out_proj: nn.Module):
        """Build the linear maps of a layer, numbered from 0, of a mechanism with these (validated) options.

        `before_out_proj` are modules of the mechanism that precede the last map. The order is that of fairseq's code,
        because optimizers keep their state by the order of parameters.
        """
        super().__init__()
        self.embed_dim = config.encoder_embed_dim
        self.num_heads = config.encoder_attention_heads
        self.head_dim = self.embed_dim // self.num_heads
        self.dropout = config.attention_dropout
        self.rotary_base, self.alibi = config.rotary_base, config.positions == "alibi"
        self.rotary_dim = rotary_dimensions(config) if config.positions == "rotary" else 0  # of a head, t
        for name in Attention.QKV_PROJECTIONS:
            linear = self.build_linear(config)  # drawn even if unused, so that the next maps do not depend on it
            if name in self.QKV_PROJECTIONS:
                self.add_module(name, linear)
        for name, module in before_out_proj.items():
            self.add_module(name, module)
        self.out_proj = self.build_linear(config)
        self.register_parameter("value_mix", None)

    @staticmethod
    def build_linear(config: AttentionConfig) -> nn.Linear:
        """Build a map of queries, keys, values or output, (..., d) -> (..., d); ``attention_bias`` adds its bias."""
        return nn.Linear(config.encoder_embed_dim, config.encoder_embed_dim, bias=config.attention_bias)

    def add_value_residual(self) -> None:
        """Let ``values`` mix the first layer's values into those of this layer (``value_residual.py``)."""
        self.value_mix = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both weights of a value residual to 0.5."""
        if self.value_mix is not None:
            nn.init.constant_(self.value_mix, 0.5)

    def values(self, x: Tensor, first_values: Tensor | None) -> Tensor:
        """Return V = X W_v + b, mixed with V_1 in a layer with a value residual: (B, n, d) -> (B, n, d)."""
        if self.value_mix is None or first_values is None:
            return self.v_proj(x)
        return map_and_mix(self.v_proj, x, first_values, self.value_mix)

    def project(self, x: Tensor, first_values: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, rotated where positions are rotary, and values: (B, n, d) -> three (B, n, d)."""
        return self.rotated(self.q_proj(x)), self.rotated(self.k_proj(x)), self.values(x, first_values)

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate queries or keys where positions are rotary: (B, n, d) or (B, h, n, d_h)."""
        return rotate(x, self.head_dim, self.rotary_dim, self.rotary_base) if self.rotary_dim else x

    def zero_rotary_dims(self, keys: Tensor) -> Tensor:
        """Return keys without a position, (..., d) or (..., d_h), with zeros in the rotary dimensions."""
        if not self.rotary_dim:
            return keys
        dimension = torch.arange(keys.size(-1), device=keys.device) % self.head_dim
        return keys.masked_fill(dimension < self.rotary_dim, 0.0)

    def split_heads(self, x: Tensor) -> Tensor:
        """Split the heads: (..., n, d) -> (..., h, n, d_h)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def join_heads(self, heads: Tensor) -> Tensor:
        """Join the heads and apply the last map: (B, h, n, d_h) -> (B, n, d)."""
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Return softmax(Q K^T / sqrt(d_h)) V, with dropout on the weights in training.

        Args:
            queries: (B, h, n, d_h).
            keys, values: (B, h, m, d_h).
            attn_mask: (B or 1, h or 1, n or 1, m); None for every key. Boolean, True where a query attends to a key; or
                finite numbers, without gradient, that are added to the scores (``add_alibi``). The result of a query
                without any key is finite and otherwise arbitrary.

        Returns:
            (B, h, n, d_h).
        """
        p = self.dropout if self.training else 0.0
        if queries.device.type == "cpu" and (p > 0 or queries.dtype == torch.bfloat16):
            return attend_on_cpu(queries, keys, values, attn_mask, p)
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = bias_in_precision(attn_mask, queries.dtype)  # PyTorch requires equal precisions
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask, p)

    @staticmethod
    def real_positions(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return True for each position that is not padding, (B, n)."""
        return x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else ~padding_mask

    @staticmethod
    def zero_padding(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Set padded positions of (B, n, d) to zero."""
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)


ATTENTIONS: dict[str, type[Attention]] = {}

AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


def register_attention(name: str, options: type[Options] = Options) -> Callable[[AttentionClass], AttentionClass]:
    """Register a mechanism and its options as ``attention=name``: a class decorator.

    Raises:
        UserError: the name is taken.
    """

    def register(cls: AttentionClass) -> AttentionClass:
        if name in ATTENTIONS:
            raise UserError(f"attention={name} is registered already, by {ATTENTIONS[name].__name__}")
        ATTENTIONS[name] = cls
        cls.name, cls.Options = name, options
        return cls

    return register


def get_attention(name: str) -> type[Attention]:
    """Return the mechanism of that name.

    Raises:
        UserError: the name is unknown; the message lists the registered ones.
    """
    if name not in ATTENTIONS:
        raise UserError(f"attention={name} is not known; choose from {', '.join(sorted(ATTENTIONS))}")
    return ATTENTIONS[name]
