"""Activations, the local convolution, and heads of classification. This module does not import fairseq.

Dimensions: B batch, n sequence length, d embedding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.base import Attention
from ..attention.dropout import runs_eagerly_on_cpu

TAPS = 33  # maximum width of a convolution that is compiled for a GPU into one kernel

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # fairseq's names
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_fast": partial(F.gelu, approximate="tanh"),  # older name of gelu_accurate
    "gelu_accurate": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "linear": torch.positive,  # the identity
}


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
        if runs_eagerly_on_cpu(x):
            return self.of_image(x)
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # the convolution takes (B, d, n)

    def of_image(self, x: Tensor) -> Tensor:
        """Compute the convolution as that of images of n x 1 pixels, (B, n, d) -> (B, n, d).

        x has their layout with channels last already. On a CPU this takes a sixth of the time of PyTorch's convolution
        of sequences, forward and backward.
        """
        conv = self.conv
        image = x.unsqueeze(2).permute(0, 3, 1, 2)  # (B, d, n, 1)
        padding = conv.kernel_size[0] // 2, 0
        filtered = F.conv2d(image, conv.weight.unsqueeze(3), conv.bias, padding=padding, groups=conv.groups)
        return filtered.squeeze(3).transpose(1, 2)

    def by_taps(self, x: Tensor) -> Tensor:
        """Compute the convolution as a sum over its width, (B, n, d) -> (B, n, d).

        Compiled for a GPU it is one kernel without a change of layout. PyTorch's depthwise convolution copies x into
        another layout and back, which takes as long as the attention of the base model.
        """
        margin = self.conv.kernel_size[0] // 2
        padded, taps = F.pad(x, (0, 0, margin, margin)), self.conv.weight.squeeze(1).T  # (w, d)
        parts = [padded[:, start : start + x.size(1)] * tap for start, tap in enumerate(taps.unbind())]
        return sum(parts[1:], start=parts[0]) + cast(Tensor, self.conv.bias)


class ClassificationHead(nn.Module):
    """Classification head, (..., d) -> (..., classes), with the layers and names of RoBERTa's head.

    RoBERTa's head is applied to ``<s>`` only, this one to any features. ``norm``, if given, follows the activation.
    """

    def __init__(
        self,
        dense: nn.Module,
        activation_fn: Callable[[Tensor], Tensor],
        dropout: nn.Module,
        out_proj: nn.Module,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.dense, self.activation_fn, self.dropout, self.out_proj = dense, activation_fn, dropout, out_proj
        self.norm = norm

    def forward(self, features: Tensor, **unused: Any) -> Tensor:
        hidden = self.activation_fn(self.dense(self.dropout(features)))
        return self.out_proj(self.dropout(hidden if self.norm is None else self.norm(hidden)))


def mean_over_text(features: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Average features (B, n, d) over unpadded positions: (B, d); the mask is (B, n), None without padding."""
    if padding_mask is None:
        return features.mean(1)
    is_token = ~padding_mask.unsqueeze(-1)
    sums = (features * is_token).sum(1, dtype=torch.promote_types(features.dtype, torch.float32))
    return (sums / is_token.sum(1)).to(features.dtype)
