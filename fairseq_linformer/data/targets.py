"""Targets of rows that have not one class or score: several classes, or a class for each word.

What fairseq's ``sentence_prediction`` loads has the numbers of an item of ``label`` (``prepare/labelled_folder.py``
says what stands in one) less those that its dictionary reserves: classes count from 0.
"""

from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

NO_WORD, UNKNOWN = -3, -1  # what <pad> and <unk> are of four reserved numbers
CUT = -1  # the place of a word that truncation has cut


class MultiHotDataset(BaseWrapperDataset):
    """Rows whose ``target``, the numbers of some of `classes` classes, becomes 1 at each of them, 0 elsewhere.

    It is float32, (classes,); of a batch (B, classes).
    """

    def __init__(self, dataset: FairseqDataset, classes: int) -> None:
        super().__init__(dataset)
        self.classes = classes

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        if "target" not in item:
            return item
        target = torch.zeros(self.classes)
        target[item["target"]] = 1.0
        return {**item, "target": target}


class WordTargetDataset(BaseWrapperDataset):
    """Rows of words: ``target`` becomes the class of each, and ``places`` says where its first piece is in the row.

    Both are int64, (words,); of a batch (B, most words of a row), filled up with NO_WORD and CUT. A class that is not
    known is UNKNOWN.

    Args:
        dataset: its targets have a number per piece, NO_WORD for those within a word.
        start: tokens before the first piece.
    """

    def __init__(self, dataset: FairseqDataset, start: int) -> None:
        super().__init__(dataset)
        self.start = start

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        begins = (item["target"] != NO_WORD).nonzero()[:, 0]
        return {**item, "target": item["target"][begins], "places": begins + self.start}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        if not samples:
            return {}
        targets = pad_sequence([item["target"] for item in samples], batch_first=True, padding_value=NO_WORD)
        places = pad_sequence([item["places"] for item in samples], batch_first=True, padding_value=CUT)
        rows = [{**item, "target": target} for item, target in zip(samples, targets, strict=True)]
        return {**self.dataset.collater(rows), "places": places}


def moved(places: Tensor, kept: Tensor) -> Tensor:
    """Places in a row, (words,), after truncation to the tokens that are `kept`, (tokens,): CUT for the others."""
    stays = (places != CUT) & kept[places]
    return torch.where(stays, kept.cumsum(0)[places] - 1, CUT)


def usual_class(dictionary: Dictionary, classes: int) -> int:
    """The most frequent class of the training set, which stands for words that were cut: of entities that is ``O``."""
    counts = dictionary.count[dictionary.nspecial :][:classes]
    return counts.index(max(counts))
