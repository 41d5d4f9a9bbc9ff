"""What the rows of E and F look at: their own segment, a stride, everywhere; and which of them are dead.

Dimensions: n sequence length, k rows, h heads.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..attention import Attention
from ..attention.linformer import ProjectedAttention
from ..attention.projection import LinearProjection

DEAD = 0.1  # a row is dead with a norm below this part of the median row's, or attention below this part of the mean

WHAT = {
    "norm": "of the row",
    "local": "share of its squared norm in its own segment, positions j n / k to (j + 1) n / k; 1 / k by chance",
    "width": "participation ratio (sum of squares)^2 / sum of fourth powers, in positions: 1 for one, n for all",
    "uniform": "share of its squared norm along the constant row: 1 for the mean of all positions",
    "periodic": "largest share of one frequency in its power, the constant left out",
    "period": "of that frequency, in positions",
    "share": "of attention that goes to rows, mean over heads, positions and rows of text; the others go to the window",
    "use": "share of attention that goes to the row, as a multiple of the mean row's",
    "dead": f"rows with a norm below {DEAD:g} of the median row's",
    "unused": f"rows with a use below {DEAD:g}",
}
STATISTICS = ("local", "width", "uniform", "periodic")  # those that are drawn


def row_statistics(matrix: Tensor) -> dict[str, Tensor]:
    """The statistics of WHAT of each row, (k,) each, of a matrix (k, n)."""
    k, n = matrix.shape
    matrix = matrix.double()
    squares = matrix.square()
    total = squares.sum(1).clamp(min=torch.finfo(torch.double).tiny)
    row, position = torch.arange(k, device=matrix.device), torch.arange(n, device=matrix.device)
    own = (position >= (row * n // k)[:, None]) & (position < (((row + 1) * n + k - 1) // k)[:, None])
    power = torch.fft.rfft(matrix - matrix.mean(1, keepdim=True)).abs().square()
    power[:, 1 : (n + 1) // 2] *= 2  # frequencies that stand for two, one of them negative
    peak = power[:, 1:].max(1) if n > 1 else power.max(1)
    return {
        "norm": total.sqrt(),
        "local": (squares * own).sum(1) / total,
        "width": squares.sum(1).square() / squares.square().sum(1).clamp(min=torch.finfo(torch.double).tiny),
        "uniform": matrix.sum(1).square() / (n * total),
        "periodic": peak.values / power.sum(1).clamp(min=torch.finfo(torch.double).tiny),
        "period": n / (peak.indices + 1.0),
    }


def dead_rows(norms: Tensor) -> list[int]:
    """Which rows have a norm below DEAD of the median's: numbers from 0."""
    return (norms <= DEAD * norms.median()).nonzero().flatten().tolist()


class Matrix(NamedTuple):
    """One of E and F.

    Attributes:
        letters: E, F, or E = F where keys and values share it.
        layer: None where all layers share it.
        head: None where all heads share it.
        values: (k, n), the multiplier included.
    """

    letters: str
    layer: int | None
    head: int | None
    values: Tensor


def describe_matrices(attentions: list[Attention]) -> list[dict[str, Any]]:
    """Statistics of every matrix of a model once, however many layers and heads share it, in the order of layers."""
    described = []
    for matrix in distinct_matrices(attentions):
        statistics = row_statistics(matrix.values)
        k, n = matrix.values.shape
        described.append(
            {
                "letters": matrix.letters,
                "layer": matrix.layer,
                "head": matrix.head,
                "k": k,
                "n": n,
                "dead": dead_rows(statistics["norm"]),
                "median": {kind: float(statistics[kind].median()) for kind in STATISTICS},
                "rows": {kind: values.tolist() for kind, values in statistics.items()},
            }
        )
    return described


def distinct_matrices(attentions: list[Attention]) -> Iterator[Matrix]:
    """The matrices of a model; nothing for what has none."""
    projected = [attention for attention in attentions if isinstance(attention, ProjectedAttention)]
    users = Counter(id(attention.key_projection) for attention in projected)
    seen: set[int] = set()
    for layer, attention in enumerate(projected):
        is_one = attention.key_projection is attention.value_projection
        for letter, projection in (("E", attention.key_projection), ("F", attention.value_projection)):
            if not isinstance(projection, LinearProjection) or id(projection) in seen:
                continue
            seen.add(id(projection))
            letters, place = "E = F" if is_one else letter, None if users[id(projection)] > 1 else layer
            values = (projection.multiplier * projection.weight).detach()
            if values.dim() == 2:
                yield Matrix(letters, place, None, values)
            else:
                yield from (Matrix(letters, place, head, own) for head, own in enumerate(values))
