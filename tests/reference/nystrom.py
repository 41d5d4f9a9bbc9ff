"""Nyströmformer as the paper writes it (arXiv 2102.03902): the three softmax matrices in full, segment by segment."""

import torch
from torch import Tensor

from fairseq_linformer.attention.nystrom import NystromAttention

from .naive_attention import attend, heads_of


def landmarks(rows: Tensor, number: int) -> Tensor:
    """The means of segments whose lengths differ by one at most: (n, d_h) -> (number, d_h)."""
    segments: list[list[Tensor]] = [[] for _ in range(number)]
    for position, row in enumerate(rows):
        segments[position * number // len(rows)].append(row)
    return torch.stack([sum(segment) / len(segment) for segment in segments])


def weights(queries: Tensor, keys: Tensor) -> Tensor:
    return attend(queries, keys, torch.eye(len(keys), dtype=keys.dtype))


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """The paper's iteration: Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from A^T over the two norms of A."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    largest_column = max(sum(abs(entry) for entry in column) for column in matrix.T)
    largest_row = max(sum(abs(entry) for entry in row) for row in matrix)
    z = matrix.T / (largest_column * largest_row)
    for _ in range(iterations):
        az = matrix @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z


def convolve(kernel: Tensor, values: Tensor) -> Tensor:
    """One kernel for all channels of a head, zeros beyond both ends: (width,), (n, d_h) -> (n, d_h)."""
    rows = []
    for position in range(len(values)):
        places = [(tap, position + offset - len(kernel) // 2) for offset, tap in enumerate(kernel)]
        rows.append(sum(tap * values[place] for tap, place in places if 0 <= place < len(values)))
    return torch.stack(rows)


def reference(module: NystromAttention, x: Tensor) -> Tensor:
    heads = []
    for i, ((wq, bq), (wk, bk), (wv, bv)) in enumerate(
        zip(*(heads_of(module, linear) for linear in (module.q_proj, module.k_proj, module.v_proj)), strict=True)
    ):
        queries, keys = x @ wq.T + bq, x @ wk.T + bk
        values = x @ wv.T + bv
        if len(x) <= module.landmarks:
            head = attend(queries, keys, values)
        else:
            q_landmarks, k_landmarks = landmarks(queries, module.landmarks), landmarks(keys, module.landmarks)
            inverse = pseudo_inverse(weights(q_landmarks, k_landmarks), module.iterations)
            head = weights(queries, k_landmarks) @ inverse @ weights(q_landmarks, keys) @ values
        heads.append(head if module.conv is None else head + convolve(module.conv.weight[i, 0, :, 0], values))
    return torch.cat(heads, dim=1) @ module.out_proj.weight.T + module.out_proj.bias
