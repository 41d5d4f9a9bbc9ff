"""The encoder: embeddings, and layers of attention and feed-forward network. Nothing here imports fairseq.

Dimensions: B batch, n sequence length, d embedding, V vocabulary. Parameters have the names of fairseq's
``TransformerEncoder``, so checkpoints carry over.
"""

from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ..attention.base import Attention
from ..attention.dropout import Dropout
from ..attention.registry import get_attention
from .architecture import Architecture
from .parts import ACTIVATIONS, LocalConvolution, Positions, check_tokens, may_be_padded, pick


class EncoderLayer(nn.Module):
    """One block: x + attention(x), then x + feed-forward(x), each with dropout and with layer norm after it.

    With ``encoder_normalize_before`` the norm stands before (pre-norm). ``local_conv`` adds a convolution of the
    attention's input to the attention's output. With ``gated_ffn`` the feed-forward network is a gated one without
    biases, with gelu GeGLU (Shazeer 2020, arXiv 2002.05202, eq. 6): half again as many parameters for the same width.
    """

    def __init__(self, config: Architecture, attention: Attention):
        super().__init__()
        embed_dim = config.encoder_embed_dim
        self.normalize_before = config.encoder_normalize_before
        self.self_attn = attention
        self.local_conv = LocalConvolution(embed_dim, config.local_conv) if config.local_conv else None
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim, config.layer_norm_eps)
        self.gated, width = config.gated_ffn, config.encoder_ffn_embed_dim
        self.fc1 = nn.Linear(embed_dim, 2 * width if self.gated else width, bias=not self.gated)  # gates first
        self.fc2 = nn.Linear(width, embed_dim, bias=not self.gated)
        self.final_layer_norm = nn.LayerNorm(embed_dim, config.layer_norm_eps)
        self.activation_fn = ACTIVATIONS[config.activation_fn]
        self.dropout = Dropout(config.dropout)
        self.activation_dropout = Dropout(config.activation_dropout)

    def own_values(self, x: Tensor) -> Tensor:
        """The values of this layer for its input x, (B, n, d): of the first layer, what value residuals take."""
        return self.self_attn.v_proj(self.self_attn_layer_norm(x) if self.normalize_before else x)

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        wanted: Positions | None = None,
        first_values: Tensor | None = None,
    ) -> Tensor:
        """x (B, n, d) and padding_mask (B, n), True where padded, to (B, n, d); of ``wanted`` positions, to (N, d).

        Where only some are wanted the others are spared the feed-forward network, most of a layer's work.
        """
        if self.normalize_before:
            x = x + self.dropout(self._mix_positions(self.self_attn_layer_norm(x), padding_mask, first_values))
            x = pick(x, wanted)
            return x + self.dropout(self._feed_forward(self.final_layer_norm(x)))
        x = self.self_attn_layer_norm(x + self.dropout(self._mix_positions(x, padding_mask, first_values)))
        x = pick(x, wanted)
        return self.final_layer_norm(x + self.dropout(self._feed_forward(x)))

    def _mix_positions(self, x: Tensor, padding_mask: Tensor | None, first_values: Tensor | None) -> Tensor:
        first = () if self.self_attn.value_mix is None else (first_values,)
        mixed = self.self_attn(x, padding_mask, *first)
        return mixed if self.local_conv is None else mixed + self.local_conv(x, padding_mask)

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        if self.gated:
            gates, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation_fn(gates) * hidden
        else:
            hidden = self.activation_fn(hidden)
        return self.fc2(self.activation_dropout(hidden))


class FirstLayer(EncoderLayer):
    """The first layer of a model with value residuals, which has none itself.

    It has a ``forward`` of its own, because PyTorch compiles the code of one function eight times at most: in training
    and evaluation, padded or not, the last layer apart from the others. This layer would be a third kind.
    """

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        wanted: Positions | None = None,
        first_values: Tensor | None = None,
    ) -> Tensor:
        return super().forward(x, padding_mask, wanted)


