"""A layer of the encoder: attention, feed-forward network and local convolution. Nothing here imports fairseq.

Dimensions: B batch, n sequence length, d embedding.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .architecture import Architecture
from .attention import Attention, get_attention
from .attention.dropout import Dropout

# N of B x n positions: a boolean (B, n), True at these; their numbers (N,), row by row; or (slice(None), i), N = B.
Positions = Tensor | tuple[slice, int]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # fairseq's names
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_fast": partial(F.gelu, approximate="tanh"),  # the older name of the next
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": torch.positive,  # the identity
}


def may_be_padded(padding_mask: Tensor) -> bool:
    """Whether any position is padding: looked at on the CPU, where it is free; elsewhere the question stops the host.

    While PyTorch compiles, which cannot branch on data, always True.
    """
    return padding_mask.device.type != "cpu" or torch.compiler.is_compiling() or bool(padding_mask.any())


def pick(x: Tensor, wanted: Positions | None) -> Tensor:
    """The wanted positions of (B, n, d), (N, d); by numbers, unlike by a boolean mask, a GPU need not be waited for."""
    if wanted is None:
        return x
    numbered = isinstance(wanted, Tensor) and wanted.dim() == 1
    return (x.flatten(0, 1) if numbered else x)[wanted]


def misplaced_padding(padding_mask: Tensor) -> int | None:
    """The first row of (B, n) that has padding before a token, or no token; None where padding stands on the right."""
    misplaced = padding_mask[:, 0] | (padding_mask[:, :-1] & ~padding_mask[:, 1:]).any(1)
    return int(misplaced.nonzero()[0]) if bool(misplaced.any()) else None


def build_attentions(config: Architecture) -> list[Attention]:
    """The attention of every layer; with ``value_residual`` all but the first mix the first one's values in."""
    attentions = get_attention(config.attention).build_layers(config)
    if config.value_residual:
        for attention in attentions[1:]:
            attention.add_value_residual()
    return attentions


class LocalConvolution(nn.Module):
    """Depthwise convolution over the sequence, (B, n, d) -> (B, n, d), with zeros beyond both ends.

    Padded positions count as beyond the end, so padding is invisible. Costs B n d w for width w. Nyströmformer
    (arXiv 2102.03902) puts one of width 33 beside its attention, on the values.
    """

    def __init__(self, embed_dim: int, width: int):
        super().__init__()
        self.conv = nn.Conv1d(embed_dim, embed_dim, width, padding=width // 2, groups=embed_dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = Attention.zero_padding(x, padding_mask)
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # the convolution wants (B, d, n)


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
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.gated, width = config.gated_ffn, config.encoder_ffn_embed_dim
        self.fc1 = nn.Linear(embed_dim, 2 * width if self.gated else width, bias=not self.gated)  # gates first
        self.fc2 = nn.Linear(width, embed_dim, bias=not self.gated)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
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
