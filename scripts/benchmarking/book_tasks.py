"""Passages of books: which book one is from, and needles hidden in them.

A book's first 70 % are for training, the next 10 % for the choice of the learning rate, the last 20 % for the test: no
passage of one part shares text with a passage of another. Passages to train on begin anywhere in their part; those of
valid and test are as far apart as the part allows, and overlap where it is short.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.data import Dictionary

from fairseq_linformer.checkpoints.reading import find_tokenizer
from fairseq_linformer.data.tokenizer import Tokenizer, load_tokenizer
from fairseq_linformer.errors import check

from .passages import read_books
from .small_model import Rows

BEGIN, END, MARKS = 0, 2, 2  # fairseq's <s> and </s>, and how many they are
BOOKS = 16  # the longest of the texts
PARTS = {"train": (0.0, 0.7), "valid": (0.7, 0.8), "test": (0.8, 1.0)}
SEEDS = {"train": 1, "valid": 2, "test": 3}
WORDS = ("river", "stone", "garden", "candle", "bridge", "window", "horse", "silver")
NEEDLE, DECOY = "The word to remember is {}.", "The word to forget is {}."
SHORTEST = 16  # of a passage, in pieces

LabelledPassage = tuple[np.ndarray, int]  # pieces and label
Make = Callable[[np.ndarray, int, np.random.Generator], LabelledPassage]  # from a passage and the number of its book


@dataclass(frozen=True)
class TaskData:
    """What a model is trained, tuned and tested on."""

    train: Rows
    valid: Rows
    test: Rows
    dictionary: Dictionary
    classes: int

    def digest(self) -> str:
        """A hash of all tokens, labels and words."""
        found = hashlib.sha256(f"{len(self.dictionary)} {self.classes}".encode())
        for rows in (self.train, self.valid, self.test):
            found.update(repr((rows.tokens.shape, rows.texts)).encode())
            found.update(rows.tokens.numpy().tobytes() + rows.answers.numpy().tobytes())
        return found.hexdigest()[:12]

    def majority(self) -> float:
        """The share of the test rows that have the most frequent label of train."""
        return float((self.test.answers == self.train.answers.mode().values).double().mean())


@dataclass(frozen=True)
class Shelf:
    """The longest books of a text.

    Attributes:
        tokenizer: of their pieces.
        books: the pieces of each.
    """

    tokenizer: Tokenizer
    books: Sequence[np.ndarray]

    @classmethod
    def read(cls, corpus: Path, tokenizer: Path) -> "Shelf":
        """From a file of books, with a blank line after each, and a prepared corpus or a subword model.

        Raises:
            OSError: one of them is not there.
            UserError: there is one book alone.
        """
        loaded = load_tokenizer(find_tokenizer(tokenizer))
        longest = sorted(read_books(corpus), key=lambda own: -sum(map(len, own)))[:BOOKS]
        check("corpus", corpus, len(longest) > 1, "a file of several books, with a blank line after each")
        return cls(loaded, [np.concatenate(loaded.encode(own)) for own in longest])

    def check_length(self, length: int) -> None:
        """Refuses an n for which a part of a book is too short.

        Raises:
            UserError: it is.
        """
        shortest = min(map(len, self.books))
        most = int(min(end - begin for begin, end in PARTS.values()) * shortest) - 1 + MARKS
        said = f"at most {most}: the shortest of the {len(self.books)} longest books has {shortest:,} pieces"
        check("lengths", length, length <= most, said)

    def passages(self, part: str, count: int, size: int, chance: np.random.Generator) -> Iterator[LabelledPassage]:
        """Passages of `size` pieces with the number of their book, as many of each book."""
        begin, end = PARTS[part]
        per_book = -(-count // len(self.books))
        for number in range(count):
            book, place = number % len(self.books), number // len(self.books)
            pieces = self.books[book]
            first, last = int(begin * len(pieces)), int(end * len(pieces)) - size
            start = int(chance.integers(first, last + 1)) if part == "train" else first
            if part != "train" and per_book > 1:
                start += (last - first) * place // (per_book - 1)
            yield pieces[start : start + size], book

    def rows(self, part: str, count: int, length: int, make: Make) -> Rows:
        """Rows of n = `length` tokens of a part of the books; `make` says what stands in them."""
        chance = np.random.default_rng(SEEDS[part])
        found = [make(passage, book, chance) for passage, book in self.passages(part, count, length - MARKS, chance)]
        tokens = np.array([[BEGIN, *pieces, END] for pieces, _ in found], dtype=np.int32)
        texts = self.tokenizer.decode([pieces for pieces, _ in found])
        return Rows(torch.from_numpy(tokens), torch.tensor([label for _, label in found]), texts)


def task_data(name: str, shelf: Shelf, length: int, rows: int, tested: int) -> TaskData:
    """The rows of a task.

    Args:
        name: "books", where the label is the book, or "needles", where a sentence names it.
        shelf: the books.
        length: n.
        rows: to train on.
        tested: rows of valid, and of test.

    Raises:
        UserError: the task cannot have this n.
    """
    shelf.check_length(length)
    make: Make = by_book
    classes = len(shelf.books)
    if name == "needles":
        make, classes = needles(shelf.tokenizer, length), len(WORDS)
    counts = {"train": rows, "valid": tested, "test": tested}
    parts = {part: shelf.rows(part, count, length, make) for part, count in counts.items()}
    return TaskData(**parts, dictionary=shelf.tokenizer.dictionary, classes=classes)


def by_book(passage: np.ndarray, book: int, chance: np.random.Generator) -> LabelledPassage:
    """The passage as it is."""
    return passage, book


def needles(tokenizer: Tokenizer, length: int) -> Make:
    """A passage with a sentence that names the label, and one of the same form, a decoy, with another label's word.

    A word is in decoys as often as in needles, so that single words tell one of two labels; nor do pairs of neighbours
    say more, as the word and "remember" are two apart.

    Raises:
        UserError: n has no room for them.
    """
    needle, decoy = (tokenizer.encode([form.format(word) for word in WORDS]) for form in (NEEDLE, DECOY))
    most = max(map(len, needle)) + max(map(len, decoy))
    least = most + SHORTEST + MARKS
    check("lengths", length, length >= least, f"at least {least}: the sentences have {most} pieces")

    def with_needle(passage: np.ndarray, book: int, chance: np.random.Generator) -> LabelledPassage:
        label, other = chance.permutation(len(WORDS))[:2]
        return hide(passage, [needle[label], decoy[other]], chance), int(label)

    return with_needle


def hide(passage: np.ndarray, sentences: Sequence[np.ndarray], chance: np.random.Generator) -> np.ndarray:
    """The passage, cut at its end to make room, with the sentences at random places and in a random order."""
    kept = passage[: len(passage) - sum(map(len, sentences))]
    parts = np.split(kept, np.sort(chance.integers(len(kept) + 1, size=len(sentences))))
    mixed = [sentences[number] for number in chance.permutation(len(sentences))]
    return np.concatenate([*itertools.chain.from_iterable(zip(parts[:-1], mixed, strict=True)), parts[-1]])
