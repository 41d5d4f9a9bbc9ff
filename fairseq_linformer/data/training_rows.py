"""Fewer rows to train on than were prepared: the first of one stratified order, for curves of score against rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from fairseq.data.data_utils import load_indexed_dataset

from ..errors import check
from .prepare.splitting import quantile_bins


def first_rows(folder: Path, kind: str, count: int, seed: int) -> np.ndarray:
    """The numbers of the first `count` rows of train in the stratified order of a seed, ascending.

    With one seed fewer rows are among more. Classes, or tenths of the scores, have about their share of any number;
    what has several classes, a row or a sentence of tagged words, counts under the rarest of them.

    Args:
        folder: of a prepared task.
        kind: of its labels.
        count: from 1 to the rows of train.
        seed: another one, other rows.

    Returns:
        int64, (count,).

    Raises:
        FileNotFoundError: the folder has no labels of train.
        UserError: there are fewer rows.
    """
    labels = _strata(folder, kind)
    check("train_rows", count, 1 <= count <= len(labels), f"from 1 to {len(labels):,}, the rows of train in {folder}")
    return np.sort(stratified_order(labels, seed)[:count])


def _strata(folder: Path, kind: str) -> list[list[str]]:
    """Of each row of train what it counts under: its classes, by number, or the tenth of the scores."""
    if kind == "regression":
        scores = (folder / "label" / "train.label").read_text(encoding="utf-8").split()
        return [[tenth] for tenth in quantile_bins([float(score) for score in scores])]
    dataset = load_indexed_dataset(str(folder / "label" / "train"), None)
    if dataset is None:
        raise FileNotFoundError(f"{folder} has no labels of train: there is no label/train.idx")
    within = Dictionary().pad()  # what stands at a piece that begins no word
    return [[str(label) for label in dataset[row][:-1].tolist() if label != within] for row in range(len(dataset))]


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


class ChosenRows(BaseWrapperDataset):
    """A dataset of which batches take some rows alone. These keep their numbers, as random crops depend on them.

    Args:
        dataset: one of fairseq's; its length and its rows stay.
        rows: their numbers, (count,).
    """

    def __init__(self, dataset: FairseqDataset, rows: np.ndarray) -> None:
        super().__init__(dataset)
        self.rows = rows

    def ordered_indices(self) -> np.ndarray:
        """The chosen rows in the order that batches are cut from, (count,)."""
        order = self.dataset.ordered_indices()
        return order[np.isin(order, self.rows)]
