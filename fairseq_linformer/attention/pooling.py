"""Projections of Linformer without a matrix: convolution and pooling, one projected position per window of the text.

Wang et al. 2020, section 4, name both with kernel and stride n / k, called w: a text of n positions has m = ceil(n / w)
projected positions, for any n.

Dimensions: B batch, n sequence length, k projected length, m projected positions, w window, d embedding, h heads, d_h =
d / h.
Cost: B n d per call, with one row per head B n h d.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .adaptive import text_lengths
from .blocks import into_blocks, statically_true, sym_min
from .options import AttentionConfig
from .projection import NOISE, Projection, adaptive_pooling


class WindowProjection(Projection):
    """Projection of every window of w = n / k positions to one; the last window may be shorter. Any length is allowed.

    Costs B n d per call. Windows of padding alone are hidden from attention.

    With ``adaptive_length`` a text of any length is divided into k windows. Window j of a text of l tokens begins at j
    l / k and ends before (j + 1) l / k, rounded down; if l <= k each token is a window.
    """

    SHARINGS: ClassVar[tuple[str, ...]] = ("key-value", "layerwise")  # without parameters E and F cannot differ
    TRAINABLE = False

    def __init__(self, config: AttentionConfig, layer: int):
        super().__init__(config, layer)
        k = config.projected_length[layer]
        self.window = config.max_positions // k
        self.rows = k if config.adaptive_length else None

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.pool(*self.windows(x, padding_mask))

    @abstractmethod
    def pool(self, windows: Tensor, sizes: Tensor) -> Tensor:
        """Reduce the result of ``windows`` to a row per window."""

    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        projected = self(values.transpose(1, 2).flatten(2), padding_mask)  # (B, m, d), each channel by itself
        return projected.unflatten(-1, values.shape[1::2]).transpose(1, 2)

    def attended_rows(self, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return None
        if self.rows is None:  # padding is on the right: if the first position of a window is padded, all are
            return ~padding_mask[:, :: self.window]
        index = torch.arange(sym_min(self.rows, padding_mask.size(1)), device=padding_mask.device)
        return index < text_lengths(padding_mask.size(1), padding_mask, padding_mask.device).unsqueeze(1)

    def windows(self, x: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Divide (B, n, d), zero at padded positions, into windows (B, m, w, d), padded with zeros at the end.

        Also returns the number of unmasked positions of each window, (B or 1, m or 1).
        """
        m, window = self._number_and_size(x.size(1))
        if padding_mask is None and statically_true(x.size(1) % (window if self.rows is None else m) == 0):
            # A 32-bit constant: when compiled for a GPU, expressions of it are recomputed for each element.
            return into_blocks(x, window), torch.full((1, 1), window, dtype=torch.int32, device=x.device)
        offsets, width = self.segment_offsets(x.size(1), padding_mask, x.device)
        windows = into_blocks(x, window) if self.rows is None else self._adaptive_windows(x, offsets, width)
        return windows, offsets[:, 1:] - offsets[:, :-1]

    def _number_and_size(self, length: int) -> tuple[int, int]:
        """Return m and w of a text without padding; if windows fill up k rows w is the largest."""
        if self.rows is None:
            return (length + self.window - 1) // self.window, self.window
        m = sym_min(self.rows, length)
        return m, (length + m - 1) // m

    def segment_offsets(self, length: int, padding_mask: Tensor | None, device: torch.device) -> tuple[Tensor, int]:
        """Return the bounds of the windows of texts in n positions, and the longest possible window.

        Returns:
            (B or 1, m + 1), window j has the positions from entry j to the next, and w.
        """
        lengths = text_lengths(length, padding_mask, device).unsqueeze(1)
        m, width = self._number_and_size(length)
        window = torch.arange(m + 1, device=device)
        offsets = window * width if self.rows is None else window * lengths // lengths.clamp(max=m)
        return torch.minimum(offsets, lengths), width  # windows beyond the end of a text are empty

    def _adaptive_windows(self, x: Tensor, offsets: Tensor, width: int) -> Tensor:
        batch, length = x.shape[:2]
        positions = offsets[:, :-1, None] + torch.arange(width, device=x.device)  # (B, m, w)
        # Every unmasked position is in one window, once. The filling of short windows does not affect the result, and
        # the backward pass adds only zeros for it, so that gradients are deterministic.
        positions = positions.clamp(max=length - 1) + length * torch.arange(batch, device=x.device)[:, None, None]
        windows = x.flatten(0, 1).index_select(0, positions.flatten()).unflatten(0, (batch, *positions.shape[1:]))
        return windows.masked_fill(~_real(width, offsets[:, 1:] - offsets[:, :-1]).unsqueeze(-1), 0.0)


def _real(width: int, sizes: Tensor) -> Tensor:
    """Return True for the unmasked positions of a window of w = `width`, (B or 1, m or 1, w)."""
    return torch.arange(width, device=sizes.device) < sizes.unsqueeze(-1)


