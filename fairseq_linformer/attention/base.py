"""The contract that every attention mechanism keeps, and the registry that names them.

Dimensions: B batch, n sequence length, d embedding, h heads, d_h = d / h.
Nothing under ``attention/`` imports fairseq: each mechanism can be read, tested, timed and exported alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn


class AttentionConfig(Protocol):
    """What a mechanism may read of the model's configuration (``LinformerRobertaConfig``), resolved and validated."""

    encoder_layers: int
    encoder_embed_dim: int
    encoder_attention_heads: int
    attention_dropout: float
    max_positions: int
    projection: str
    projection_init: str | None  # None where there is no choice
    projected_length: list[int]  # one a layer
    sharing: str
    freeze_projection: bool


class Attention(nn.Module, ABC):
    """Bidirectional self-attention over a batch of sequences: the four linear maps, and what mechanisms share.

    Contract, held by one test suite over the whole registry:

    * ``forward(x, padding_mask)`` takes x (B, n, d) and a boolean mask (B, n), True where a position is padding, or
      None; it returns (B, n, d). Padding stands on the right.
    * The output at real positions does not depend on padded ones, on their number or on the other rows of the batch.
      The output at padded positions is finite and otherwise free.
    * n is any length from 1 to ``max_positions``; the encoder refuses longer ones.
    * Attention dropout applies to the attention weights, in training mode only.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        # In this order, fairseq's, because optimizers keep their state by the order of parameters.
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    @classmethod
    @abstractmethod
    def build_layers(cls, config: AttentionConfig) -> list["Attention"]:
        """Builds the attention of every layer, all at once, so that layers can share parameters."""

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Maps (B, n, d) to (B, n, d); see the class for the contract."""

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, n, d) -> (B, h, n, d_h)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def softmax_attention(self, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
        """softmax(Q K^T / sqrt(d_h)) V with dropout on the weights, heads joined and projected.

        Args:
            queries: (B, h, n, d_h).
            keys, values: (B, h, m, d_h), m keys of whatever kind.
            visible: boolean, broadcast to (B, h, n, m), True where a key may be seen; None for everywhere.

        Returns:
            (B, n, d).
        """
        dropout = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible, dropout_p=dropout)
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # (B, h, n, d_h) -> (B, n, d)


ATTENTIONS: dict[str, type[Attention]] = {}

AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


def register_attention(name: str) -> Callable[[AttentionClass], AttentionClass]:
    """Class decorator: makes a mechanism selectable as ``attention=name``. A name is taken once."""

    def register(cls: AttentionClass) -> AttentionClass:
        if name in ATTENTIONS:
            raise ValueError(f"attention={name} is registered already, by {ATTENTIONS[name].__name__}")
        ATTENTIONS[name] = cls
        return cls

    return register


def get_attention(name: str) -> type[Attention]:
    """The mechanism of that name; ValueError naming the known ones for any other."""
    if name not in ATTENTIONS:
        raise ValueError(f"attention={name} is not known; choose from {', '.join(sorted(ATTENTIONS))}")
    return ATTENTIONS[name]
