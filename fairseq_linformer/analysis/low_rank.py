"""What low rank loses of softmax attention on real text: P V against its approximations of rank k.

Two forms, both measured against P V with P = softmax(Q K^T / sqrt(d_h)):

* projected: P replaced by a matrix of rank k, as in theorem 1 of arXiv 2006.04768, whose proof takes P R^T R with R
  Gaussian of variance 1 / k. Beside it the orthogonal projection P B B^T, where the columns of B span the rows of E;
  and the best matrix of rank k, the truncated singular value decomposition.
* linformer: softmax(Q (E K)^T / sqrt(d_h)) F V with E = F; and what a Linformer itself computes, with its own E and F
  and, where it has them, its window and class token. With rotary or ALiBi positions P is of more than Q K^T, and rows
  of E K have no position: then there is the model's own alone, and nothing of theorem 2.

The error is relative, |approximation w - P w| / |P w|, for each column w of V, of each head and row of text.

Dimensions: n sequence length, k rows of E, d_h features of a head.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ..attention import Attention
from ..attention.adaptive import adaptive_pooling
from ..attention.linformer import LinformerAttention
from .maps import head_maps, projection_matrix, softmax_maps
from .spectrum import EPSILONS, theorem_1, theorem_2

FORMS = ("projected", "linformer")
OWN = "the model's own"
QUANTILES = {"p5": 0.05, "median": 0.5, "p95": 0.95}
LEAST_RANK = 16
SEED = 0  # of the Gaussian matrices: the same command gives the same numbers

Key = tuple[str, str, int]  # form, kind of matrix, k


def ranks_to_try(n: int) -> list[int]:
    """16, 32, 64, ... up to n / 2; for a short row n / 2 alone."""
    ranks = [LEAST_RANK * 2**power for power in range(int(math.log2(max(1, n / 2 / LEAST_RANK))) + 1)]
    return [k for k in ranks if k <= n // 2] or [max(1, n // 2)]


@dataclass(frozen=True)
class Head:
    """One head on one row of text: P (n, n), and Q, K, V (n, d_h), the last two without their biases."""

    weights: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    key_bias: Tensor
    value_bias: Tensor

    @property
    def all_values(self) -> Tensor:
        """V, its bias included."""
        return self.values + self.value_bias

    def linformer(self, key_matrix: Tensor, value_matrix: Tensor) -> Tensor:
        """softmax(Q (E K)^T / sqrt(d_h)) F V for E and F of (k, n): (n, d_h). The biases are added after E and F."""
        keys = key_matrix @ self.keys + self.key_bias
        weights = (self.queries @ keys.T * self.queries.size(-1) ** -0.5).softmax(-1)
        return weights @ (value_matrix @ self.values + self.value_bias)

    def projected(self, matrix: Tensor) -> Tensor:
        """P B B^T V, where the columns of B (n, k) are orthonormal and span the rows of F (k, n): (n, d_h)."""
        basis = torch.linalg.qr(matrix.T).Q
        return self.weights @ (basis @ (basis.T @ self.all_values))


def heads_of(attention: Attention, x: Tensor, first_values: Tensor | None) -> Iterator[Head]:
    """The heads of a layer in turn on a row of text x, (1, n, d); of one with a value residual V is u V + w V_1.

    Its bias is u b then: the first layer's values V_1, (1, n, d), which F multiplies, have their own in them.
    """
    mapped = (attention.q_proj(x), attention.k_proj(x), attention.values(x, first_values))
    queries, keys, values = (attention.split_heads(own)[0] for own in mapped)
    share = 1 if attention.value_mix is None else attention.value_mix[0]
    biases = (attention.k_proj.bias, share * attention.v_proj.bias)
    key_bias, value_bias = (bias.view(attention.num_heads, attention.head_dim) for bias in biases)
    for i, weights in enumerate(softmax_maps(attention, x)):
        yield Head(weights, queries[i], keys[i] - key_bias[i], values[i] - value_bias[i], key_bias[i], value_bias[i])


def relative_errors(approximation: Tensor, exact: Tensor) -> Tensor:
    """(n, d_h) both -> (d_h,): of each column the norm of the difference, as a part of its norm."""
    return (approximation - exact).norm(dim=0) / exact.norm(dim=0)


@dataclass
class Errors:
    """Relative errors of a layer, collected over heads and rows of text.

    Attributes:
        generator: draws the Gaussian matrices.
        errors: by form, kind of matrix and k, of each column.
        kept: by theorem, what it is about and epsilon, of each head on each row of text: the share of cases within the
            promised error, and what 95 % of them are within.
    """

    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(SEED))
    errors: dict[Key, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[tuple[str, str, float], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, attention: Attention, x: Tensor, first_values: Tensor | None = None) -> list[Tensor]:
        """Adds a row of text x, (1, n, d), that the attention reads.

        Args:
            attention: in evaluation mode.
            x: the row.
            first_values: of the first layer, (1, n, d), which a value residual adds; None in the first layer.

        Returns:
            The singular values of each head's P, (n,), the largest first.
        """
        n, spectra = x.size(1), []
        own: Iterable[tuple[Tensor, Tensor] | None] = repeat(None)  # of each head F (k, n) and the map (n, n)
        if isinstance(attention, LinformerAttention):
            matrices = projection_matrix(attention.value_projection, x).expand(attention.num_heads, -1, -1)
            own = zip(matrices, head_maps(attention, x), strict=True)
        learned = not (attention.turned or attention.alibi)  # positions, which are in x
        means = {k: adaptive_pooling(torch.tensor(n), k, n, x.dtype).to(x.device) for k in ranks_to_try(n)}
        for head, approximation in zip(heads_of(attention, x, first_values), own, strict=False):
            exact = head.weights @ head.all_values
            left, sizes, right = torch.linalg.svd(head.weights)
            spectra.append(sizes)
            for k, segments in means.items():
                best = (left[:, :k] * sizes[:k]) @ (right[:k] @ head.all_values)
                self._add(("projected", "truncated SVD", k), best, exact)
                gaussian = self.draw(k, x)
                projected = head.weights @ (gaussian.T @ (gaussian @ head.all_values))
                self._add(("projected", "Gaussian", k), projected, exact)
                self._add(("projected", "segment means", k), head.projected(segments), exact)
                if learned:
                    self._add(("linformer", "Gaussian", k), head.linformer(gaussian, gaussian), exact)
                    self._add(("linformer", "segment means", k), head.linformer(segments, segments), exact)
            if approximation is not None:
                matrix, weights = approximation
                self._add(("projected", OWN, len(matrix)), head.projected(matrix), exact)
                self._add(("linformer", OWN, len(matrix)), weights @ head.values + head.value_bias, exact)
            self._add_bounds(head, exact, x, learned)
        return spectra

    def draw(self, k: int, like: Tensor) -> Tensor:
        """R (k, n), Gaussian of variance 1 / k."""
        drawn = torch.randn((k, like.size(1)), generator=self.generator)
        return drawn.to(like) * k**-0.5

    def _add(self, key: Key, approximation: Tensor, exact: Tensor) -> None:
        self.errors[key].append(relative_errors(approximation, exact))

    def _add_bounds(self, head: Head, exact: Tensor, x: Tensor, learned: bool) -> None:
        """Which part of the text keeps what the theorems promise, with the k that they ask for each epsilon.

        The second, which is about softmax(Q K^T), only with learned positions.
        """
        n, d = x.size(1), head.queries.size(-1)
        values = head.all_values
        scale = head.weights.norm(dim=1) * values.norm()  # of theorem 2: |softmax(w)| |V| for each position
        products = head.weights.norm(dim=1, keepdim=True) * values.norm(dim=0)  # (n, d_h)
        for epsilon in EPSILONS:
            gaussian = self.draw(math.ceil(theorem_1(n, epsilon)), x)
            difference = head.weights @ (gaussian.T @ (gaussian @ values)) - exact
            self._keep("theorem 1", "columns", epsilon, difference.norm(dim=0) / exact.norm(dim=0))
            self._keep("theorem 1", "products", epsilon, difference.abs() / products)
            if not learned:
                continue
            k = math.ceil(theorem_2(n, d, epsilon))
            matrices = {"Gaussian": self.draw(k, x)}
            if k <= n:
                matrices["segment means"] = adaptive_pooling(torch.tensor(n), k, n, x.dtype).to(x.device)
            for kind, matrix in matrices.items():
                self._keep("theorem 2", kind, epsilon, (head.linformer(matrix, matrix) - exact).norm(dim=1) / scale)

    def _keep(self, theorem: str, of: str, epsilon: float, errors: Tensor) -> None:
        errors = errors.double().flatten()
        within, p95 = (errors <= epsilon).double().mean(), errors.quantile(QUANTILES["p95"])
        self.kept[theorem, of, epsilon].append((float(within), float(p95)))

    def summary(self) -> dict[str, dict[str, list[dict[str, float]]]]:
        """By form and kind a list over k: quantiles over columns, heads and rows of text."""
        result: dict[str, dict[str, list[dict[str, float]]]] = {form: defaultdict(list) for form in FORMS}
        for (form, kind, k), errors in sorted(self.errors.items(), key=lambda item: item[0][2]):
            every = torch.cat(errors).double()
            quantiles = {name: float(every.quantile(share)) for name, share in QUANTILES.items()}
            result[form][kind].append({"k": k, **quantiles})
        return result

    def bounds(self, n: int, d: int) -> list[dict[str, Any]]:
        """Per theorem and epsilon: the k asked for, which share is within the promised error, and 95 % are within."""
        asked = {"theorem 1": lambda e: theorem_1(n, e), "theorem 2": lambda e: theorem_2(n, d, e)}
        return [
            {
                "theorem": theorem,
                "of": of,
                "epsilon": epsilon,
                "k": math.ceil(asked[theorem](epsilon)),
                "share_within": fmean(share for share, _ in kept),
                "error_p95": fmean(p95 for _, p95 in kept),
            }
            for (theorem, of, epsilon), kept in self.kept.items()
        ]


WHAT = {
    "error": "|approximation w - P w| / |P w| for each column w of V",
    "quantiles": "over columns, heads and rows of text",
    "projected": "P R^T R (Gaussian), P B B^T (B spans the rows of F), or the truncated SVD of P",
    "linformer": "softmax(Q (E K)^T / sqrt(d_h)) F V; the model's own: its map times V, window and all. "
    "With rotary or ALiBi positions the model's own alone",
    "theorem 1, columns": "columns w of V: |P R^T R w - P w| / |P w|, for the matrix that the theorem's proof builds",
    "theorem 1, products": "rows p of P and columns w: |p R^T R w - p w| / (|p| |w|), which random projections bound",
    "theorem 2": "positions: |softmax(q (E K)^T) F V - p V| / (|p| |V|); Frobenius norm of V. Not with "
    "rotary or ALiBi positions",
    "share_within": "cases whose error is at most epsilon; mean over heads and rows of text",
    "error_p95": "the error that 95 % of cases are within; mean over heads and rows of text",
}


def describe_low_rank(layers: Sequence[Errors], n: int, d: int) -> dict[str, Any]:
    """The numbers behind the picture: errors of each layer, and the theorems' bounds over all layers together."""
    together = Errors()
    for layer in layers:
        for case, kept in layer.kept.items():
            together.kept[case] += kept
    return {"what": WHAT, "seed": SEED, "layers": [one.summary() for one in layers], "bounds": together.bounds(n, d)}
