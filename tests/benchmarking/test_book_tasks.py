"""The tasks of the study long-documents: rows and labels, and that nothing to be tested on is trained on."""

import random
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from benchmarking import book_tasks
from benchmarking.book_tasks import BEGIN, DECOY, END, NEEDLE, WORDS, Shelf, task_data
from fairseq.data import Dictionary

from fairseq_linformer.data.tokenizer import Tokenizer

LENGTH = 40
rows_of = partial(task_data, length=LENGTH, rows=60, tested=12)


class Spaced(Tokenizer):
    """A piece for each word between spaces."""

    def __init__(self) -> None:
        dictionary = Dictionary()
        for form in (NEEDLE, DECOY):
            for word in " ".join(form.format(own) for own in WORDS).split():
                dictionary.add_symbol(word)
        for number in range(500):
            dictionary.add_symbol(f"w{number}")
        super().__init__(dictionary)

    def encode(self, lines):
        return [np.array([self.dictionary.index(word) for word in line.split()], dtype=np.int32) for line in lines]

    def _decode(self, rows):
        return [" ".join(self.dictionary[token] for token in row) for row in rows]

    def save(self, folder):
        raise NotImplementedError


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Three books of 1,000 random words, and one that is too short to be among the longest."""
    monkeypatch.setattr(book_tasks, "load_tokenizer", lambda place: Spaced())
    monkeypatch.setattr(book_tasks, "BOOKS", 3)
    chance = random.Random(1)
    words = [[f"w{chance.randrange(500)}" for _ in range(1000 - 10 * book)] for book in range(3)] + [["w1"] * 50]
    lines = [[" ".join(own[start : start + 25]) for start in range(0, len(own), 25)] for own in words]
    (tmp_path / "books.txt").write_text("\n\n".join("\n".join(own) for own in lines) + "\n")
    return tmp_path / "books.txt"


@pytest.fixture
def shelf(corpus):
    return Shelf.read(corpus, corpus.parent)


def grams(rows, size=6):
    return {tuple(row[i : i + size]) for row in rows for i in range(1, len(row) - size)}


@pytest.mark.parametrize("name", ["books", "needles"])
def test_no_passage_of_one_part_shares_text_with_another(shelf, name):
    data = rows_of(name, shelf)
    own = {WORDS[0], *" ".join((NEEDLE, DECOY)).split(), *(f"{word}." for word in WORDS)}

    def passages(part):
        return grams([text.split() for text in part.texts])

    def of_books(part):
        return {gram for gram in passages(part) if not own & set(gram)}

    train, valid, test = map(of_books, (data.train, data.valid, data.test))
    assert min(map(len, (train, valid, test))) > 50
    assert not train & test and not valid & test and not train & valid
    assert rows_of(name, shelf).digest() == data.digest(), "the same rows again"


def test_the_label_of_a_passage_is_its_book(shelf, corpus):
    data = rows_of("books", shelf)
    text = corpus.read_text().split("\n\n")
    for part in (data.train, data.valid, data.test):
        assert part.tokens.shape == (len(part), LENGTH)
        assert (part.tokens[:, 0] == BEGIN).all() and (part.tokens[:, -1] == END).all()
        for passage, label in zip(part.texts, part.answers.tolist(), strict=True):
            assert len(passage.split()) == LENGTH - 2 and passage in " ".join(text[label].split())
        assert set(Counter(part.answers.tolist()).values()) == {len(part) // 3}


def test_a_needle_names_the_label_and_single_words_and_pairs_do_not(shelf):
    data = rows_of("needles", shelf)
    places, words = set(), Counter()
    for text, label in zip(data.train.texts, data.train.answers.tolist(), strict=True):
        needle = NEEDLE.format(WORDS[label])
        decoys = [word for word in WORDS if DECOY.format(word) in text]
        assert needle in text and len(decoys) == 1 and decoys[0] != WORDS[label]
        assert len(text.split()) == LENGTH - 2
        places.add(text.index(needle) < text.index(DECOY.format(decoys[0])))
        words[WORDS[label], "needle"] += 1
        words[decoys[0], "decoy"] += 1
    assert places == {True, False}
    assert {word for word, _ in words} == set(WORDS)
    shared = [set(pairwise(form.format(WORDS[0]).split())) for form in (NEEDLE, DECOY)]
    last = NEEDLE.format(WORDS[0]).split()[-2:]
    assert tuple(last) in shared[0] & shared[1], "the pair with the label's word is the same in both"


@pytest.mark.parametrize("name", ["books", "needles"])
def test_a_length_beyond_the_shortest_part_is_refused(name, shelf):
    with pytest.raises(ValueError, match="lengths=110 is not allowed: it must be at most 99: the shortest of the 3"):
        rows_of(name, shelf, length=110)


def test_a_length_without_room_for_the_sentences_is_refused(shelf):
    with pytest.raises(ValueError, match="lengths=20 is not allowed: it must be at least 30: the sentences have 12"):
        rows_of("needles", shelf, length=20)


def test_one_book_is_refused(corpus):
    corpus.write_text("w1 w2 w3\n")
    with pytest.raises(ValueError, match="a file of several books, with a blank line after each"):
        Shelf.read(corpus, corpus.parent)
