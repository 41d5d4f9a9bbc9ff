"""Modules of the encoder and its layers except attention. This module does not import fairseq.

Dimensions: B batch, n sequence length, d embedding, V vocabulary.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ..attention.base import Attention
from ..attention.dropout import Dropout
from .architecture import Architecture

TAPS = 33  # maximum width of a convolution that is compiled for a GPU into one kernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # fairseq's names
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_fast": partial(F.gelu, approximate="tanh"),  # older name of gelu_accurate
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": torch.positive,  # the identity
}


class Embeddings(nn.Module):
    """Embeddings of tokens and positions, with layer norm and dropout."""

    embed_tokens: nn.Embedding
    embed_positions: nn.Embedding | None

    def add_embeddings(
        self, config: Architecture, embed_tokens: nn.Embedding, embed_positions: nn.Embedding | None
    ) -> None:
        """Add the modules.

        Args:
            config: resolved and validated.
            embed_tokens: (V, d); its padding index marks padding, which is on the right.
            embed_positions: (max_positions + padding index + 1, d); positions count from the padding index + 1.
                None for relative positions in attention (``attention/positions.py``).
        """
        self.padding_idx = cast(int, embed_tokens.padding_idx)
        self.embed_tokens, self.embed_positions = embed_tokens, embed_positions
        self.layernorm_embedding = None
        if config.layernorm_embedding:
            self.layernorm_embedding = nn.LayerNorm(config.encoder_embed_dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)

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


class FeedForward(nn.Module):
    """The feed-forward network of a layer, act(x U + b) W + c, with dropout after the activation.

    With ``gated_ffn`` it is (act(x U) * (x V)) W without biases, which with gelu is GeGLU (Shazeer 2020, arXiv
    2002.05202, eq. 6) and has 1.5 times as many parameters at the same width.
    """

    def add_feed_forward(self, config: Architecture) -> None:
        """Add the modules of a resolved and validated configuration."""
        embed_dim, width = config.encoder_embed_dim, config.encoder_ffn_embed_dim
        self.gated = config.gated_ffn
        self.fc1 = nn.Linear(embed_dim, 2 * width if self.gated else width, bias=not self.gated)  # gates first
        self.fc2 = nn.Linear(width, embed_dim, bias=not self.gated)
        self.activation_fn = ACTIVATIONS[config.activation_fn]
        self.activation_dropout = Dropout(config.activation_dropout)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Apply the network to (..., d)."""
        hidden = self.fc1(x)
        if self.gated:
            gates, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation_fn(gates) * hidden
        else:
            hidden = self.activation_fn(hidden)
        return self.fc2(self.activation_dropout(hidden))


def run_recomputed(layer: nn.Module, *arguments: Any, offload: bool) -> Tensor:
    """Run a layer with activation checkpointing: only its input is kept, and dropout masks are the same in both passes.

    With ``offload`` the input is kept in the memory of the CPU; the first layer's values stay on the device. This uses
    PyTorch's checkpointing. fairseq's runs a backward pass within the backward pass, which DistributedDataParallel
    rejects if layers share parameters or parameters do not contribute to the loss, and it recomputes without autocast.
    """
    with save_on_cpu(pin_memory=True) if offload else nullcontext():
        return checkpoint(layer, *arguments, use_reentrant=False)


class LocalConvolution(nn.Module):
    """Depthwise convolution over the sequence, (B, n, d) -> (B, n, d), with zeros beyond both ends.

    Padded positions are zero, so padding has no effect. The cost is B n d w for width w. Nyströmformer
    (arXiv 2102.03902) adds one of width 33, over the values, to its attention.
    """

    def __init__(self, embed_dim: int, width: int):
        super().__init__()
        self.conv = nn.Conv1d(embed_dim, embed_dim, width, padding=width // 2, groups=embed_dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = Attention.zero_padding(x, padding_mask)
        if x.is_cuda and torch.compiler.is_compiling() and self.conv.kernel_size[0] <= TAPS:
            return self.by_taps(x)
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # the convolution takes (B, d, n)

    def by_taps(self, x: Tensor) -> Tensor:
        """Compute the convolution as a sum over its width, (B, n, d) -> (B, n, d).

        Compiled for a GPU it is one kernel without a change of layout. PyTorch's depthwise convolution copies x into
        another layout and back, which takes as long as the attention of the base model.
        """
        margin = self.conv.kernel_size[0] // 2
        padded, taps = F.pad(x, (0, 0, margin, margin)), self.conv.weight.squeeze(1).T  # (w, d)
        parts = [padded[:, at : at + x.size(1)] * tap for at, tap in enumerate(taps.unbind())]
        return sum(parts[1:], start=parts[0]) + cast(Tensor, self.conv.bias)


class ClassificationHead(nn.Module):
    """Classification head, (..., d) -> (..., classes), with the layers and names of RoBERTa's head.

    RoBERTa's head is applied to ``<s>`` only, this one to any features.
    """

    def __init__(
        self, dense: nn.Module, activation_fn: Callable[[Tensor], Tensor], dropout: nn.Module, out_proj: nn.Module
    ):
        super().__init__()
        self.dense, self.activation_fn, self.dropout, self.out_proj = dense, activation_fn, dropout, out_proj

    def forward(self, features: Tensor, **unused: Any) -> Tensor:
        hidden = self.activation_fn(self.dense(self.dropout(features)))
        return self.out_proj(self.dropout(hidden))
