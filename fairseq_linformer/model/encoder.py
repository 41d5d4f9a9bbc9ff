"""The encoder: embeddings, and layers of attention and feed-forward network. This module does not import fairseq.

Dimensions: B batch, n sequence length, d embedding, V vocabulary. Parameters have the names of fairseq's
``TransformerEncoder``, so its checkpoints can be loaded.
"""

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Attention, get_attention
from ..attention.dropout import Dropout, runs_eagerly_on_cpu
from ..errors import UserError
from .architecture import Architecture
from .parts import ACTIVATIONS, LocalConvolution

# N of B x n positions: a boolean mask (B, n); flat indices (N,) into B x n; or (slice(None), i), where N = B.
Positions = Tensor | tuple[slice, int]


def build_norm(config: Any) -> nn.LayerNorm:
    """Build a layer norm of an ``Architecture``, (..., d) -> (..., d)."""
    return nn.LayerNorm(config.encoder_embed_dim, config.layer_norm_eps, bias=config.norm_bias)


class EncoderLayer(nn.Module):
    """One block: x + attention(x), then x + feed-forward(x), each with dropout and with layer norm after it.

    With ``encoder_normalize_before`` the norm is before (pre-norm). ``local_conv`` adds a convolution of the
    attention's input to the attention's output. The feed-forward network is act(x U + b) W + c. With ``gated_ffn`` it
    is (act(x U) * (x V)) W without biases, which with gelu is GeGLU (Shazeer 2020, arXiv 2002.05202, eq. 6) and has 1.5
    times as many parameters at the same width.
    """

    def __init__(self, config: Architecture, attention: Attention):
        super().__init__()
        embed_dim, width = config.encoder_embed_dim, config.encoder_ffn_embed_dim
        self.normalize_before, self.gated = config.encoder_normalize_before, config.gated_ffn
        self.self_attn = attention
        self.local_conv = LocalConvolution(embed_dim, config.local_conv) if config.local_conv else None
        self.self_attn_layer_norm: nn.Module = build_norm(config)
        self.fc1 = nn.Linear(embed_dim, 2 * width if self.gated else width, bias=not self.gated)  # gates first
        self.fc2 = nn.Linear(width, embed_dim, bias=not self.gated)
        self.activation_fn = ACTIVATIONS[config.activation_fn]
        self.activation_dropout = Dropout(config.activation_dropout)
        self.final_layer_norm = build_norm(config)
        self.dropout = Dropout(config.dropout)

    def attention_values(self, x: Tensor) -> Tensor:
        """Return the values of this layer for its input x, (B, n, d); value residuals use those of the first layer."""
        return self.self_attn.v_proj(self.self_attn_layer_norm(x) if self.normalize_before else x)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        output_positions: Positions | None = None,
        first_values: Tensor | None = None,
    ) -> Tensor:
        """Map x (B, n, d) to (B, n, d), or with `output_positions` to (N, d); padding_mask (B, n) is True where padded.

        The feed-forward network, most of a layer's work, is computed for output positions only.
        """
        if self.normalize_before:
            x = x + self.dropout(self._mix_positions(self.self_attn_layer_norm(x), padding_mask, first_values))
            x = select_positions(x, output_positions)
            return x + self.dropout(self.feed_forward(self.final_layer_norm(x)))
        x = self.self_attn_layer_norm(x + self.dropout(self._mix_positions(x, padding_mask, first_values)))
        x = select_positions(x, output_positions)
        return self.final_layer_norm(x + self.dropout(self.feed_forward(x)))

    def _mix_positions(self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None) -> Tensor:
        first = () if self.self_attn.value_mix is None else (first_values,)
        mixed = self.self_attn(x, padding_mask, *first)
        return mixed if self.local_conv is None else mixed + self.local_conv(x, padding_mask)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward network to (..., d)."""
        hidden = self.fc1(x)
        if self.gated:
            gates, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation_fn(gates) * hidden
        else:
            hidden = self.activation_fn(hidden)
        return self.fc2(self.activation_dropout(hidden))


class Encoder(nn.Module):
    """Embeddings and layers, shared by the models of fairseq and of transformers."""

    embed_tokens: nn.Embedding
    embed_positions: nn.Embedding | None
    layers: nn.ModuleList  # of EncoderLayer
    layer_class: ClassVar[type[EncoderLayer]] = EncoderLayer
    recompute: Callable[..., Tensor] | None = None  # runs a layer with activation checkpointing

    def build(self, config: Architecture, embed_tokens: nn.Embedding, embed_positions: nn.Embedding | None) -> None:
        """Add the modules.

        Args:
            config: resolved and validated.
            embed_tokens: (V, d); its padding index marks padding, which is on the right.
            embed_positions: (max_positions + padding index + 1, d); positions count from the padding index + 1.
                None for relative positions in attention (``attention/positions.py``).
        """
        self.longest, self.value_residual = config.max_positions, config.value_residual
        self.padding_idx = cast(int, embed_tokens.padding_idx)
        self.embed_tokens, self.embed_positions = embed_tokens, embed_positions
        self.layernorm_embedding = build_norm(config) if config.layernorm_embedding else None
        self.dropout = Dropout(config.dropout)
        attentions = get_attention(config.attention).build_layers(config)
        if config.value_residual:
            for attention in attentions[1:]:
                attention.add_value_residual()
        self.layers = nn.ModuleList(self.layer_class(config, attention) for attention in attentions)
        if not config.first_attention_norm:
            self.layers[0].self_attn_layer_norm = nn.Identity()
        self.layer_norm = build_norm(config) if config.encoder_normalize_before else None

    def embed(self, tokens: Tensor, padding_mask: Tensor | None, first_positions: Tensor | None = None) -> Tensor:
        """Return the input of the first layer, (B, n, d), from embeddings of tokens, (B, n, d).

        ``first_positions`` (B,) int64: the position of the first token of each sequence; None for 0.
        """
        first = self.padding_idx + 1
        positions = torch.arange(first, first + tokens.size(1), device=tokens.device).expand(tokens.shape[:2])
        if first_positions is not None:
            positions = positions + first_positions.unsqueeze(1)
        if padding_mask is not None:
            positions = positions.masked_fill(padding_mask, self.padding_idx)
        x = tokens
        if self.embed_positions is not None:
            if type(self.embed_positions) is nn.Embedding:
                x = x + self.embed_positions(positions)
            else:  # fairseq's module, which takes token ids
                x = x + F.embedding(positions, self.embed_positions.weight, self.padding_idx)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x)

    def encode(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        output_positions: Positions | None = None,
        keep_states: bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run all layers, and the final norm of a pre-norm model.

        Args:
            x: (B, n, d), the output of ``embed``.
            padding_mask: (B, n), True where padded; None, which is faster, without padding.
            output_positions: the N positions whose features are needed, None for all. Not with ``keep_states``.
            keep_states: also return x and the output of each layer; otherwise their memory is freed in inference.

        Returns:
            features (B, n, d) or (N, d), and the states.
        """
        states = [x] if keep_states else []
        # Computed even if LayerDrop skips the first layer.
        first_values = cast(EncoderLayer, self.layers[0]).attention_values(x) if self.value_residual else None
        layers = list(self.layers)  # LayerDrop selects layers at each iteration
        for layer in layers:
            only = output_positions if layer is layers[-1] else None
            arguments = x, padding_mask, only, first_values
            x = layer(*arguments) if self.recompute is None else self.recompute(layer, *arguments)
            if keep_states:
                states.append(x)
        if not layers:
            x = select_positions(x, output_positions)
        return (x if self.layer_norm is None else self.layer_norm(x)), states


