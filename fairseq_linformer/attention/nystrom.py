"""Nyströmformer: softmax attention by the Nyström method (Xiong et al. 2021, arXiv 2102.03902, section 3).

    softmax(Q K~^T / sqrt(d_h)) . softmax(Q~ K~^T / sqrt(d_h))^+ . softmax(Q~ K^T / sqrt(d_h)) V  +  conv(V)

The landmarks Q~ and K~ are the means of m segments of Q and K; ^+ is the pseudo-inverse, by iteration.

Dimensions: B batch, n sequence length, m landmarks, d embedding, h heads, d_h = d / h.
Cost per layer: O(B n d^2 + B n m d + B h m^3) time, O(B n d + B h n m) memory: linear in n.

Segments divide the length l without padding: position p is in segment floor(p m / l), so that their sizes differ by at
most one. If l <= m each position is a landmark and the method is exact. As in the authors' code nothing is inverted
then: the result is softmax attention plus the convolution.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import check
from .base import Attention, register_attention
from .blocks import convolution_per_head
from .options import AttentionConfig, Options, check_width, option


@dataclass
class NystromOptions(Options):
    """Options of ``nystrom``: the authors' for n = 512; for 4,096 they widen the convolution to 65."""

    nystrom_landmarks: int = option(
        64, "m: segment means that replace the keys; sequences of at most m positions are exact", smallest=1
    )
    nystrom_iterations: int = option(6, "steps of the iteration for the pseudo-inverse", smallest=1)
    nystrom_conv_width: int = option(
        33, "width of the depthwise convolution of the values, added to the output; 0 for none"
    )

    TEST_CASES: ClassVar = (
        {"nystrom_landmarks": 4, "nystrom_conv_width": 3},
        {"nystrom_landmarks": 6, "nystrom_conv_width": 0, "nystrom_iterations": 3},
    )

    def validate(self, config: AttentionConfig) -> None:
        super().validate(config)
        check_width("nystrom_conv_width", self.nystrom_conv_width)
        steps = self.nystrom_iterations  # float32 has no digits left after 30, see pseudo_inverse
        check("nystrom_iterations", steps, steps <= 12, "at most 12")


@register_attention("nystrom", NystromOptions)
class NystromAttention(Attention):
    """Attention of every position to m landmarks, and of these to every position.

    Attention dropout applies to the weights of the first softmax, those of positions for landmarks.
    """

    def __init__(self, config: AttentionConfig, options: NystromOptions, layer: int):
        super().__init__(config, options, layer)
        self.landmarks = options.nystrom_landmarks
        self.iterations = options.nystrom_iterations
        self.conv = convolution_per_head(self.num_heads, options.nystrom_conv_width)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, first_values: Tensor | None = None) -> Tensor:
        n = x.size(1)
        queries, keys, values = map(self.split_heads, self.project(self.zero_padding(x, padding_mask), first_values))

        positions = x.new_full((1,), n, dtype=torch.long) if padding_mask is None else (~padding_mask).sum(1)  # (B,)
        # Fewer landmarks for a short batch save work and change nothing, but would specialise a compiled graph.
        landmarks = self.landmarks if torch.compiler.is_compiling() else min(self.landmarks, n)
        means = segment_means(positions, landmarks, n, values.dtype).unsqueeze(1)  # (B, 1, m, n)
        query_landmarks, key_landmarks = means @ queries, means @ keys  # (B, h, m, d_h)

        real = None if padding_mask is None else ~padding_mask[:, None, None, :]  # (B, n) -> (B, 1, 1, n)
        landmark_outputs = F.scaled_dot_product_attention(query_landmarks, keys, values, real)  # (B, h, m, d_h)
        summaries = self._solve(query_landmarks, key_landmarks, landmark_outputs)
        # If each position is a landmark, summaries are its values, and the first softmax is all of attention.
        short = (positions <= self.landmarks)[:, None, None, None]  # (B,) -> (B, 1, 1, 1)
        summaries = torch.where(short, means @ values, summaries)

        present = (torch.arange(landmarks, device=x.device) < positions.unsqueeze(1))[:, None, None, :]  # (B, 1, 1, m)
        heads = self.attend(queries, key_landmarks, summaries, present)  # (B, h, n, d_h)
        if self.conv is not None:
            heads = heads + self.conv(values if real is None else values * real.transpose(-1, -2))
        return self.join_heads(heads)

    def _solve(self, queries: Tensor, keys: Tensor, landmark_outputs: Tensor) -> Tensor:
        """Return softmax(Q~ K~^T / sqrt(d_h))^+ times the landmarks' outputs, (B, h, m, d_h), at least in float32."""
        exact = torch.promote_types(landmark_outputs.dtype, torch.float32)
        with torch.autocast(landmark_outputs.device.type, enabled=False):
            scores = queries.to(exact) @ keys.to(exact).transpose(-1, -2) * self.head_dim**-0.5  # (B, h, m, m)
            inverse = pseudo_inverse(scores.softmax(-1), self.iterations)
            return (inverse @ landmark_outputs.to(exact)).to(landmark_outputs.dtype)


def segment_means(lengths: Tensor, segments: int, n: int, dtype: torch.dtype) -> Tensor:
    """Return weights of segment means for lengths l, (B,): row j averages the positions of segment j, (B, m, n).

    If l < m there are l segments of one position each, and the rows from l on are zero.
    """
    position, length = torch.arange(n, device=lengths.device), lengths.unsqueeze(1)
    segment = position * length.clamp(max=segments) // length.clamp(min=1)  # (B, n)
    segment = segment.masked_fill(position >= length, -1)
    members = segment.unsqueeze(1) == torch.arange(segments, device=lengths.device).unsqueeze(1)  # (B, m, n)
    return members.to(dtype) / members.sum(-1, keepdim=True).clamp(min=1)


def pseudo_inverse(kernel: Tensor, iterations: int) -> Tensor:
    """Return the Moore-Penrose inverse of matrices whose rows sum to one, (..., m, m), by the paper's iteration.

    It starts at A^T / (|A|_1 |A|_inf), with the norms of each matrix; the authors' first code took the maximum over the
    batch, so that results depended on the other sequences. Each step has third order. Each also multiplies rounding
    errors by 13/4 where the kernel has no singular value: float32 has four digits after twelve steps, none after 30.
    """
    identity = torch.eye(kernel.size(-1), dtype=kernel.dtype, device=kernel.device)
    inverse = kernel.transpose(-1, -2) / kernel.sum(-2, keepdim=True).amax(-1, keepdim=True)
    for _ in range(iterations):
        product = kernel @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse
