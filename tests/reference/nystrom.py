"""Nyströmformer as the paper writes it (arXiv 2102.03902): the three softmax matrices in full, segment by segment."""

import torch

from .naive_attention import attend, join_heads


def landmarks(rows, number):
    """Return the means of segments whose lengths differ by at most one: (n, d_h) -> (number, d_h)."""
    segment = torch.tensor([position * number // len(rows) for position in range(len(rows))])
    return torch.stack([rows[segment == index].mean(0) for index in range(number)])


def weights(queries, keys):
    return attend(queries, keys, torch.eye(len(keys), dtype=keys.dtype))


def pseudo_inverse(matrix, iterations):
    """The paper's iteration: Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from A^T over the two norms of A."""
    identity = torch.eye(len(matrix), dtype=matrix.dtype)
    z = matrix.T / (matrix.abs().sum(0).amax() * matrix.abs().sum(1).amax())
    for _ in range(iterations):
        az = matrix @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z


def convolve(kernel, values):
    """One kernel for all channels of a head, zeros beyond both ends: (width,), (n, d_h) -> (n, d_h)."""
    rows = []
    for position in range(len(values)):
        taps = [(tap, position + offset - len(kernel) // 2) for offset, tap in enumerate(kernel)]
        rows.append(sum(tap * values[index] for tap, index in taps if 0 <= index < len(values)))
    return torch.stack(rows)


def reference(module, x):
    def attend_head(head, queries, keys, values):
        if len(x) <= module.landmarks:
            out = attend(queries, keys, values)
        else:
            q_landmarks, k_landmarks = landmarks(queries, module.landmarks), landmarks(keys, module.landmarks)
            inverse = pseudo_inverse(weights(q_landmarks, k_landmarks), module.iterations)
            out = weights(queries, k_landmarks) @ inverse @ weights(q_landmarks, keys) @ values
        return out if module.conv is None else out + convolve(module.conv.weight[head, 0, :, 0], values)

    return join_heads(module, x, attend_head)
