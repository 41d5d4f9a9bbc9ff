"""Perplexity of a masked language model by where the answer stands: how far it can see.

A masked token is easy where the same token stands unmasked beside it, and hard where it stands nowhere in the row.
A mean over all of them hides what a model finds far away. Here each has its distance to the nearest place where its
answer stands, and perplexity is given for classes of distance. All are functions of arrays, whatever model they are of.

Dimensions: B rows, n positions of a row, N masked tokens of all rows, C classes of distance, R resamples.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

NOWHERE = 0  # the distance of a token that stands nowhere else in its row
RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percent


def answer_distances(tokens: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """How far each masked token is from the nearest place of its row where the same token stands unmasked.

    It costs O(B n log(B n)).

    Args:
        tokens: (B, n) ids, at masked positions those to predict.
        masked: (B, n) bool.

    Returns:
        (N,) positions, at least 1, in the order of ``tokens[masked]``; ``NOWHERE`` where it stands nowhere else.
    """
    length = tokens.shape[1]
    row, position = np.indices(tokens.shape)
    # One number per token of a row, apart from that of any other by more than n, plus the position.
    word = (row * (int(tokens.max(initial=0)) + 1) + tokens) * (2 * length) + position
    shown = np.sort(word[~masked])
    asked = word[masked]
    after = np.searchsorted(shown, asked)
    beyond = np.iinfo(shown.dtype).max // 2
    ends = np.concatenate([[-beyond], shown, [beyond]])  # a neighbour on each side, far beyond every row
    nearest = np.minimum(asked - ends[after], ends[after + 1] - asked)
    return np.where(nearest < length, nearest, NOWHERE)


def octaves(near: Sequence[int], length: int) -> list[int]:
    """Upper limits of classes of distance: those of `near`, then twice the last of them and so on, to `length`."""
    limits = [limit for limit in near if limit < length]
    while (following := 2 * limits[-1] if limits else length) < length:
        limits.append(following)
    return [*limits, length]


@dataclass(frozen=True)
class DistanceClass:
    """The masked tokens of one class.

    Attributes:
        first, last: distances of the class, both included; ``NOWHERE`` twice for tokens that stand nowhere else.
        share: of all masked tokens, 0 to 1.
        perplexity: exp of their mean loss; NaN where there are none.
        low, high: the interval ``INTERVAL`` of it over resampled rows.
    """

    first: int
    last: int
    share: float
    perplexity: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """nowhere, 1 to 64, 65 to 192 …"""
        return "nowhere" if self.last == NOWHERE else f"{self.first} to {self.last}"

    def figures(self) -> dict[str, Any]:
        """Its name and attributes, as a file of results has them."""
        return {"name": self.name, **{attribute: known(x) for attribute, x in asdict(self).items()}}


def known(x: float) -> float | None:
    """A figure as a file of results has it: None for NaN, where a class has no tokens."""
    return None if math.isnan(x) else x


@dataclass(frozen=True)
class LossesByDistance:
    """Losses at the masked tokens of B rows, summed by row and class: all that perplexities and their spread need.

    Attributes:
        limits: upper limits of the classes, ascending; before them stands the class of ``NOWHERE``.
        sums: (B, C) of losses in nats.
        counts: (B, C) of masked tokens.
    """

    limits: tuple[int, ...]
    sums: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(
        cls, losses: np.ndarray, distances: np.ndarray, rows: np.ndarray, limits: Sequence[int]
    ) -> "LossesByDistance":
        """Sums the losses.

        Args:
            losses: (N,) in nats.
            distances: (N,) as ``answer_distances`` gives them.
            rows: (N,) the row of each.
            limits: as ``octaves`` gives them; the last is at least the longest distance.
        """
        places, classes = np.unique(rows, return_inverse=True)[1], np.searchsorted([NOWHERE, *limits], distances)
        shape = (int(places.max(initial=-1)) + 1, len(limits) + 1)
        cells = np.ravel_multi_index((places, classes), shape)
        sums, counts = (np.bincount(cells, weights, minlength=shape[0] * shape[1]) for weights in (losses, None))
        return cls(tuple(limits), sums.reshape(shape), counts.reshape(shape))

    def __add__(self, other: "LossesByDistance") -> "LossesByDistance":
        """Of two models at the same masked tokens: perplexities are then the geometric means of theirs."""
        return LossesByDistance(self.limits, self.sums + other.sums, self.counts + other.counts)

    def coarser(self, limits: Sequence[int]) -> "LossesByDistance":
        """In fewer classes: those between some of the limits, of which the last stays."""
        starts = [0, 1, *(self.limits.index(limit) + 2 for limit in limits[:-1])]
        sums, counts = (np.add.reduceat(cells, starts, axis=1) for cells in (self.sums, self.counts))
        return LossesByDistance(tuple(limits), sums, counts)

    @property
    def perplexities(self) -> np.ndarray:
        """Of each class, (C,), ``NOWHERE`` first; NaN where there are no tokens."""
        with np.errstate(invalid="ignore"):
            return np.exp(self.sums.sum(0) / self.counts.sum(0))

    def resampled(self) -> np.ndarray:
        """Mean losses (R, C) of as many rows drawn with replacement.

        Tokens of a row are not independent, so that rows are what is drawn. The same rows are drawn for every model:
        differences of two models have an interval of their own (``ratio_interval``).
        """
        number = len(self.sums)
        if not number:
            return np.full((RESAMPLES, self.sums.shape[1]), np.nan)
        draws, each = np.random.default_rng(0), np.full(number, 1 / number)
        drawn = (draws.multinomial(number, each) for _ in range(RESAMPLES))  # one at a time: rows may be many
        with np.errstate(invalid="ignore"):  # a class without tokens has no mean
            return np.array([(rows @ self.sums) / (rows @ self.counts) for rows in drawn])

    def classes(self) -> list[DistanceClass]:
        """What is measured of each class, ``NOWHERE`` first."""
        low, high = _interval(self.resampled())
        shares = self.counts.sum(0) / max(1, self.counts.sum())
        firsts = [NOWHERE, *(limit + 1 for limit in (0, *self.limits[:-1]))]
        columns = (firsts, (NOWHERE, *self.limits), shares, self.perplexities, low, high)
        return [
            DistanceClass(int(first), int(last), *map(float, rest)) for first, last, *rest in zip(*columns, strict=True)
        ]


def nowhere_interval(losses: LossesByDistance) -> np.ndarray:
    """The interval of each class's perplexity over that of ``NOWHERE``, (2, C): ``INTERVAL`` of it."""
    resampled = losses.resampled()
    return _interval(resampled - resampled[:, :1])


def ratio_interval(one: LossesByDistance, other: LossesByDistance) -> np.ndarray:
    """The interval of one model's perplexity over another's at the same masked tokens, (2, C): ``INTERVAL`` of it."""
    return _interval(one.resampled() - other.resampled())


def _interval(resampled: np.ndarray) -> np.ndarray:
    """exp of the ``INTERVAL`` of means (R, C), or of differences of them: (2, C); NaN for a class without tokens."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        return np.exp(np.nanpercentile(resampled, INTERVAL, axis=0))
