"""Rows of tokens with one label each: what the long-document tasks are made of.

Dimensions: N rows, n positions.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_linformer.errors import UserError

from .store import digest

BEGIN, PAD, END = 0, 1, 2  # fairseq's <s>, <pad>, </s>
FIRST = 4  # number of the first symbol after fairseq's own
MARKS = 2  # <s> and </s>


@dataclass(frozen=True)
class Rows:
    """Texts with a label each.

    Attributes:
        tokens: (N, n), ``<s>``, the text, ``</s>`` and padding on the right; int32.
        labels: (N,), numbers of classes.
        texts: the same, as words: what the baseline reads.
    """

    tokens: Tensor
    labels: Tensor
    texts: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TaskData:
    """What a model is trained, tuned and tested on."""

    train: Rows
    valid: Rows
    test: Rows
    dictionary: Dictionary
    classes: int

    def digest(self) -> str:
        """A hash of all tokens and labels."""
        found = hashlib.sha256(f"{len(self.dictionary)} {self.classes}".encode())
        for rows in (self.train, self.valid, self.test):
            found.update(str(tuple(rows.tokens.shape)).encode())
            found.update(rows.tokens.numpy().tobytes() + rows.labels.numpy().tobytes())
        return found.hexdigest()[:12]

    def digest_of_texts(self) -> str:
        """A hash of all words."""
        return digest([list(rows.texts) for rows in (self.train, self.valid, self.test)])

    def majority(self) -> float:
        """The share of the test rows that have the most frequent label of train."""
        most = self.train.labels.mode().values
        return float((self.test.labels == most).double().mean())


@dataclass(frozen=True)
class Request:
    """What is asked of a task.

    Args:
        length: n.
        rows: of train, at most.
        tested: rows of valid, and of test, at most.
        corpus: books.
        tokenizer: of the pieces.
        source: an official archive, or the folder in it.
    """

    length: int
    rows: int
    tested: int
    corpus: Path | None = None
    tokenizer: Path | None = None
    source: Path | None = None


@dataclass(frozen=True)
class Labelled:
    """A text of any length before it becomes a row: numbers of symbols, label, and the words."""

    symbols: np.ndarray
    label: int
    text: str


def as_rows(examples: Sequence[Labelled], length: int) -> Rows:
    """The examples, cut to n - 2 symbols each.

    Raises:
        UserError: there are none.
    """
    if not examples:
        raise UserError("no rows are left: the source holds too few texts for train, valid and test")
    tokens = np.full((len(examples), length), PAD, dtype=np.int32)
    tokens[:, 0] = BEGIN
    for row, example in zip(tokens, examples, strict=True):
        symbols = example.symbols[: length - MARKS]
        row[1 : len(symbols) + 1] = symbols
        row[len(symbols) + 1] = END
    labels = torch.tensor([example.label for example in examples])
    return Rows(torch.from_numpy(tokens), labels, [example.text for example in examples])


def symbols_dictionary(count: int) -> Dictionary:
    """A dictionary of that many symbols, numbered from ``FIRST`` on."""
    dictionary = Dictionary()
    for number in range(count):
        dictionary.add_symbol(f"symbol{number}")
    return dictionary


def shuffled(examples: Sequence[Labelled], seed: int, most: int) -> list[Labelled]:
    """At most that many examples, in a random order that the seed says."""
    order = np.random.default_rng(seed).permutation(len(examples))[:most]
    return [examples[number] for number in order]


def without(examples: Sequence[Labelled], others: Sequence[Labelled]) -> list[Labelled]:
    """The examples whose symbols are none of the others'."""
    known = {other.symbols.tobytes() for other in others}
    return [example for example in examples if example.symbols.tobytes() not in known]