class SentenceEncoder(Encoder):
    """Encoder of token ids with fairseq's interface."""

    def __init__(self, config: Architecture, embed_tokens: nn.Embedding, embed_positions: nn.Embedding | None):
        super().__init__()
        self.build(config, embed_tokens, embed_positions)

    def forward(
        self,
        src_tokens: Tensor,
        output_positions: Positions | None = None,
        keep_states: bool = False,
        padded: bool | None = None,
        first_positions: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        """Encode a batch.

        Args:
            src_tokens: (B, n) token ids, padded on the right.
            output_positions, keep_states: as in ``encode``, as is the result.
            padded: True for a batch with padding, False without; None to test for it.
            first_positions: as in ``embed``.
            unused: other fields of fairseq's batches, such as ``src_lengths``.

        Raises:
            UserError: ``check_tokens`` rejects the batch.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        check_tokens(src_tokens, padding_mask, self.embed_tokens.num_embeddings, self.longest)
        if padded is None:
            padded = may_be_padded(padding_mask)
        mask = padding_mask if padded else None
        x = self.embed(self.embed_tokens(src_tokens), mask, first_positions)
        return self.encode(x, mask, output_positions, keep_states)


def select_positions(x: Tensor, positions: Positions | None) -> Tensor:
    """Select N positions: (B, n, d) -> (N, d). Indices, unlike a boolean mask, need no synchronization with a GPU."""
    if positions is None:
        return x
    numbered = isinstance(positions, Tensor) and positions.dim() == 1
    return (x.flatten(0, 1) if numbered else x)[positions]


def may_be_padded(padding_mask: Tensor) -> bool:
    """Return True if a position is padding; on a GPU, to avoid synchronization, and when compiled, always True."""
    return not runs_eagerly_on_cpu(padding_mask) or bool(padding_mask.any())


def misplaced_padding(padding_mask: Tensor) -> int | None:
    """Return the first sequence of (B, n) with padding before a token, or without a token; None if there is none.

    Always None on a GPU, and while PyTorch compiles.
    """
    if not runs_eagerly_on_cpu(padding_mask):
        return None
    misplaced = padding_mask[:, 0] | (padding_mask[:, :-1] & ~padding_mask[:, 1:]).any(1)
    return int(misplaced.nonzero()[0]) if bool(misplaced.any()) else None


def check_length(length: int, longest: int) -> None:
    """Reject a sequence of more than `longest` tokens."""
    if length > longest:
        raise UserError(f"a sequence of {length} tokens is longer than max_positions={longest}")


def check_tokens(tokens: Tensor, padding_mask: Tensor, vocabulary: int, longest: int) -> None:
    """Reject token ids (B, n) with n above `longest`.

    On the CPU also reject ids from `vocabulary` on, and padding before a token: these tests would synchronize with a
    GPU. The padding mask (B, n) is True where padded.
    """
    check_length(tokens.size(1), longest)
    if not runs_eagerly_on_cpu(tokens):
        return
    smallest, largest = (int(extreme) for extreme in tokens.aminmax())
    if smallest < 0 or largest >= vocabulary:
        invalid_id = smallest if smallest < 0 else largest
        raise UserError(f"token id {invalid_id} is not in the vocabulary: ids are from 0 to {vocabulary - 1}")
    index = misplaced_padding(padding_mask)
    if index is not None:
        raise UserError(f"sequence {index} has padding before a token, or no token: padding must be on the right")
