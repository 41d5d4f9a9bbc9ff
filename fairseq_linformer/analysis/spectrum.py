"""How low the rank of attention is: singular values of its maps, and the k that the paper's theorems ask for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

SHARES = (0.9, 0.99)  # of the sum of singular values, which the effective rank reaches
PAPERS_INDEX = 128  # of the value in the paper's heat map (figure 1, right), at n = 512
EPSILONS = (0.1, 0.3, 0.5, 2 / 3)  # theorem 1 asks least at 2 / 3


def cumulative(values: Tensor) -> Tensor:
    """Normalised cumulative singular values, as in the paper's figure 1: (n,), largest first -> (n,), rising to 1.

    They are sums of singular values, not of their squares.
    """
    return values.double().cumsum(0) / values.double().sum()


def effective_rank(curve: Tensor, share: float) -> int:
    """How many singular values add up to that share of all: (n,) -> 1 to n."""
    return min(int((curve < share).sum()) + 1, len(curve))


def heat_index(n: int, chosen: Sequence[int] | None) -> int:
    """Which value the heat map shows, counted from 1: the 128th as in the paper, the n / 4th where n < 512.

    Of a model with k it is at most the k / 2th: the values up to the k-th are all there are, whatever it has learned.
    """
    return max(1, min(PAPERS_INDEX, n // 4, *(k // 2 for k in chosen or ())))


def theorem_1(n: int, epsilon: float) -> float:
    """k = 5 ln n / (e^2 - e^3): so many rows keep P w up to a relative error of e (arXiv 2006.04768, theorem 1)."""
    return 5 * math.log(n) / (epsilon**2 - epsilon**3)


def theorem_2(n: int, d: int, epsilon: float) -> float:
    """k = min{9 d ln d, 5 ln n} / e^2 (theorem 2); the constants hidden in its Theta are taken as 1.

    Args:
        n: sequence length.
        d: features of a head, which bound the rank of Q K^T.
        epsilon: e.
    """
    return min(9 * d * math.log(d), 5 * math.log(n)) / epsilon**2


def describe_spectrum(curves: Tensor, chosen: Sequence[int] | None, head_dim: int) -> dict[str, Any]:
    """The numbers behind the pictures of the spectrum.

    Args:
        curves: (L, h, n), averaged over rows of text.
        chosen: k of each layer; None for full attention.
        head_dim: d_h.
    """
    n, index = curves.size(-1), heat_index(curves.size(-1), chosen)
    asked = [  # a k of n or more says nothing: that is full attention
        {"epsilon": e, "theorem_1": math.ceil(theorem_1(n, e)), "theorem_2": math.ceil(theorem_2(n, head_dim, e))}
        for e in EPSILONS
    ]
    ranks: Mapping[str, list[list[int]]] = {
        f"{share:g}": [[effective_rank(curve, share) for curve in layer] for layer in curves] for share in SHARES
    }
    return {
        "n": n,
        "projected_length": None if chosen is None else list(chosen),
        "value": "sum of the largest singular values / sum of all, mean over rows of text",
        "cumulative": curves.tolist(),
        "heat_map_index": index,
        "heat_map": curves[:, :, index - 1].tolist(),
        "effective_rank": ranks,
        "theorems": {
            "theorem 1": "k = 5 ln n / (e^2 - e^3)",
            "theorem 2": "k = min{9 d ln d, 5 ln n} / e^2, with d = d_h and the constants of Theta taken as 1",
            "d_h": head_dim,
            "asked": asked,
        },
    }
