"""Rows into splits: each class by its share, and rows with the same text or group in one."""

from collections import Counter

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.splitting import quantile_bins, split_rows, text_key

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}


def test_the_split_is_stratified_seeded_and_keeps_texts_together():
    labels = [[name] for name, count in zip("abcde", (500, 100, 20, 4, 1), strict=True) for _ in range(count)]
    keys = [[f"text {row - (row % 5 == 1)}"] for row in range(len(labels))]  # every fifth text stands there twice
    chosen = split_rows(keys, labels, SHARES, seed=1)
    counts = {split: Counter() for split in SHARES}
    for (label,), split in zip(labels, chosen, strict=True):
        counts[split][label] += 1
    for split, share in SHARES.items():
        assert counts[split].total() == pytest.approx(share * len(labels), abs=10)
        for label, count in (("a", 500), ("b", 100), ("c", 20)):
            assert counts[split][label] == pytest.approx(share * count, abs=8)
    assert counts["train"].keys() == set("abcde")
    by_text: dict[str, set] = {}
    for (text,), split in zip(keys, chosen, strict=True):
        by_text.setdefault(text, set()).add(split)
    assert all(len(splits) == 1 for splits in by_text.values())
    assert split_rows(keys, labels, SHARES, seed=1) == chosen != split_rows(keys, labels, SHARES, seed=2)


@pytest.mark.parametrize(
    ("rows", "fractions"),
    [(1, SHARES), (2, {"train": 0.1, "valid": 0.9}), (7, SHARES), (30, {"train": 0.2, "valid": 0.8}), (300, SHARES)],
)
@pytest.mark.parametrize("classes", [1, 2, 40])
def test_few_rows_and_many_classes(rows, classes, fractions):
    labels = [[str(row % classes)] for row in range(rows)]
    chosen = split_rows([[row] for row in range(rows)], labels, fractions, seed=1)
    trained = {label for (label,), split in zip(labels, chosen, strict=True) if split == "train"}
    assert trained == {label for (label,) in labels}, "train has every class"


def test_groups_and_texts_connect_through_each_other():
    keys = [[f"text {row // 2}", ("group", (row + 1) // 2)] if row < 20 else [f"text {row}"] for row in range(40)]
    chosen = split_rows(keys, [["a"]] * 40, {"train": 0.5, "valid": 0.5}, seed=1)
    assert len(set(chosen[:20])) == 1


def test_several_classes_count_under_the_rarest():
    labels = [["often", "rare"] if row % 10 == 0 else ["often"] for row in range(100)]
    chosen = split_rows([[row] for row in range(100)], labels, {"train": 0.5, "valid": 0.5}, seed=1)
    assert Counter(chosen[::10]) == {"train": 5, "valid": 5}


def test_quantile_bins_are_even_and_equal_scores_share_one():
    assert set(Counter(quantile_bins([float(i * i) for i in range(100)])).values()) == {10}
    assert len(set(quantile_bins([1.0] * 50 + [2.0] * 50))) == 2


def test_texts_are_the_same_but_for_capitals_and_white_space():
    assert text_key(Example("A  b\n", None)) == text_key(Example(("a", "B"), None)) != text_key(Example("ab", None))
    assert text_key(Example("a", None, "b")) != text_key(Example("a b", None))
