"""Targets of sequences with several classes, or with a class for each word.

fairseq's ``sentence_prediction`` loads the numbers of an item of ``label`` (``prepare/labelled_folder.py``) minus those
that its dictionary reserves: classes count from 0.
"""

from typing import Any

import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

NO_WORD, UNKNOWN = -3, -1  # <pad> and <unk>, minus four reserved numbers
TRUNCATED = -1  # the start of a word that was truncated


class MultiHotDataset(BaseWrapperDataset):
    """Sequences whose ``target``, class numbers, becomes float32 (classes,): 1 at each of them, 0 elsewhere."""

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
    """Sequences of words: ``target`` becomes the class of each, and ``word_starts`` has the positions of first pieces.

    Both are int64, (words,); of a batch (B, most words of a sequence), padded with NO_WORD and TRUNCATED. An unknown
    class is UNKNOWN.

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
        return {**item, "target": item["target"][begins], "word_starts": begins + self.start}

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        if not samples:
            return {}
        targets = pad_sequence([item["target"] for item in samples], batch_first=True, padding_value=NO_WORD)
        starts = pad_sequence([item["word_starts"] for item in samples], batch_first=True, padding_value=TRUNCATED)
        sequences = [{**item, "target": target} for item, target in zip(samples, targets, strict=True)]
        return {**self.dataset.collater(sequences), "word_starts": starts}


def remap(word_starts: Tensor, kept: Tensor) -> Tensor:
    """Return positions in a sequence, (words,), after truncation to the tokens that are `kept`, (tokens,)."""
    stays = (word_starts != TRUNCATED) & kept[word_starts]
    return torch.where(stays, kept.cumsum(0)[word_starts] - 1, TRUNCATED)


def majority_class(dictionary: Dictionary, classes: int) -> int:
    """Return the most frequent class of the training set, for truncated words: ``O`` for entities."""
    counts = dictionary.count[dictionary.nspecial :][:classes]
    return counts.index(max(counts))
