"""Division of rows into splits: stratified by label, and no text or group in two of them."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import train_test_split

from .examples import Example

BINS = 10  # of scores: rows of a tenth of them are divided as those of a class


def text_key(example: Example) -> str:
    """Return what two rows have in common whose texts differ in nothing but capitals and white space."""
    text = example.text if isinstance(example.text, str) else " ".join(example.text)
    return "\0".join(" ".join(part.casefold().split()) for part in (text, example.second or ""))


def quantile_bins(scores: Sequence[float]) -> list[str]:
    """Return the bin of each score, of BINS with about as many scores each; equal scores share one."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1]))
    return [str(number) for number in np.searchsorted(edges, scores, side="right")]


def split_rows(
    keys: Sequence[Sequence[Hashable]], labels: Sequence[Sequence[str]], fractions: Mapping[str, float], seed: int
) -> list[str]:
    """Return the split of each row.

    Rows that a chain of equal keys connects are one unit, which stays whole and counts under the rarest of its labels.
    The first split has every label.

    Args:
        keys: of each row its text and, if any, its group.
        labels: of each row; it may have none.
        fractions: the share of the units that each split gets.
        seed: another one, another split.
    """
    units = _connect(keys)
    frequency = Counter(chain.from_iterable(map(set, labels)))
    stratum = ["" for _ in range(max(units, default=-1) + 1)]
    for unit, names in zip(units, labels, strict=True):
        candidates = {*names, stratum[unit]} - {""}
        stratum[unit] = min(candidates, key=lambda name: (frequency[name], name), default="")
    first, *others = fractions
    split_of_unit = [first] * len(stratum)
    left = list(range(len(stratum)))
    for split in others:
        size = round(fractions[split] * len(stratum))
        if not 0 < size < len(left):
            continue
        strata = _merge_rare([stratum[unit] for unit in left], size)
        left, taken = train_test_split(left, test_size=size, random_state=seed, stratify=strata)
        for unit in taken:
            split_of_unit[unit] = split
    rows = list(zip(units, labels, strict=True))
    trained = {name for unit, names in rows if split_of_unit[unit] == first for name in names}
    for unit, names in rows:
        if not trained.issuperset(names):
            split_of_unit[unit] = first
            trained.update(names)
    return [split_of_unit[unit] for unit in units]


def _merge_rare(strata: Sequence[str], size: int) -> list[str] | None:
    """Merge the strata of too few units for scikit-learn to divide; None if that leaves one."""
    least = max(2, math.ceil(len(strata) / size), math.ceil(len(strata) / (len(strata) - size)))
    counts = Counter(strata)
    merged = ["" if counts[name] < least else name for name in strata]
    counts = Counter(merged)
    if counts.get("") == 1:
        merged[merged.index("")] = counts.most_common(1)[0][0]
    return merged if len(set(merged)) > 1 else None


def _connect(keys: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return a number for each row, the same for rows that a chain of keys connects."""
    numbers: dict[Hashable, int] = {}
    edges = [
        (row, len(keys) + numbers.setdefault(key, len(numbers))) for row, of_row in enumerate(keys) for key in of_row
    ]
    if not edges:
        return []
    rows, targets = zip(*edges, strict=True)
    size = len(keys) + len(numbers)
    graph = coo_array((np.ones(len(edges), dtype=bool), (rows, targets)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(keys)].tolist()
