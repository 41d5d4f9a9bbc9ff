"""Perplexity by distance against the definition, spelt out in loops."""

import math

import numpy as np
import pytest
from benchmarking.losses_by_distance import (
    NOWHERE,
    LossesByDistance,
    answer_distances,
    nowhere_interval,
    octaves,
    ratio_interval,
)


def naive_distances(tokens, masked):
    """For each masked token the least distance to the same token, shown, in its row."""
    found = []
    for row, position in zip(*masked.nonzero(), strict=True):
        same = [
            abs(place - position)
            for place in range(tokens.shape[1])
            if not masked[row, place] and tokens[row, place] == tokens[row, position]
        ]
        found.append(min(same, default=NOWHERE))
    return found


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (7, 33), (3, 2)])
@pytest.mark.parametrize("vocabulary", [1, 3, 50])
def test_distances(shape, vocabulary):
    draws = np.random.default_rng(vocabulary)
    tokens, masked = draws.integers(0, vocabulary, shape), draws.random(shape) < 0.3
    assert answer_distances(tokens, masked).tolist() == naive_distances(tokens, masked)


@pytest.mark.parametrize(
    ("near", "length", "limits"),
    [((64, 192), 2048, [64, 192, 384, 768, 1536, 2048]), ((64, 192), 128, [64, 128]), ((512,), 512, [512])],
)
def test_octaves(near, length, limits):
    assert octaves(near, length) == limits


def test_classes():
    distances, rows = np.array([NOWHERE, 1, 4, 5, 9, 9]), np.array([3, 3, 3, 8, 8, 8])
    losses = np.log(np.array([7.0, 2.0, 8.0, 3.0, 5.0, 20.0]))
    found = LossesByDistance.of(losses, distances, rows, [4, 8, 16]).classes()
    assert [(one.name, one.share) for one in found] == [
        ("nowhere", 1 / 6),
        ("1 to 4", 2 / 6),
        ("5 to 8", 1 / 6),
        ("9 to 16", 2 / 6),
    ]
    assert [one.perplexity for one in found] == pytest.approx([7, 4, 3, 10])
    assert all(one.low <= one.perplexity * (1 + 1e-9) and one.perplexity <= one.high * (1 + 1e-9) for one in found)


def test_a_class_without_tokens_has_no_perplexity():
    found = LossesByDistance.of(np.ones(2), np.array([1, 1]), np.array([0, 1]), [4, 8]).classes()
    assert [math.isnan(one.perplexity) for one in found] == [True, False, True]
    assert [one.share for one in found] == [0, 1, 0]


def test_classes_of_two_models_together_and_in_fewer():
    distances, rows = np.array([NOWHERE, 1, 5, 9]), np.array([0, 0, 1, 1])
    one, other = (
        LossesByDistance.of(np.log(x), distances, rows, [4, 8, 16]) for x in ([7.0, 2, 3, 5], [28.0, 2, 12, 20])
    )
    both = one + other
    assert both.perplexities == pytest.approx([14, 2, 6, 10]), "geometric means"
    coarse = both.coarser([4, 16])
    assert coarse.limits == (4, 16) and coarse.counts.sum(0).tolist() == [2, 2, 4]
    assert coarse.perplexities == pytest.approx([14, 2, math.sqrt(60)])
    assert both.coarser(both.limits).sums.tolist() == both.sums.tolist()


def test_what_is_far_is_compared_with_what_is_nowhere_in_the_same_rows():
    """A model that is half as good far away is so in every resample."""
    losses = np.random.default_rng(1).normal(3.0, 2.0, 30)
    distances, rows = np.repeat([NOWHERE, 1], 30), np.tile(np.arange(30), 2)
    found = LossesByDistance.of(np.concatenate([losses, losses + math.log(0.5)]), distances, rows, [1])
    assert nowhere_interval(found).tolist() == [pytest.approx([1, 0.5])] * 2


def test_the_interval_is_that_of_rows():
    """Forty rows whose tokens share one loss each: the mean of 40 draws has the standard error 1 / sqrt(40)."""
    draws = np.random.default_rng(1)
    row_losses = draws.normal(3.0, 1.0, 40)
    rows = np.repeat(np.arange(40), 50)
    (_, near) = LossesByDistance.of(row_losses[rows], np.ones(2000, dtype=int), rows, [1]).classes()
    width = (math.log(near.high) - math.log(near.low)) / 2
    assert width == pytest.approx(1.96 * row_losses.std() / math.sqrt(40), rel=0.1), "not that of 2,000 tokens"


def test_two_models_are_compared_on_the_same_rows():
    """A model that is a tenth worse everywhere is so in every resample, however much rows differ."""
    draws = np.random.default_rng(1)
    rows, losses = np.repeat(np.arange(30), 5), draws.normal(3.0, 2.0, 150)
    one, other = (LossesByDistance.of(x, np.ones(150, dtype=int), rows, [1]) for x in (losses + math.log(1.1), losses))
    assert ratio_interval(one, other)[:, 1] == pytest.approx([1.1, 1.1])
