"""The tasks of the study long-documents: rows and labels, and that nothing to be tested on is trained on."""

import random
import statistics
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from benchmarking import book_tasks
from benchmarking.book_tasks import DECOY, NEEDLE, WORDS
from benchmarking.listops import SYMBOLS, draw_expressions, grow, listops
from benchmarking.long_tasks import TASKS, make_rows
from benchmarking.review_tasks import imdb_bytes
from benchmarking.rows_of_text import BEGIN, END, FIRST, PAD, Labelled, Request, as_rows
from fairseq.data import Dictionary

from fairseq_linformer.data.tokenizer import Tokenizer

LENGTH = 40


def evaluate(symbols):
    """The value of an expression, from the inside out."""
    symbols = list(symbols)
    while len(symbols) > 1:
        end = symbols.index("]")
        start = max(i for i in range(end) if symbols[i].startswith("["))
        values = [int(symbol) for symbol in symbols[start + 1 : end]]
        assert 2 <= len(values) <= 10
        value = {"[MIN": min, "[MAX": max, "[MED": statistics.median, "[SM": lambda own: sum(own) % 10}[symbols[start]]
        symbols[start : end + 1] = [str(int(value(values)))]
    return int(symbols[0])


def test_the_value_of_an_expression_is_what_its_symbols_say():
    drawn = draw_expressions(300, 20, 200, seed=1)
    assert len({symbols for symbols, _ in drawn}) == 300 and drawn == draw_expressions(300, 20, 200, seed=1)
    assert all(20 <= len(symbols) <= 200 and evaluate(symbols) == value for symbols, value in drawn)
    assert {symbol for symbols, _ in drawn for symbol in symbols} == set(SYMBOLS)
    depths = [max(np.cumsum([s.startswith("[") - (s == "]") for s in symbols])) for symbols, _ in drawn]
    assert max(depths) <= 9, "operators to depth 9, digits at depth 10"


def test_expressions_follow_the_published_probabilities():
    chance, roots = random.Random(2), []
    for _ in range(4000):
        roots.append([])
        grow(chance, 1, roots[-1], most=10**6)
    roots = [symbols for symbols in roots if len(symbols) > 1]
    assert 0.23 < len(roots) / 4000 < 0.27, "one in four is an operator's"
    assert all(0.2 < count / len(roots) < 0.3 for count in Counter(symbols[0] for symbols in roots).values())
    arguments = []
    for symbols in roots:
        depths = np.cumsum([0, *(s.startswith("[") - (s == "]") for s in symbols[1:-1])])
        starts = [symbol for symbol, depth in zip(symbols[1:-1], depths, strict=False) if depth == 0 and symbol != "]"]
        arguments.append(starts)
    assert 5.8 < statistics.mean(map(len, arguments)) < 6.2, "2 to 10, each as often"
    operators = sum(start.startswith("[") for own in arguments for start in own)
    assert 0.23 < operators / sum(map(len, arguments)) < 0.27


def test_listops_rows_are_different_and_padded():
    data = listops(Request(64, 50, 20))
    rows = [tuple(row) for part in (data.train, data.valid, data.test) for row in part.tokens.tolist()]
    assert len(set(rows)) == 90 and len(data.train) == 50 and len(data.test) == 20
    for part in (data.train, data.valid, data.test):
        for row, label, text in zip(part.tokens.tolist(), part.labels.tolist(), part.texts, strict=True):
            symbols = [SYMBOLS[token - FIRST] for token in row if token >= FIRST]
            assert " ".join(symbols) == text and evaluate(symbols) == label and 16 <= len(symbols) <= 62
            assert row == [BEGIN, *row[1 : len(symbols) + 1], END, *[PAD] * (62 - len(symbols))]
    with pytest.raises(ValueError, match="lengths=4096 is not allowed: it must be from 16 to 2050"):
        listops(Request(4096, 1, 1))


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
def shelf(tmp_path, monkeypatch):
    """A request for rows from three books of 1,000 random words, and one that is too short to be among the longest."""
    monkeypatch.setattr(book_tasks, "load_tokenizer", lambda place: Spaced())
    monkeypatch.setattr(book_tasks, "BOOKS", 3)
    book_tasks._read.cache_clear()
    chance = random.Random(1)
    words = [[f"w{chance.randrange(500)}" for _ in range(1000 - 10 * book)] for book in range(3)] + [["w1"] * 50]
    lines = [[" ".join(own[start : start + 25]) for start in range(0, len(own), 25)] for own in words]
    (tmp_path / "books.txt").write_text("\n\n".join("\n".join(own) for own in lines) + "\n")
    return Request(LENGTH, 60, 12, corpus=tmp_path / "books.txt", tokenizer=tmp_path)


def grams(rows, size=6):
    return {tuple(row[i : i + size]) for row in rows for i in range(1, len(row) - size)}


