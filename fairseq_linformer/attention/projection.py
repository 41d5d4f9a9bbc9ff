"""Projections of Linformer: maps along the sequence, from n positions to fewer (Wang et al. 2020, section 4).

Here are the paper's learned E and F, (k, n), and random ones; ``pooling.py`` has projections without a matrix.

Dimensions: B batch, n sequence length, k projected length, m projected positions, d embedding, h heads, d_h = d / h.
Cost: B k n d per call, with one matrix per head B h k n d.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from .adaptive import stretch_columns, text_lengths
from .blocks import narrow_prefix
from .options import AttentionConfig

NOISE = 0.002  # standard deviation of the noise on the segment means: enough to distinguish the rows of E and F


class Projection(nn.Module, ABC):
    """E or F, whose result does not depend on padding."""

    SHARINGS: ClassVar[tuple[str, ...]]  # the allowed levels, the default first
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ()  # the allowed values, the default first
    TRAINABLE: ClassVar[bool] = True
    ROWS_ARE_MEANS: ClassVar[bool] = False  # True if the weights of a row sum to 1: W E X + b is then E (W X + b)

    @abstractmethod
    def __init__(self, config: AttentionConfig, layer: int):
        """Build E or F of a layer, numbered from 0, from the (validated) options."""
        super().__init__()

    def reset_parameters(self) -> None:
        """Initialise the parameters."""

    @abstractmethod
    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Map (B, n, d), zero at padded positions, and their mask (B, n) to (B, m, d)."""

    @abstractmethod
    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Map values (B, h, n, d_h), zero at padded positions, as ``forward`` maps x: (B, h, m, d_h)."""

    @abstractmethod
    def attended_rows(self, padding_mask: Tensor | None) -> Tensor | None:
        """Return True for the projected positions that queries attend to, (B, m); None for all."""


class LinearProjection(Projection):
    """Learned matrix c W: k rows for every length up to n; a row's weights belong to fixed positions.

    A shorter sequence uses the first columns. ``weight``, W, is (k, n), or (h, k, n) with one matrix per head. Costs B
    k n d per call.

    The multiplier c is a constant. Adam's steps have the size of the learning rate whatever the gradient: W changes by
    it, and the matrix by c times as much. A row of the matrix sums over n positions, so without a small c its steps are
    too large if n is (Yang and Hu 2021, arXiv 2203.03466: for a fan-in of n they must shrink as 1 / n, relative to a
    matrix of fan-in d). c is kept in checkpoints; those of fairseq's example have c = 1.

    ``projection_init`` sets the initial c W:

    ===================== =====================================================================
    segment-mean          row j averages the j-th of k equal segments, plus noise
    normal                normal with standard deviation 0.02, as in the authors' code
    johnson-lindenstrauss normal with variance 1 / k, as in the proof of the paper's theorem 2
    ===================== =====================================================================

    With ``adaptive_length`` a text of any length is stretched to n positions, by linear interpolation.
    """

    multiplier: Tensor

    SHARINGS = ("headwise", "none", "key-value", "layerwise")
    INITIALISATIONS: ClassVar[tuple[str, ...]] = ("segment-mean", "normal", "johnson-lindenstrauss")

    def __init__(self, config: AttentionConfig, layer: int):
        super().__init__(config, layer)
        self.adaptive = config.adaptive_length
        self.initialisation = cast(str, config.projection_init)
        per_head = (config.encoder_attention_heads,) if config.sharing == "none" else ()
        # A quarter of fan-in d over fan-in n (measured in docs/quality.md), unless the matrix is not trained.
        default = min(1.0, config.encoder_embed_dim / (4 * config.max_positions)) if self.TRAINABLE else 1.0
        self.initial_multiplier = config.projection_multiplier or default
        self.register_buffer("multiplier", torch.tensor(self.initial_multiplier))
        matrix = torch.empty(*per_head, config.projected_length[layer], config.max_positions)
        self.weight = nn.Parameter(matrix, requires_grad=self.TRAINABLE)
        self.reset_parameters()

    def reset_buffers(self) -> None:
        """Set the multiplier, by which ``reset_parameters`` divides."""
        self.multiplier.fill_(self.initial_multiplier)

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

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Project (B, n, d) -> (B, k, d), with one matrix per head (B, h, k, d); (B, h, n, d_h) -> (B, h, k, d_h)."""
        matrix = self._matrix(x.size(-2), padding_mask)
        if self.weight.dim() == 3 and x.dim() == 3:
            x = x.unsqueeze(1)  # the same for all heads
        elif matrix.dim() == 3 and x.dim() == 4 and self.weight.dim() == 2:
            matrix = matrix.unsqueeze(1)
        return self.multiplier * (matrix @ x)  # a zero row of X adds nothing to E X

    def _matrix(self, length: int, padding_mask: Tensor | None) -> Tensor:
        """Return W for that length: (k, length) or (h, k, length), with (B,) in front if texts differ."""
        longest = self.weight.size(-1)
        if not self.adaptive or (padding_mask is None and length == longest):
            return narrow_prefix(self.weight, length, dim=-1)
        return stretch_columns(self.weight, text_lengths(length, padding_mask, self.weight.device), length)

    def project_values(self, values: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        return self(values, padding_mask)

    def attended_rows(self, padding_mask: Tensor | None) -> None:
        return None


class RandomProjection(LinearProjection):
    """Random projection of the paper's theorem 2: a matrix that is drawn once and never trained."""

    INITIALISATIONS = ("johnson-lindenstrauss", "normal")
    TRAINABLE = False


def adaptive_pooling(sizes: Tensor, rows: int, length: int, dtype: torch.dtype) -> Tensor:
    """Return the weights of adaptive pooling: row j averages positions floor(j s / k) to ceil((j + 1) s / k) - 1.

    Args:
        sizes: s, lengths of texts, (...,); the weights are 0 where s is 0.
        rows: k.
        length: number of columns; the largest s, or more.
        dtype: data type of the weights.

    Returns:
        (..., k, length).
    """
    row, position = (torch.arange(number, dtype=sizes.dtype, device=sizes.device) for number in (rows, length))
    start, end = sizes.unsqueeze(-1) * row // rows, (sizes.unsqueeze(-1) * (row + 1) + rows - 1) // rows  # (..., k)
    averaged = (position >= start.unsqueeze(-1)) & (position < end.unsqueeze(-1))
    return averaged.to(dtype) / (end - start).clamp(min=1).unsqueeze(-1)
