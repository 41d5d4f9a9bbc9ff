"""Rotary and ALiBi positions as their papers write them: one position, one pair of dimensions at a time."""

import cmath

import torch
from torch import Tensor

from fairseq_linformer.attention import Attention


def rotated(module: Attention, rows: Tensor, at: list[int]) -> Tensor:
    """RoFormer, eq. 13: (m, d_h) of the positions `at`; a pair is a complex number, multiplied by e^(i p theta)."""
    half = module.rotary_dim // 2
    out = []
    for row, position in zip(rows, at, strict=True):
        numbers = [row[m + half] * 1j + row[m] for m in range(half)]
        angles = [position * module.rotary_base ** (-2 * m / module.rotary_dim) for m in range(half)]
        numbers = [number * cmath.exp(1j * angle) for number, angle in zip(numbers, angles, strict=True)]
        pairs = [number.real for number in numbers] + [number.imag for number in numbers]
        out.append(torch.stack([*pairs, *row[module.rotary_dim :]]))
    return torch.stack(out) if out else rows


def without_rotary(module: Attention, rows: Tensor) -> Tensor:
    """Rows (m, d_h) that are no positions: what would turn is 0."""
    out = [torch.cat([0 * row[: module.rotary_dim], row[module.rotary_dim :]]) for row in rows]
    return torch.stack(out) if out else rows


def slopes(heads: int) -> list[float]:
    """The authors' get_slopes (ofirpress/attention_with_linear_biases)."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    own = [2 ** (-8 * a / power) for a in range(1, power + 1)]
    return own if power == heads else own + slopes(2 * power)[0::2][: heads - power]


def bias(module: Attention, head: int, position: int, at: list[int]) -> Tensor:
    """What is added to the scores of a query with the keys at these positions: (m,)."""
    slope = slopes(module.num_heads)[head] if module.alibi else 0.0
    return torch.tensor([-slope * abs(position - other) for other in at], dtype=torch.float64)
