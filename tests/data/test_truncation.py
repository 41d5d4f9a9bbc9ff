"""Truncation: exact cases of every method, and pairs against one token removed at a time."""

import random

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset

from fairseq_linformer.data.truncation import METHODS, TruncatedDataset, kept_tokens
from fairseq_linformer.errors import UserError

BOS, EOS = 0, 2


def single(tokens, first=10):
    """<s> A </s>, where A is `tokens` ids from `first` on."""
    return torch.tensor([BOS, *range(first, first + tokens), EOS])


def pair(first, second):
    """<s> A </s> </s> B </s>, where A counts from 10, and B from 1000 on."""
    return torch.tensor([*single(first), EOS, *single(second, 1000)[1:]])


def cut(row, length, method, fraction=0.0):
    return row[kept_tokens(row, length, method, BOS, EOS, fraction)].tolist()


@pytest.mark.parametrize(
    ("method", "fraction", "text"),
    [
        ("head", 0.0, [10, 11, 12, 13, 14, 15]),
        ("tail", 0.0, [14, 15, 16, 17, 18, 19]),
        ("head-tail", 0.0, [10, 11, 16, 17, 18, 19]),
        ("random-crop", 0.0, [10, 11, 12, 13, 14, 15]),
        ("random-crop", 0.2, [11, 12, 13, 14, 15, 16]),
        ("random-crop", 0.999, [14, 15, 16, 17, 18, 19]),
    ],
)
def test_six_of_ten_tokens(method, fraction, text):
    assert cut(single(10), 8, method, fraction) == [BOS, *text, EOS]
    assert cut(single(10)[1:], 7, method, fraction) == [*text, EOS]  # a row without <s>


@pytest.mark.parametrize(("kept", "head"), [(1, 0), (2, 1), (6, 2), (510, 128)])
def test_head_tail_splits_as_the_authors_do(kept, head):
    text = list(range(10, 3010))
    assert cut(single(3000), kept + 2, "head-tail") == [BOS, *text[:head], *text[3000 - kept + head :], EOS]


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("head", [10, 11, 12], [1000, 1001]),
        ("tail", [17, 18, 19], [1008, 1009]),
        ("head-tail", [10, 18, 19], [1000, 1009]),
        ("random-crop", [14, 15, 16], [1005, 1006]),  # int(0.6 · 8), int(0.6 · 9)
    ],
)
def test_a_pair_of_long_texts(method, first, second):
    assert cut(pair(10, 10), 9, method, 0.6) == [BOS, *first, EOS, EOS, *second, EOS]


def longest_first(lengths, room):
    """Return the lengths after the longest text, of two the second, has lost one token after another."""
    kept = list(lengths)
    while sum(kept) > room:
        kept[max(reversed(range(len(kept))), key=lambda number: kept[number])] -= 1
    return kept


def test_pairs_are_shortened_as_one_token_after_another_would_be():
    chance = random.Random(1)
    for _ in range(300):
        lengths = [chance.randrange(30) for _ in range(2)]
        room = chance.randrange(1, 40)
        row = cut(pair(*lengths), room + 4, "head")
        kept = [sum(10 <= token < 1000 for token in row), sum(token >= 1000 for token in row)]
        assert kept == longest_first(lengths, room), (lengths, room)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("row", [single(6), pair(3, 1), pair(0, 4), single(0)])
def test_a_row_that_fits_is_unchanged(method, row):
    for length in (8, 100):
        assert cut(row, length, method, 0.9) == row.tolist()


@pytest.mark.parametrize(("row", "least"), [(single(10), 3), (pair(10, 1), 5), (single(10)[1:], 2)])
def test_a_length_without_room_for_text_is_rejected(row, least):
    with pytest.raises(UserError, match=f"length={least - 1}.* {least}"):
        cut(row, least - 1, "head")
    assert len(cut(row, least, "head")) == least


def test_batches_are_sized_by_truncated_lengths():
    rows = FairseqDataset()
    rows.sizes, rows.ordered_indices = [np.array([10, 500, 3, 400])], lambda: np.arange(4)
    dataset = TruncatedDataset(rows, 8, "head", BOS, EOS, seed=1, by_length=True)
    batches = dataset.batch_by_size(dataset.ordered_indices(), max_tokens=24)
    assert [list(batch) for batch in batches] == [[2, 0, 1], [3]]
