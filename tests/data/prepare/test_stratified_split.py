"""Rows into splits: each class by its share, and rows with the same text or group in one."""

from collections import Counter

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.stratified_split import quantile_bins, split_rows, text_key

THIRDS = {"train": 0.8, "valid": 0.1, "test": 0.1}


def labels_and_bonds() -> tuple[list[list[str]], list[list[str]]]:
    """Classes of 500, 100, 20, 4 and 1 rows; every fifth text stands there twice."""
    labels = [[name] for name, number in zip("abcde", (500, 100, 20, 4, 1), strict=True) for _ in range(number)]
    return labels, [[f"text {row - (row % 5 == 1)}"] for row in range(len(labels))]


def test_the_split_is_stratified_seeded_and_keeps_bonds():
    labels, bonds = labels_and_bonds()
    chosen = split_rows(bonds, labels, THIRDS, seed=1)
    counts = {
        split: Counter(label for (label,), place in zip(labels, chosen, strict=True) if place == split)
        for split in THIRDS
    }
    for split, fraction in THIRDS.items():
        assert abs(counts[split].total() - fraction * len(labels)) <= 2
        assert abs(counts[split]["a"] - fraction * 500) <= 2 and abs(counts[split]["b"] - fraction * 100) <= 2
        assert abs(counts[split]["c"] - fraction * 20) <= 2
    assert counts["train"].keys() == set("abcde")
    by_text: dict[str, set] = {}
    for (text,), place in zip(bonds, chosen, strict=True):
        by_text.setdefault(text, set()).add(place)
    assert all(len(places) == 1 for places in by_text.values())
    assert split_rows(bonds, labels, THIRDS, seed=1) == chosen != split_rows(bonds, labels, THIRDS, seed=2)


def test_every_class_stands_in_train():
    assert split_rows([[1], [2]], [["a"], ["b"]], {"train": 0.1, "valid": 0.9}, seed=1) == ["train", "train"]


def test_groups_and_texts_bind_through_each_other():
    bonds = [[f"text {row // 2}", ("group", (row + 1) // 2)] if row < 20 else [f"text {row}"] for row in range(40)]
    chosen = split_rows(bonds, [["a"]] * 40, {"train": 0.5, "valid": 0.5}, seed=1)
    assert len(set(chosen[:20])) == 1 and Counter(chosen) == {"train": 20, "valid": 20}


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