class Encoder(nn.Module):
    """Embeddings and layers: what fairseq's model and that of transformers have in common."""

    embed_tokens: nn.Embedding
    embed_positions: nn.Embedding | None
    layers: Any  # of EncoderLayer: nn.ModuleList, or fairseq's with LayerDrop

    def build(self, config: Architecture, embed_tokens: nn.Embedding, embed_positions: nn.Embedding | None) -> None:
        """Adds the modules.

        Args:
            config: resolved and validated.
            embed_tokens: (V, d); its padding index marks padded positions, which stand on the right.
            embed_positions: (max_positions + padding index + 1, d); positions count from the padding index + 1.
                None where positions are not learned, but told to attention (``attention/positions.py``).
        """
        self.longest, self.value_residual = config.max_positions, config.value_residual
        self.padding_idx = cast(int, embed_tokens.padding_idx)
        self.embed_tokens, self.embed_positions = embed_tokens, embed_positions
        shape, eps = config.encoder_embed_dim, config.layer_norm_eps
        self.layernorm_embedding = nn.LayerNorm(shape, eps) if config.layernorm_embedding else None
        self.dropout = Dropout(config.dropout)
        first, *others = get_attention(config.attention).build_layers(config)
        if config.value_residual:
            for attention in others:
                attention.add_value_residual()
        kind_of_first = FirstLayer if config.value_residual else EncoderLayer
        layers = [kind_of_first(config, first), *(EncoderLayer(config, attention) for attention in others)]
        self.layers = nn.ModuleList(layers)
        self.layer_norm = nn.LayerNorm(shape, eps) if config.encoder_normalize_before else None

    def embed(self, tokens: Tensor, padding_mask: Tensor | None, first_positions: Tensor | None = None) -> Tensor:
        """The input of the first layer, (B, n, d), from embeddings of tokens, (B, n, d); mask as in the layers.

        ``first_positions`` (B,) int64: where each row begins, for parts of longer rows; None: at 0.
        """
        first = self.padding_idx + 1
        positions = torch.arange(first, first + tokens.size(1), device=tokens.device).expand(tokens.shape[:2])
        if first_positions is not None:
            positions = positions + first_positions.unsqueeze(1)
        if padding_mask is not None:
            positions = positions.masked_fill(padding_mask, self.padding_idx)
        x = tokens
        if self.embed_positions is not None:
            x = x + F.embedding(positions, self.embed_positions.weight, self.padding_idx)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x)

    def encode(
        self, x: Tensor, padding_mask: Tensor | None, wanted: Positions | None = None, keep_states: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers, and the last norm of a model that normalises before each block.

        Args:
            x: of ``embed``.
            padding_mask: (B, n), True where padded; None where nothing is: without one there is less to do.
            wanted: the N positions whose features are needed, None for all. Not together with ``keep_states``.
            keep_states: also return x and what leaves each layer. Otherwise nothing keeps them alive in inference.

        Returns:
            features (B, n, d), of wanted positions (N, d), and the states.
        """
        states = [x] if keep_states else []
        # Also where LayerDrop skips the first layer.
        first_values = cast(EncoderLayer, self.layers[0]).own_values(x) if self.value_residual else None
        layers = list(self.layers)  # LayerDrop: a choice of them, each time another
        for layer in layers:
            only = wanted if layer is layers[-1] else None
            x = self.run_layer(layer, x, padding_mask, only, first_values=first_values)
            if keep_states:
                states.append(x)
        if not layers:
            x = pick(x, wanted)
        return (x if self.layer_norm is None else self.layer_norm(x)), states

    def run_layer(self, layer: nn.Module, *arguments: Any, **first_values: Any) -> Tensor:
        """One layer; models extend it where they compute layers again in the backward pass."""
        return layer(*arguments, **first_values)


class SentenceEncoder(Encoder):
    """Token ids to features, as fairseq's models call it.

    With ``checkpoint_activations`` a layer keeps its input alone, and computes the rest again in the backward pass,
    with the same random draws; with ``offload_activations`` the input is kept in the memory of the CPU. What value
    residuals take of the first layer is kept once, where it is. The checkpointing is PyTorch's, not fairseq's: that one
    runs a backward pass within the backward pass, which DistributedDataParallel refuses where layers share parameters
    or some parameters have no part in the loss, and it computes again without autocast.
    """

    def __init__(
        self,
        config: Architecture,
        embed_tokens: nn.Embedding,
        embed_positions: nn.Embedding | None,
        recompute: bool = False,
        offload: bool = False,
    ):
        super().__init__()
        self.recompute, self.offload = recompute, offload
        self.build(config, embed_tokens, embed_positions)

    def forward(
        self,
        src_tokens: Tensor,
        wanted: Positions | None = None,
        keep_states: bool = False,
        padded: bool | None = None,
        first_positions: Tensor | None = None,
        **unused: Any,
    ) -> tuple[Tensor, list[Tensor]]:
        """Encodes a batch.

        Args:
            src_tokens: (B, n) token ids, padded on the right.
            wanted, keep_states: as in ``encode``, and so is what is returned.
            padded: whether the batch holds padding, where that is known; it spares the mask, or the question.
            first_positions: as in ``embed``.
            unused: what else fairseq's batches have, such as ``src_lengths``.

        Raises:
            UserError: the batch cannot be encoded (``check_tokens``).
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        check_tokens(src_tokens, padding_mask, self.embed_tokens.num_embeddings, self.longest)
        if padded is None:
            padded = may_be_padded(padding_mask)
        mask = padding_mask if padded else None
        x = self.embed(self.embed_tokens(src_tokens), mask, first_positions)
        return self.encode(x, mask, wanted, keep_states)

    def run_layer(self, layer: nn.Module, *arguments: Any, **first_values: Any) -> Tensor:
        if not self.recompute or not torch.is_grad_enabled():
            return layer(*arguments, **first_values)
        with save_on_cpu(pin_memory=True) if self.offload else nullcontext():
            return checkpoint(layer, *arguments, **first_values, use_reentrant=False)
