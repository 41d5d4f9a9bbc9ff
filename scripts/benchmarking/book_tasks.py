"""Passages of books: which book one is from, and needles hidden in them.

A book's first 70 % are for training, the next 10 % for the choice of the learning rate, the last 20 % for the test: no
passage of one part shares text with a passage of another. Passages to train on begin anywhere in their part; those of
valid and test are as far apart as the part allows, and overlap where it is short.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from fairseq_linformer.checkpoints.reading import find_tokenizer
from fairseq_linformer.data.prepare.text_files import find_files, read_chunks
from fairseq_linformer.data.tokenizer import Tokenizer, load_tokenizer
from fairseq_linformer.errors import check

from .rows_of_text import MARKS, Labelled, Request, Rows, TaskData, as_rows

BOOKS = 16  # the longest of the texts
PARTS = {"train": (0.0, 0.7), "valid": (0.7, 0.8), "test": (0.8, 1.0)}
SEEDS = {"train": 1, "valid": 2, "test": 3}
WORDS = ("river", "stone", "garden", "candle", "bridge", "window", "horse", "silver")
NEEDLE, DECOY = "The word to remember is {}.", "The word to forget is {}."
SHORTEST = 16  # of a passage, in pieces


Example = tuple[np.ndarray, int]  # pieces and label


def books(request: Request) -> TaskData:
    """Passages of n - 2 pieces; the label is the book."""
    tokenizer, texts = _books_for(request)
    return _task(request, tokenizer, texts, len(texts), lambda passage, book, chance: (passage, book))


def needles(request: Request) -> TaskData:
    """Passages with a sentence that names the label, and one of the same form, a decoy, with another label's word.

    A word is in decoys as often as in needles, so that single words tell one of two labels; nor do pairs of neighbours
    say more, as the word and "remember" are two apart."""
    tokenizer, texts = _books_for(request)
    needle, decoy = (tokenizer.encode([form.format(word) for word in WORDS]) for form in (NEEDLE, DECOY))
    most = max(map(len, needle)) + max(map(len, decoy))
    least = most + SHORTEST + MARKS
    check("lengths", request.length, request.length >= least, f"at least {least}: the sentences have {most} pieces")

    def with_needle(passage: np.ndarray, book: int, chance: np.random.Generator) -> Example:
        label, other = chance.permutation(len(WORDS))[:2]
        return hide(passage, [needle[label], decoy[other]], chance), int(label)

    return _task(request, tokenizer, texts, len(WORDS), with_needle)


def hide(passage: np.ndarray, sentences: Sequence[np.ndarray], chance: np.random.Generator) -> np.ndarray:
    """The passage, cut at its end to make room, with the sentences at random places and in a random order."""
    kept = passage[: len(passage) - sum(map(len, sentences))]
    parts = np.split(kept, np.sort(chance.integers(len(kept) + 1, size=len(sentences))))
    mixed = [sentences[number] for number in chance.permutation(len(sentences))]
    return np.concatenate([*itertools.chain.from_iterable(zip(parts[:-1], mixed, strict=True)), parts[-1]])


def _task(
    request: Request,
    tokenizer: Tokenizer,
    texts: Sequence[np.ndarray],
    classes: int,
    example: Callable[[np.ndarray, int, np.random.Generator], Example],
) -> TaskData:
    def rows(part: str, count: int) -> Rows:
        chance = np.random.default_rng(SEEDS[part])
        passages = _passages(texts, part, count, request.length - MARKS, chance)
        found = [example(passage, book, chance) for passage, book in passages]
        words = tokenizer.decode([symbols for symbols, _ in found])
        labelled = [Labelled(*own, text) for own, text in zip(found, words, strict=True)]
        return as_rows(labelled, request.length)

    parts = rows("train", request.rows), rows("valid", request.tested), rows("test", request.tested)
    return TaskData(*parts, tokenizer.dictionary, classes)


def _passages(
    texts: Sequence[np.ndarray], part: str, count: int, size: int, chance: np.random.Generator
) -> Iterator[Example]:
    """Passages of `size` pieces with the number of their book, as many of each book."""
    begin, end = PARTS[part]
    per_book = -(-count // len(texts))
    for number in range(count):
        book, place = number % len(texts), number // len(texts)
        first, last = int(begin * len(texts[book])), int(end * len(texts[book])) - size
        start = int(chance.integers(first, last + 1)) if part == "train" else first
        if part != "train" and per_book > 1:
            start += (last - first) * place // (per_book - 1)
        yield texts[book][start : start + size], book


def _books_for(request: Request) -> tuple[Tokenizer, list[np.ndarray]]:
    """The tokenizer, and the pieces of the longest books."""
    tokenizer, texts = _read(cast(Path, request.corpus), cast(Path, request.tokenizer))
    shortest = min(map(len, texts))
    most = int(min(end - begin for begin, end in PARTS.values()) * shortest) - 1 + MARKS
    said = f"at most {most}: the shortest of the {len(texts)} longest books has {shortest:,} pieces"
    check("lengths", request.length, request.length <= most, said)
    return tokenizer, texts


@cache
def _read(texts: Path, tokenizer: Path) -> tuple[Tokenizer, list[np.ndarray]]:
    """The tokenizer, and the pieces of the longest books."""
    loaded = load_tokenizer(find_tokenizer(tokenizer))
    lines = itertools.chain.from_iterable(chunk.lines for chunk in read_chunks(find_files([texts])))
    groups = [list(own) for is_text, own in itertools.groupby(lines, bool) if is_text]
    longest = sorted(groups, key=lambda own: -sum(map(len, own)))[:BOOKS]
    check("corpus", texts, len(longest) > 1, "a file of several books, with a blank line after each")
    return loaded, [np.concatenate(loaded.encode(own)) for own in longest]
