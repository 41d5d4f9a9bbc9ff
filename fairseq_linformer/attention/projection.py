"""The projections of Linformer: maps along the sequence, from n positions to fewer rows (Wang et al. 2020, section 4).

Dimensions: B batch, n sequence length, k projected length, m rows, d embedding, h heads, d_h = d / h.

Here are the paper's E and F, (k, n), learned or random matrices; ``pooling.py`` has what needs none.

A text of l tokens uses the first l columns of a matrix, and fills about k l / n windows. With ``adaptive_length`` it
fills k, whatever l is: windows divide the text itself, and a matrix works on the text stretched to n positions. At
l = n both are the same.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import UserError
from .base import AttentionConfig
from .blocks import leading

NOISE = 0.002  # standard deviation of the noise on the segment means: enough to tell the rows of E and F apart


def adaptive_pooling(sizes: Tensor, rows: int, length: int, dtype: torch.dtype) -> Tensor:
    """Weights of adaptive pooling: row j of k averages the positions from floor(j s / k) to ceil((j + 1) s / k) of s.

    Args:
        sizes: (...,), s; where it is 0 the weights are 0.
        rows: k.
        length: positions to have weights for, s or more.
        dtype: of the weights.

    Returns:
        (..., k, length).
    """
    row, position = torch.arange(rows, device=sizes.device), torch.arange(length, device=sizes.device)
    start, end = sizes.unsqueeze(-1) * row // rows, (sizes.unsqueeze(-1) * (row + 1) + rows - 1) // rows  # (..., k)
    own = (position >= start.unsqueeze(-1)) & (position < end.unsqueeze(-1))
    return own.to(dtype) / (end - start).clamp(min=1).unsqueeze(-1)


def text_lengths(length: int, padding_mask: Tensor | None, device: torch.device) -> Tensor:
    """(B,), or (1,) where nothing is padded: real positions of each row, at least 1."""
    if padding_mask is None:
        return torch.full((1,), length, device=device)
    return (~padding_mask).sum(1).clamp(min=1)


def stretch_columns(matrix: Tensor, lengths: Tensor, length: int) -> Tensor:
    """E S, so that (E S) X = E (S X), where S stretches the l first rows of X to n by linear interpolation.

    Row p of S X lies at p (l - 1) / (n - 1) of X: both ends stay ends, and S is the identity at l = n. Costs
    B k n, where the product with X costs B k l d.

    Args:
        matrix: E, (..., k, n).
        lengths: (B,), l of each text.
        length: columns of the result; the largest l, or more.

    Returns:
        (B, ..., k, length).
    """
    n = matrix.size(-1)
    place = torch.arange(n, device=matrix.device) * (lengths.unsqueeze(1) - 1)  # (B, n), times n - 1
    before = place // max(1, n - 1)
    fraction = (place - before * max(1, n - 1)).to(matrix.dtype) / max(1, n - 1)
    shape = (lengths.size(0), *(1,) * (matrix.dim() - 1), n)
    sizes = (lengths.size(0), *matrix.shape)
    stretched = matrix.new_zeros((*sizes[:-1], length))
    for columns, share in ((before, 1 - fraction), ((before + 1).clamp(max=length - 1), fraction)):
        stretched = stretched.scatter_add(-1, columns.view(shape).expand(sizes), share.view(shape) * matrix)
    return stretched


class Projection(nn.Module, ABC):
    """E or F. Positions that are padding have no part in its result, however many there are."""

    SHARINGS: ClassVar[tuple[str, ...]]  # the levels that make sense, the default first
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ()  # those to choose from, the default first
    TRAINABLE: ClassVar[bool] = True
    AVERAGES: ClassVar[bool] = False  # whether the weights of a row sum to 1: W E X + b is then E (W X + b)

    @classmethod
    @abstractmethod
    def build(cls, config: AttentionConfig, layer: int) -> "Projection":
        """E or F of a layer, as the (validated) options say."""

    def reset_parameters(self) -> None:
        """Sets the parameters to their start, at random where they have a random one."""

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(B, n, d), zero at padded positions, and their mask (B, n) to (B, m, d)."""

    @abstractmethod
    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Values (B, h, n, d_h), zero at padded positions, by the map that ``forward`` is for x: (B, h, m, d_h)."""

    @abstractmethod
    def attended_rows(self, padding_mask: Tensor | None) -> Tensor | None:
        """(B, m), True for the rows that queries attend to; None for all of them."""


class LinearProjection(Projection):
    """A learned matrix, c W: k rows for every length up to n; a row's weights stay with their positions.

    A shorter sequence uses the first columns. ``weight``, W, is (k, n), or (h, k, n) with one matrix per head. Costs
    B k n d per call.

    The multiplier c is a constant. Adam's steps have the size of the learning rate whatever the gradient, so W moves by
    it and the matrix by c times as much. A row of the matrix sums over n positions: without a small c its steps are too
    large where n is (Yang and Hu 2021, arXiv 2203.03466: for a fan-in of n they must shrink as 1 / n, beside those of a
    matrix of fan-in d). c is kept in checkpoints; those of before, and of fairseq's example, have c = 1.

    Args:
        max_positions: n, the longest sequence.
        projected_length: k, from 1 to n.
        num_heads: h for one matrix per head, None for one that all heads share.
        initialisation: how c W starts. ``segment-mean``: ``adaptive_pooling`` plus noise. ``normal``: normal
            with standard deviation 0.02, as the authors' code trains. ``johnson-lindenstrauss``: normal with variance
            1 / k, as in the proof of the paper's theorem 2.
        multiplier: c.
        adaptive: whether a text of any length is stretched to n positions, by linear interpolation.
    """

    multiplier: Tensor

    SHARINGS = ("headwise", "none", "key-value", "layerwise")
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ("segment-mean", "normal", "johnson-lindenstrauss")

    def __init__(
        self,
        max_positions: int,
        projected_length: int,
        num_heads: int | None,
        initialisation: str | None,
        multiplier: float = 1.0,
        adaptive: bool = False,
    ):
        super().__init__()
        self.adaptive = adaptive
        if initialisation not in LinearProjection.INITIALISATIONS:
            choices = ", ".join(LinearProjection.INITIALISATIONS)
            raise UserError(f"initialisation={initialisation} is not known; choose from {choices}")
        self.initialisation = initialisation
        shape = (projected_length, max_positions) if num_heads is None else (num_heads, projected_length, max_positions)
        self.register_buffer("multiplier", torch.tensor(multiplier))
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=self.TRAINABLE)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        k, n = self.weight.shape[-2:]
        self.weight.normal_()
        if self.initialisation == "segment-mean":
            means = adaptive_pooling(torch.tensor(n, device=self.weight.device), k, n, self.weight.dtype)
            self.weight.mul_(NOISE).add_(means)
        else:
            self.weight.mul_(0.02 if self.initialisation == "normal" else k**-0.5)
        self.weight.div_(self.multiplier)

    @classmethod
    def build(cls, config: AttentionConfig, layer: int) -> Projection:
        heads = config.encoder_attention_heads if config.sharing == "none" else None
        multiplier = config.projection_multiplier or cls.default_multiplier(config)
        sizes = (config.max_positions, config.projected_length[layer], heads)
        return cls(*sizes, config.projection_init, multiplier, config.adaptive_length)

    @classmethod
    def default_multiplier(cls, config: AttentionConfig) -> float:
        """c = min(1, d / (4 n)): fan-in d beside fan-in n, and a quarter of it (measured in docs/quality.md)."""
        return min(1.0, config.encoder_embed_dim / (4 * config.max_positions))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """(B, n, d) -> (B, k, d), or (B, h, k, d) with one matrix per head; (B, h, n, d_h) -> (B, h, k, d_h)."""
        matrix = self._matrix(x.size(-2), padding_mask)
        if self.weight.dim() == 3 and x.dim() == 3:
            x = x.unsqueeze(1)  # the same for all heads
        elif matrix.dim() == 3 and x.dim() == 4 and self.weight.dim() == 2:
            matrix = matrix.unsqueeze(1)
        return self.multiplier * (matrix @ x)  # a zero row of X adds nothing to E X

    def _matrix(self, length: int, padding_mask: Tensor | None) -> Tensor:
        """W for sequences of that many positions: (k, length) or (h, k, length), before it (B,) if texts differ."""
        longest = self.weight.size(-1)
        if not self.adaptive or (padding_mask is None and length == longest):
            return leading(self.weight, length, dim=-1)
        return stretch_columns(self.weight, text_lengths(length, padding_mask, self.weight.device), length)

    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return self(values, padding_mask)

    def attended_rows(self, padding_mask: Tensor | None) -> None:
        return None


class RandomProjection(LinearProjection):
    """A matrix that is drawn once and never trained: the random projection of the paper's theory.

    It is in the state dict, so a checkpoint carries it.
    """

    INITIALISATIONS = ("johnson-lindenstrauss", "normal")
    TRAINABLE = False

    @classmethod
    def default_multiplier(cls, config: AttentionConfig) -> float:
        return 1.0  # nothing moves it
