"""The projections of Linformer: maps along the sequence, from n positions to fewer rows (Wang et al. 2020, section 4).

Dimensions: B batch, n sequence length, k projected length, m rows, w window, d embedding, h heads, d_h = d / h.

The paper's E and F, (k, n), are learned or random matrices. It also names convolution and pooling with kernel and
stride n / k, here w: a text of n positions gives m = ceil(n / w) rows, whatever n is.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from .base import AttentionConfig
from .blocks import into_blocks, leading

NOISE = 0.002  # standard deviation of the noise on the segment means: enough to tell the rows of E and F apart


def adaptive_pooling(max_positions: int, projected_length: int) -> Tensor:
    """(k, n): row j averages the positions from floor(j n / k) to ceil((j + 1) n / k), as adaptive pooling does."""
    n, k = max_positions, projected_length
    rows, positions = torch.arange(k).unsqueeze(1), torch.arange(n)
    start, end = rows * n // k, -(-(rows + 1) * n // k)
    return ((positions >= start) & (positions < end)) / (end - start)


class Projection(nn.Module, ABC):
    """E or F. Positions that are padding have no part in its result, however many there are."""

    SHARINGS: ClassVar[tuple[str, ...]]  # the levels that make sense, the default first
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ()  # those to choose from, the default first
    TRAINABLE: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def build(cls, config: AttentionConfig, layer: int) -> "Projection":
        """E or F of a layer, as the (validated) options say."""

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(B, n, d), zero at padded positions, and their mask (B, n) to (B, m, d)."""

    @abstractmethod
    def attended_rows(self, padding_mask: Tensor | None) -> Tensor | None:
        """(B, m), True for the rows that queries attend to; None for all of them."""


class LinearProjection(Projection):
    """A learned matrix: k rows for every length up to n; a row's weights stay with their positions.

    A shorter sequence uses the first columns. ``weight`` is (k, n), or (h, k, n) with one matrix per head. Costs
    B k n d per call.

    Args:
        max_positions: n, the longest sequence.
        projected_length: k, from 1 to n.
        num_heads: h for one matrix per head, None for one that all heads share.
        initialisation: how ``weight`` starts. ``segment-mean``: ``adaptive_pooling`` plus noise. ``normal``: normal
            with standard deviation 0.02, as the authors' code trains. ``johnson-lindenstrauss``: normal with variance
            1 / k, as in the proof of the paper's theorem 2.
    """

    SHARINGS = ("headwise", "none", "key-value", "layerwise")
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ("segment-mean", "normal", "johnson-lindenstrauss")

    def __init__(self, max_positions: int, projected_length: int, num_heads: int | None, initialisation: str | None):
        super().__init__()
        shape = (projected_length, max_positions) if num_heads is None else (num_heads, projected_length, max_positions)
        weight = torch.randn(shape)
        if initialisation == "segment-mean":
            weight = adaptive_pooling(max_positions, projected_length) + NOISE * weight
        elif initialisation == "normal":
            weight = 0.02 * weight
        elif initialisation == "johnson-lindenstrauss":
            weight = projected_length**-0.5 * weight
        else:
            choices = ", ".join(self.INITIALISATIONS)
            raise UserError(f"initialisation={initialisation} is not known; choose from {choices}")
        self.weight = nn.Parameter(weight, requires_grad=self.TRAINABLE)

    @classmethod
    def build(cls, config: AttentionConfig, layer: int) -> Projection:
        heads = config.encoder_attention_heads if config.sharing == "none" else None
        return cls(config.max_positions, config.projected_length[layer], heads, config.projection_init)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(B, n, d) -> (B, k, d), or (B, h, k, d) with one matrix per head; (B, h, n, d_h) -> (B, h, k, d_h)."""
        if x.dim() < self.weight.dim() + 1:
            x = x.unsqueeze(1)
        return leading(self.weight, x.size(-2), dim=-1) @ x  # a zero row of X adds nothing to E X

    def attended_rows(self, padding_mask: Tensor | None) -> None:
        return None


class RandomProjection(LinearProjection):
    """A matrix that is drawn once and never trained: the random projection of the paper's theory.

    It is in the state dict, so a checkpoint carries it.
    """

    INITIALISATIONS = ("johnson-lindenstrauss", "normal")
    TRAINABLE = False


class WindowProjection(Projection):
    """A row for every window of w = n / k positions, the last one as short as the text; there is no longest length.

    Costs B n d per call. Windows without any real position are hidden from attention.
    """

    def __init__(self, window: int):
        super().__init__()
        self.window = window

    @classmethod
    def build(cls, config: AttentionConfig, layer: int) -> Projection:
        return cls(config.max_positions // config.projected_length[layer])

    def attended_rows(self, padding_mask: Tensor | None) -> Tensor | None:
        # Padding stands on the right: a window holds something real where its first position does.
        return None if padding_mask is None else ~padding_mask[:, :: self.window]

    def windows(self, x: Tensor, beyond: float = 0.0) -> Tensor:
        """(B, n, ...) -> (B, m, w, ...), with the value `beyond` after the end."""
        return into_blocks(x, self.window, beyond)


class ConvProjection(WindowProjection):
    """Depthwise convolution with kernel and stride w, without bias.

    ``weight`` (w, d) starts as the mean of the window, plus noise.
    """

    SHARINGS = ("headwise", "key-value", "layerwise")  # its channels are not those of heads

    def __init__(self, window: int, embed_dim: int):
        super().__init__(window)
        self.weight = nn.Parameter(1 / window + NOISE * torch.randn(window, embed_dim))

    @classmethod
    def build(cls, config: AttentionConfig, layer: int) -> Projection:
        return cls(config.max_positions // config.projected_length[layer], config.encoder_embed_dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return (self.windows(x) * self.weight).sum(2)


class MeanPooling(WindowProjection):
    """The mean of a window's real positions."""

    SHARINGS = ("key-value", "layerwise")  # without parameters E and F cannot differ
    TRAINABLE = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        real = x.new_ones(1, x.size(1)) if padding_mask is None else (~padding_mask).to(x.dtype)
        share = self.windows(real).mean(2).clamp(min=1 / self.window)  # of a window's positions, the real ones
        return self.windows(x).mean(2) / share.unsqueeze(-1)


class MaxPooling(WindowProjection):
    """The largest of a window's real positions, channel by channel."""

    SHARINGS = ("key-value", "layerwise")
    TRAINABLE = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is None:
            return self.windows(x, -torch.inf).amax(2)
        largest = self.windows(x.masked_fill(padding_mask.unsqueeze(-1), -torch.inf), -torch.inf).amax(2)
        return largest.masked_fill(padding_mask[:, :: self.window].unsqueeze(-1), 0.0)


PROJECTIONS: dict[str, type[Projection]] = {
    "linear": LinearProjection,
    "random": RandomProjection,
    "conv": ConvProjection,
    "mean-pool": MeanPooling,
    "max-pool": MaxPooling,
}
