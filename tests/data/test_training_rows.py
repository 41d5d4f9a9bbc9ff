"""Fewer rows to train on: fewer of a seed are among more, with each label's share, the same wherever they are asked."""

import random
from collections import Counter

import numpy as np
import pytest
from fairseq.data import BaseWrapperDataset

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer
from fairseq_linformer.data.training_rows import ChosenRows, first_rows, stratified_order

CHANCE = random.Random(1)
LABELS = {
    "single-label": ["rare" if row % 10 == 0 else "common" for row in range(200)],
    "multi-label": [("common", "rare") if row % 10 == 0 else ("common",) * (row % 3 > 0) for row in range(200)],
    "regression": [str(score) for score in CHANCE.sample(range(200), 200)],
    "token-label": [("O", "RARE" if row % 10 == 0 else "O") for row in range(200)],
}


def is_rare(kind, row) -> bool:
    return float(LABELS[kind][row]) < 20 if kind == "regression" else row % 10 == 0  # a tenth of them, each


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A prepared folder of each kind, with 200 rows of two words."""
    place = tmp_path_factory.mktemp("own")
    words = [f"word{row}" for row in range(200)]
    train_sentencepiece(words * 2, place / "spm.model", 280, 1)
    tokenizer, found = SentencePieceTokenizer(place / "spm.model"), {}
    for kind, labels in LABELS.items():
        texts = [("good", word) if kind == "token-label" else f"good {word}" for word in words]
        rows = [Example(*row) for row in zip(texts, labels, strict=True)]
        write_labelled(place / kind, own_task(kind, kind), {"train": rows, "valid": rows[:3]}, tokenizer)
        found[kind] = place / kind
    return found


@pytest.mark.parametrize("kind", LABELS)
def test_rows_are_stratified_nested_and_others_for_each_seed(folders, kind):
    before: set[int] = set()
    for count in (1, 20, 50, 100, 200):
        rows = first_rows(folders[kind], kind, count, seed=3)
        assert rows.tolist() == sorted({*rows.tolist()}) and len(rows) == count and before < {*rows.tolist()}
        before = {*rows.tolist()}
        assert abs(sum(is_rare(kind, row) for row in before) - count / 10) <= 1
    few = [first_rows(folders[kind], kind, 50, seed).tolist() for seed in (1, 1, 2)]
    assert few[0] == few[1] and len({*few[0]} & {*few[2]}) < 30, "of a quarter a quarter is in both by chance"


def test_what_is_rarer_than_the_rows_taken_has_its_share_over_seeds():
    """With fifty classes of two rows each beside a common one, a tenth of the rows is as often of these as of it."""
    labels = [[str(row // 2)] for row in range(100)] + [["common"]] * 100
    firsts = [Counter(row < 100 for row in stratified_order(labels, seed)[:20]) for seed in range(50)]
    assert 8 < np.mean([count[True] for count in firsts]) < 12


@pytest.mark.parametrize("count", [0, 201])
def test_more_rows_than_there_are_are_refused(folders, count):
    with pytest.raises(ValueError, match=rf"^train_rows={count} is not allowed: it must be from 1 to 200, the rows of"):
        first_rows(folders["single-label"], "single-label", count, 1)


def test_batches_hold_the_chosen_rows_in_the_order_of_the_dataset():
    class Backwards(BaseWrapperDataset):
        def ordered_indices(self):
            return np.arange(9)[::-1]

    chosen = ChosenRows(Backwards([*range(9)]), np.array([1, 4, 8]))
    assert chosen.ordered_indices().tolist() == [8, 4, 1] and [chosen[row] for row in (8, 4, 1)] == [8, 4, 1]
