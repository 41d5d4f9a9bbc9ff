"""The contract that every attention mechanism keeps, and what mechanisms share.

Dimensions: B batch, n sequence length, m keys, d embedding, h heads, d_h = d / h.
Nothing under ``attention/`` imports fairseq: each mechanism can be read, tested, timed and exported alone.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import is_slow
from .options import AttentionConfig, Options
from .positions import RelativePositions
from .residual import ValueResidual
from .sdpa import attend_with_dropout


class Attention(ValueResidual, RelativePositions, ABC):
    """Bidirectional self-attention over a batch of sequences.

    Contract, held by one test suite over the whole registry:

    * ``forward(x, padding_mask, first_values)`` takes x (B, n, d) and a boolean mask (B, n), True where a position is
      padding, or None; it returns (B, n, d). Padding stands on the right.
    * Once ``add_value_residual`` was called it takes ``first_values`` (B, n, d), the first layer's, and where it uses
      its values V it uses u V + w V_1: ``values`` gives them.
    * The output at real positions does not depend on padded ones, on their number or on the other rows of the batch.
      The output at padded positions is finite and otherwise free.
    * n is any length from 1 to ``max_positions``; the encoder refuses longer ones.
    * A mechanism with ``RELATIVE_POSITIONS`` has ``rotated`` queries and keys, and its masks ``biased``, wherever a
      query meets a position as it is; the configuration refuses such positions to all others.
    * Attention dropout applies to the attention weights, in training mode only. A mechanism that never has them
      (``HAS_WEIGHTS``) is not built with any.
    """

    name: ClassVar[str]  # set by register_attention, as are the options
    Options: ClassVar[type[Options]] = Options
    HAS_WEIGHTS: ClassVar[bool] = True
    USES_PROJECTION: ClassVar[bool] = False  # whether it reads the options of E and F, which are validated if so
    flex: Any = None  # in place of a window's own code, where ``kernels/flex.py`` puts it: what gives the heads
    q_proj: nn.Linear
    k_proj: nn.Linear
    INPUT_MAPS: ClassVar[tuple[str, ...]] = ("k_proj", "v_proj", "q_proj")  # those that it has, in fairseq's order

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        """Maps (B, n, d) to (B, n, d); see the class for the contract."""

    @classmethod
    def build_layers(cls, config: AttentionConfig) -> list["Attention"]:
        """Builds the attention of every layer, all at once, so that layers can share parameters."""
        options = cls.Options.read(config)
        return [cls(config, options, layer) for layer in range(config.encoder_layers)]

    def finish_initialisation(self) -> None:
        """Set parameters to a start that is not random. The model calls it again once it has drawn all linear maps."""

    def reset_buffers(self) -> None:
        """Draw the buffers, which transformers builds in memory that holds nothing."""

    def upgrade_state_dict_named(self, state: dict[str, Tensor], name: str) -> None:
        """Adds, in place, what the checkpoint of another mechanism lacks.

        fairseq calls it with the parameters of the whole checkpoint, and this module's name there, before loading.
        """

    def __init__(self, config: AttentionConfig, options: Any = None, layer: int = 0, **before_out_proj: nn.Module):
        """Adds the linear maps of a layer, numbered from 0, whose mechanism has those (validated) options.

        `before_out_proj` are modules of the mechanism that stand before the last map. The order is that of fairseq's
        own code, because optimizers keep their state by the order of parameters.
        """
        super().__init__()
        self.embed_dim = config.encoder_embed_dim
        self.num_heads = config.encoder_attention_heads
        self.head_dim = self.embed_dim // self.num_heads
        self.dropout = config.attention_dropout
        self.set_positions(config)
        for name in Attention.INPUT_MAPS:
            linear = nn.Linear(self.embed_dim, self.embed_dim)  # drawn even if left out: seeds keep their meaning
            if name in self.INPUT_MAPS:
                self.add_module(name, linear)
        for name, module in before_out_proj.items():
            self.add_module(name, module)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim)
        self.register_parameter("value_mix", None)  # add_value_residual makes it one

    def project(self, x: Tensor, first_values: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated where positions are rotary, and values: (B, n, d) -> three times (B, n, d)."""
        return self.rotated(self.q_proj(x)), self.rotated(self.k_proj(x)), self.values(x, first_values)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., n, d) -> (..., h, n, d_h)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def join_heads(self, heads: Tensor) -> Tensor:
        """(B, h, n, d_h) -> (B, n, d), joined and projected."""
        return self.out_proj(heads.transpose(1, 2).flatten(2))

    def of_each_head(self, linear: nn.Linear) -> tuple[Tensor, Tensor]:
        """Each head's share of a map that ``is_plain``: its weight, (h, d_h, d), and its bias, (h, 1, d_h)."""
        weight = linear.weight.unflatten(0, (self.num_heads, self.head_dim))
        return weight, linear.bias.view(self.num_heads, 1, self.head_dim)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """softmax(Q K^T / sqrt(d_h)) V, in training with dropout on the weights.

        Args:
            queries: (B, h, n, d_h).
            keys, values: (B, h, m, d_h), m keys of whatever kind.
            attn_mask: (B or 1, h or 1, n or 1, m); None for every key. Boolean, True where a query attends to a key; or
                finite numbers, without gradient, that are added to the scores (``biased``).
                The result of a query without any key is finite and otherwise free.

        Returns:
            (B, h, n, d_h).
        """
        if attn_mask is not None and attn_mask.is_floating_point():
            if queries.dtype == torch.float16:
                attn_mask = attn_mask.clamp(min=torch.finfo(torch.float16).min)  # finite there, too
            attn_mask = attn_mask.to(queries.dtype)  # PyTorch takes no other
        p = self.dropout if self.training else 0.0
        if p > 0 and is_slow(queries):
            return attend_with_dropout(queries, keys, values, attn_mask, p)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask, p)

    def softmax_attention(self, queries: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor | None) -> Tensor:
        """``attend``, heads joined and projected: (B, n, d)."""
        return self.join_heads(self.attend(queries, keys, values, attn_mask))

    @staticmethod
    def real_positions(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, n), True where a position is no padding."""
        return x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else ~padding_mask

    @staticmethod
    def zero_padding(x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, n, d) with zeros at padded positions."""
        return x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
