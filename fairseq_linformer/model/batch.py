"""Batches of token ids: checks, padding, and positions whose features are needed.

Dimensions: B batch, n sequence length, d embedding. This module does not import fairseq.
"""

import torch
from torch import Tensor

from ..errors import UserError

# N of B x n positions: a boolean mask (B, n); flat indices (N,) into B x n; or (slice(None), i), where N = B.
Positions = Tensor | tuple[slice, int]


def select_positions(x: Tensor, positions: Positions | None) -> Tensor:
    """Select N positions: (B, n, d) -> (N, d). Indices, unlike a boolean mask, need no synchronization with a GPU."""
    if positions is None:
        return x
    numbered = isinstance(positions, Tensor) and positions.dim() == 1
    return (x.flatten(0, 1) if numbered else x)[positions]


def mean_over_text(features: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Average features (B, n, d) over unpadded positions: (B, d); the mask is (B, n), None without padding."""
    if padding_mask is None:
        return features.mean(1)
    is_token = ~padding_mask.unsqueeze(-1)
    sums = (features * is_token).sum(1, dtype=torch.promote_types(features.dtype, torch.float32))
    return (sums / is_token.sum(1)).to(features.dtype)


def may_be_padded(padding_mask: Tensor) -> bool:
    """Return True if a position is padding; on a GPU, to avoid synchronization, and when compiled, always True."""
    return padding_mask.device.type != "cpu" or torch.compiler.is_compiling() or bool(padding_mask.any())


def misplaced_padding(padding_mask: Tensor) -> int | None:
    """Return the first sequence of (B, n) with padding before a token, or without a token; None if there is none.

    Always None on a GPU, and while PyTorch compiles.
    """
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    misplaced = padding_mask[:, 0] | (padding_mask[:, :-1] & ~padding_mask[:, 1:]).any(1)
    return int(misplaced.nonzero()[0]) if bool(misplaced.any()) else None


def check_length(length: int, longest: int) -> None:
    """Reject a sequence of more than `longest` tokens."""
    if length > longest:
        raise UserError(f"a sequence of {length} tokens is longer than max_positions={longest}")


def check_tokens(tokens: Tensor, padding_mask: Tensor, vocabulary: int, longest: int) -> None:
    """Reject token ids (B, n) with n above `longest`.

    On the CPU also reject ids from `vocabulary` on, and padding before a token: these tests would synchronize with a
    GPU. The padding mask (B, n) is True where padded.
    """
    check_length(tokens.size(1), longest)
    if tokens.device.type != "cpu" or torch.compiler.is_compiling():
        return
    smallest, largest = (int(extreme) for extreme in tokens.aminmax())
    if smallest < 0 or largest >= vocabulary:
        invalid_id = smallest if smallest < 0 else largest
        raise UserError(f"token id {invalid_id} is not in the vocabulary: ids are from 0 to {vocabulary - 1}")
    index = misplaced_padding(padding_mask)
    if index is not None:
        raise UserError(f"sequence {index} has padding before a token, or no token: padding must be on the right")