class ConvProjection(WindowProjection):
    """Depthwise convolution with kernel and stride w, without bias.

    ``weight`` (w, d) starts as the mean of the window, plus noise. In a shorter window of s positions, which
    ``adaptive_length`` creates, position p has weight floor(p w / s), times w / s.
    """

    SHARINGS = ("headwise", "key-value", "layerwise")  # channels do not belong to heads
    TRAINABLE = True

    def __init__(self, config: AttentionConfig, layer: int):
        super().__init__(config, layer)
        self.weight = nn.Parameter(torch.empty(self.window, config.encoder_embed_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.normal_().mul_(NOISE).add_(1 / self.window)

    def pool(self, windows: Tensor, sizes: Tensor) -> Tensor:
        if self.rows is None:
            return (windows * self.weight).sum(2)
        sizes = sizes.clamp(min=1).unsqueeze(-1)
        taps = torch.arange(windows.size(2), device=sizes.device) * self.window // sizes  # (B, m, w)
        scale = self.window / sizes.to(windows.dtype)
        return (windows * self.weight[taps.clamp(max=self.window - 1)]).sum(2) * scale


class MeanPooling(WindowProjection):
    """Mean of a window's unmasked positions."""

    ROWS_ARE_MEANS = True

    def pool(self, windows: Tensor, sizes: Tensor) -> Tensor:
        wide = torch.promote_types(windows.dtype, torch.float32)  # the maximum of float16 is 65,504
        return (windows.sum(2, dtype=wide) / sizes.clamp(min=1).unsqueeze(-1)).to(windows.dtype)


class MaxPooling(WindowProjection):
    """Maximum of a window's unmasked positions, channel by channel."""

    def pool(self, windows: Tensor, sizes: Tensor) -> Tensor:
        largest = windows.masked_fill(~_real(windows.size(2), sizes).unsqueeze(-1), -torch.inf).amax(2)
        return largest.masked_fill(sizes.unsqueeze(-1) == 0, 0.0)


class PoolingPerHead(WindowProjection):
    """Weighted mean of each window for every head, with weights of its own."""

    ROWS_ARE_MEANS = True

    @abstractmethod
    def weights(self, windows: Tensor, sizes: Tensor) -> Tensor:
        """Return each head's weights of the positions of a window, as for ``pool``: (B or 1, m or 1, h, w)."""

    def pool(self, windows: Tensor, sizes: Tensor) -> Tensor:
        """Return a row for every head: (B, h, m, d)."""
        return (self.weights(windows, sizes) @ windows).transpose(1, 2)  # (B, m, h, w) (B, m, w, d)

    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return self(x, padding_mask, values)  # a call, because offloaded weights are loaded in calls alone

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """Pool x to rows, (B, h, m, d), or values (B, h, n, d_h), if given, by the same map: (B, h, m, d_h)."""
        if values is None:
            return super().forward(x, padding_mask)
        weights = self.weights(*self.windows(x, padding_mask)).unsqueeze(-1)  # (B or 1, m or 1, h, w, 1)
        windows = self.windows(values.transpose(1, 2).flatten(2), padding_mask)[0]  # (B, m, w, d)
        heads = windows.unflatten(-1, values.shape[1::2]).transpose(2, 3)  # (B, m, h, w, d_h)
        # Summed element by element: many small matrix products take three times as long.
        return (weights * heads).sum(3).transpose(1, 2)


class AttentionPooling(PoolingPerHead):
    """Weighted mean of a window's unmasked positions for each head, with weights from a learned score.

        weights_i = softmax over the window (X u_i),   row_i = sum over the window of weights_i X

    ``weight`` (h, d), one u per head, starts at zero, which gives the plain mean. Costs 2 B n d h per call. It is the
    pooling of hierarchical attention networks (Yang et al. 2016, eq. 6 and 7) with a linear score.
    """

    SHARINGS = ("headwise", "key-value", "layerwise")
    TRAINABLE = True

    def __init__(self, config: AttentionConfig, layer: int):
        super().__init__(config, layer)
        self.weight = nn.Parameter(torch.empty(config.encoder_attention_heads, config.encoder_embed_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def weights(self, windows: Tensor, sizes: Tensor) -> Tensor:
        scores, real = F.linear(windows, self.weight), _real(windows.size(2), sizes)  # (B, m, w, h)
        return scores.masked_fill(~real.unsqueeze(-1), torch.finfo(scores.dtype).min).softmax(2).transpose(2, 3)


class SplitPooling(PoolingPerHead):
    """Mean of a part of the window, another part for each head.

    Head i of h averages the positions from floor(i r / h) to ceil((i + 1) r / h) of r unmasked ones. Parts overlap
    unless h divides r; if r < h heads may share a part. So a layer has up to h k different rows, mean pooling k.
    If r divides h every part is a single position. Costs B n h d per call. LongNet's heads divide the positions of a
    segment in a similar way, without pooling (Ding et al. 2023, arXiv 2307.02486, section 2.3).
    """

    def __init__(self, config: AttentionConfig, layer: int):
        super().__init__(config, layer)
        self.num_heads = config.encoder_attention_heads

    def weights(self, windows: Tensor, sizes: Tensor) -> Tensor:
        return adaptive_pooling(sizes, self.num_heads, windows.size(2), windows.dtype)