@pytest.mark.parametrize("name", ["books", "needles"])
def test_no_passage_of_one_part_shares_text_with_another(shelf, name):
    data = make_rows(name, shelf)
    own = {WORDS[0], *" ".join((NEEDLE, DECOY)).split(), *(f"{word}." for word in WORDS)}

    def passages(part):
        return grams([text.split() for text in part.texts])

    def of_books(part):
        return {gram for gram in passages(part) if not own & set(gram)}

    train, valid, test = map(of_books, (data.train, data.valid, data.test))
    assert min(map(len, (train, valid, test))) > 50
    assert not train & test and not valid & test and not train & valid
    assert make_rows(name, shelf).digest() == data.digest(), "the same rows again"


def test_the_label_of_a_passage_is_its_book(shelf):
    data = make_rows("books", shelf)
    text = shelf.corpus.read_text().split("\n\n")
    for part in (data.train, data.valid, data.test):
        assert part.tokens.shape == (len(part), LENGTH) and (part.tokens != PAD).all()
        for passage, label in zip(part.texts, part.labels.tolist(), strict=True):
            assert len(passage.split()) == LENGTH - 2 and passage in " ".join(text[label].split())
        assert set(Counter(part.labels.tolist()).values()) == {len(part) // 3}


def test_a_needle_names_the_label_and_single_words_and_pairs_do_not(shelf):
    data = make_rows("needles", shelf)
    places, words = set(), Counter()
    for text, label in zip(data.train.texts, data.train.labels.tolist(), strict=True):
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
def test_a_length_beyond_the_shortest_part_is_refused(shelf, name):
    shelf = Request(110, 60, 12, corpus=shelf.corpus, tokenizer=shelf.tokenizer)
    with pytest.raises(ValueError, match="lengths=110 is not allowed: it must be at most 99: the shortest of the 3"):
        make_rows(name, shelf)


def test_a_length_without_room_for_the_sentences_is_refused(shelf):
    with pytest.raises(ValueError, match="lengths=20 is not allowed: it must be at least 30: the sentences have 12"):
        make_rows("needles", Request(20, 60, 12, corpus=shelf.corpus, tokenizer=shelf.tokenizer))


def test_one_book_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(book_tasks, "load_tokenizer", lambda place: Spaced())
    (tmp_path / "one.txt").write_text("w1 w2 w3\n")
    with pytest.raises(ValueError, match="a file of several books, with a blank line after each"):
        make_rows("books", Request(LENGTH, 4, 4, corpus=tmp_path / "one.txt", tokenizer=tmp_path))


@pytest.fixture
def reviews(tmp_path):
    """Twenty reviews of each label to train on, of which one is also in the test."""
    for split, count in (("train", 20), ("test", 6)):
        for label, word in (("neg", "bad"), ("pos", "góod")):
            folder = tmp_path / "aclImdb" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}_1.txt").write_text(f"{word} {split} {number} {'x' * number}")
    (tmp_path / "aclImdb/test/neg/0_1.txt").write_text((tmp_path / "aclImdb/train/neg/3_1.txt").read_text())
    return tmp_path


def test_reviews_in_bytes_are_cut_padded_and_kept_apart(reviews):
    data = imdb_bytes(Request(24, 100, 100, source=reviews))
    assert len(data.test) == 12 and len(data.valid) == 3 and len(data.train) == 40 - 3 - 1
    for part in (data.train, data.valid, data.test):
        for row, label, text in zip(part.tokens.tolist(), part.labels.tolist(), part.texts, strict=True):
            content = bytes(token - FIRST for token in row if token >= FIRST)
            assert content.decode() == text and ("góod" in text) == label and len(content) <= 22
            assert row == [BEGIN, *row[1 : len(content) + 1], END, *[PAD] * (22 - len(content))]
    tested = set(map(tuple, data.test.tokens.tolist())) | set(map(tuple, data.valid.tokens.tolist()))
    assert not tested & set(map(tuple, data.train.tokens.tolist()))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("chess", {}, "task=chess is not allowed: it must be one of books, needles, imdb"),
        ("books", {"corpus": "a.txt"}, "--task books needs --tokenizer"),
        ("listops", {"source": "aclImdb"}, "--task listops has no use for --source"),
        ("imdb-bytes", {}, "--task imdb-bytes needs --source"),
        ("imdb-bytes", {"source": "/nowhere"}, "/nowhere: no such folder or archive"),
    ],
)
def test_what_a_task_needs_is_asked_for_first(name, given, said, monkeypatch):
    with pytest.raises((ValueError, OSError), match=said):
        make_rows(name, Request(32, 4, 4, **given))


def test_every_task_has_three_learning_rates_to_choose_from():
    assert all(len(set(task.learning_rates)) >= 3 for task in TASKS.values())


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="no rows are left"):
        as_rows([], 16)
    assert as_rows([Labelled(np.array([9] * 20), 1, "")], 16).tokens.tolist() == [[BEGIN, *[9] * 14, END]]
