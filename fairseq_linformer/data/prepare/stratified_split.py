"""A table into splits: stratified by label, seeded, and no text in two of them; and an order of rows, stratified too.

Rows with the same text, or of the same group (a document, an author), are bound: they go to one split together.
"""

import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .examples import Example

BINS = 10  # of scores: rows of a tenth of them are divided as those of a class


def text_key(example: Example) -> str:
    """What two rows have in common whose texts differ in nothing but capitals and white space."""
    text = example.text if isinstance(example.text, str) else " ".join(example.text)
    return "\0".join(" ".join(part.casefold().split()) for part in (text, example.second or ""))


def quantile_bins(scores: Sequence[float]) -> list[str]:
    """The bin of each score, of BINS with about as many scores each; equal scores share one."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1]))
    return [str(number) for number in np.searchsorted(edges, scores, side="right")]


def split_rows(
    bonds: Sequence[Sequence[Hashable]], labels: Sequence[Sequence[str]], fractions: Mapping[str, float], seed: int
) -> list[str]:
    """The split of each row.

    Rows that share a bond at the same place of `bonds` share a split. What is bound counts under the rarest of its
    labels. Of each label the first goes to the first split of `fractions`, and each other to the split that lacks most:
    what a label leaves over or short, the next, more frequent one makes up for.

    Args:
        bonds: of each row its text, its group, and so on.
        labels: of each row; it may have none.
        fractions: the share of the rows that each split shall have; they add up to 1.
        seed: another one, another split.
    """
    units: dict[int, list[int]] = {}
    for row, unit in enumerate(_components(bonds)):
        units.setdefault(unit, []).append(row)
    frequency = Counter(chain.from_iterable(map(set, labels)))
    strata: dict[str, list[list[int]]] = {}
    for rows in units.values():
        names = set(chain.from_iterable(labels[row] for row in rows))
        strata.setdefault(_rarest(names, frequency), []).append(rows)
    random_order = random.Random(seed)
    lacking = dict.fromkeys(fractions, 0.0)
    first = next(iter(fractions))
    chosen = [""] * len(labels)
    for stratum in sorted(strata, key=lambda name: (sum(map(len, strata[name])), name)):
        members = strata[stratum]
        random_order.shuffle(members)
        members.sort(key=len, reverse=True)  # what comes last and is small evens out the shares
        for split, fraction in fractions.items():
            lacking[split] += fraction * sum(map(len, members))
        for place, rows in enumerate(members):
            split = max(lacking, key=lacking.__getitem__) if place else first
            lacking[split] -= len(rows)
            for row in rows:
                chosen[row] = split
    return chosen


def stratified_order(labels: Sequence[Sequence[str]], seed: int) -> np.ndarray:
    """All rows in a random order, whose first rows have about its share of each label, however many are taken.

    A row counts under the rarest of its labels. The rows of each are spread evenly over the order from a random start
    on, as in systematic sampling, so that a label rarer than the rows taken has its chance, too.

    Args:
        labels: of each row; it may have none.
        seed: another one, another order.

    Returns:
        The numbers of the rows, int64, (rows,).
    """
    frequency = Counter(chain.from_iterable(map(set, labels)))
    strata: dict[str, list[int]] = {}
    for row, names in enumerate(labels):
        strata.setdefault(_rarest(names, frequency), []).append(row)
    random_order = np.random.default_rng(seed)
    places = np.empty(len(labels))
    for _, rows in sorted(strata.items()):
        places[random_order.permutation(rows)] = (np.arange(len(rows)) + random_order.random()) / len(rows)
    return np.argsort(places, kind="stable")


def _rarest(names: Iterable[str], frequency: Mapping[str, int]) -> str:
    """The label that a row with several counts under; empty where it has none."""
    return min(names, key=lambda name: (frequency[name], name), default="")


def _components(bonds: Sequence[Sequence[Hashable]]) -> list[int]:
    """A number per row, the same for rows that a chain of bonds connects."""
    numbers: dict[tuple[int, Hashable], int] = {}
    edges = [
        (row, len(bonds) + numbers.setdefault((place, bond), len(numbers)))
        for row, bonds_of_row in enumerate(bonds)
        for place, bond in enumerate(bonds_of_row)
    ]
    rows, targets = zip(*edges, strict=True)
    size = len(bonds) + len(numbers)
    graph = coo_array((np.ones(len(edges), dtype=bool), (rows, targets)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(bonds)].tolist()
