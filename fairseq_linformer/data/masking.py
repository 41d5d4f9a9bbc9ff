"""Fewer masks as a training goes on: masked positions whose token is shown again.

fairseq's dataset masks a fixed share of positions, and its workers read ahead of the update that a batch is for. So it
masks the largest share, and here, where the update is known, some of them are taken back.
"""

import torch
from torch import Tensor

MIX_1, MIX_2 = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # splitmix64's constants, as signed integers
GOLDEN = -0x61C8864680B583EB


def share_of_masks(first: float, last: float, update: int, updates: int) -> float:
    """The share of positions that are masked in an update: linear from `first` to `last` over the updates of a run."""
    return first + (last - first) * min(1.0, update / updates)


def thin_masks(
    tokens: Tensor,
    targets: Tensor,
    rows: Tensor,
    kept: float,
    seed: int,
    pad: int,
    word_starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Keeps each mask with a probability; which ones depends on row, position and seed alone.

    So they are the same on any number of ranks, and again where a run resumes. Nothing leaves the device.

    Args:
        tokens: (B, n), masked.
        targets: (B, n), the token of a masked position and `pad` elsewhere.
        rows: (B,), number of each row in its dataset.
        kept: the probability, 0 to 1.
        seed: another for each update.
        pad: fairseq's padding index.
        word_starts: (V,), whether a token begins a word, to keep or take back the masks of a word together.

    Returns:
        Tokens and targets, new ones.
    """
    positions = torch.arange(tokens.size(1), device=tokens.device)
    if word_starts is not None:
        shown = torch.where(targets.ne(pad), targets, tokens)
        positions = torch.where(word_starts[shown], positions, 0).cummax(1).values  # (B, n): of the word's first token
    taken_back = targets.ne(pad) & (_uniform(rows.to(tokens.device).unsqueeze(1), positions, seed) >= kept)
    return torch.where(taken_back, targets, tokens), targets.masked_fill(taken_back, pad)


def _uniform(rows: Tensor, positions: Tensor, seed: int) -> Tensor:
    """Numbers in [0, 1) by splitmix64 (Steele et al. 2014): (B, 1) and (n,) or (B, n) to (B, n)."""
    state = _mixed(_mixed(rows + seed * GOLDEN % 2**62) + positions)
    return _shifted(state, 11).to(torch.float64) * 2.0**-53


def _mixed(state: Tensor) -> Tensor:
    state = state * GOLDEN + GOLDEN
    state = (state ^ _shifted(state, 30)) * MIX_1
    state = (state ^ _shifted(state, 27)) * MIX_2
    return state ^ _shifted(state, 31)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """To the right, zeros from the left, as for unsigned integers."""
    return (state >> bits) & (2 ** (64 - bits) - 1)
