"""Rotary and ALiBi positions as their papers write them: a pair of dimensions is a complex number."""

import torch


def rotated(module, rows, at):
    """RoFormer, eq. 13: multiply each pair of rows (m, d_h) of the positions `at` by e^(i p theta)."""
    t, half = module.rotary_dim, module.rotary_dim // 2
    if not t:
        return rows
    frequencies = module.rotary_base ** (-2 * torch.arange(half, dtype=rows.dtype) / t)
    angles = torch.outer(torch.tensor(at, dtype=rows.dtype), frequencies)
    pairs = torch.complex(rows[:, :half], rows[:, half:t]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag, rows[:, t:]], dim=1)


def without_rotary(module, rows):
    """Return rows (m, d_h) without a position: zeros in the rotary dimensions."""
    return rows * (torch.arange(rows.size(1)) >= module.rotary_dim)


def slopes(heads):
    """The authors' get_slopes (ofirpress/attention_with_linear_biases)."""
    power = 2 ** (heads.bit_length() - 1)
    first = [2 ** (-8 * a / power) for a in range(1, power + 1)]
    return first if power == heads else first + slopes(2 * power)[0::2][: heads - power]


def bias(module, head, position, at):
    """Return what ALiBi adds to the scores of a query with the keys at these positions: (m,)."""
    slope = slopes(module.num_heads)[head] if module.alibi else 0.0
    return torch.tensor([-slope * abs(position - key) for key in at], dtype=torch.float64)
