"""Long passages, a query for each, and how words alone find them.

A query is a paragraph of a book, or what a function's docstring says, that stood late in its passage and was taken out:
what stays around it must lead back to it. Dimensions: N passages and their queries.
"""

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from python_sources import source_files
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from fairseq_linformer.data.prepare.text_files import find_files, read_chunks
from fairseq_linformer.data.tokenizer import Tokenizer
from fairseq_linformer.errors import UserError

QUERY = (32, 128)  # pieces of a query
LATE = (0.75, 0.95)  # of a passage: where its query stood
SEED = 1
GRID: dict[str, list[dict[str, Any]]] = {  # of what is chosen on valid
    "TF-IDF": [{"sublinear_tf": sublinear} for sublinear in (False, True)],
    "BM25": [{"k1": k1, "b": b} for k1 in (0.5, 1.0, 2.0, 4.0, 8.0) for b in (0.0, 0.25, 0.5, 0.75, 1.0)],
}
Block = tuple[np.ndarray, np.ndarray | None]  # a stretch of a document, and the query that it may be: pieces


class Passages(NamedTuple):
    """Passages of one length, and the query that was taken from each: N of both, pieces without marks."""

    queries: Sequence[np.ndarray]
    passages: Sequence[np.ndarray]


def find_passages(documents: Iterable[Sequence[Block]], length: int, most: int) -> Passages:
    """At most that many passages of `length` pieces, from all places of all documents alike.

    Raises:
        UserError: the documents have fewer than two.
    """
    chance = np.random.default_rng(SEED)
    found = [own for blocks in documents for own in cut_passages(blocks, length, chance)]
    if len(found) < 2:
        said = f"the texts give {len(found)} passages of {length:,} pieces, but two are needed: use smaller --lengths"
        raise UserError(said)
    chosen = [found[place] for place in np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)]
    return Passages([query for query, _ in chosen], [passage for _, passage in chosen])


def cut_passages(
    blocks: Sequence[Block], length: int, chance: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Queries and their passages, from one document; no piece is in two passages.

    From the first block on, each that may be a query and has as many pieces as ``QUERY`` says gets a passage around it,
    without the block itself, which stood at a random place in the part ``LATE`` of it: if the document is long enough,
    if what is before it belongs to no other passage, and if the passage does not say the same once more.
    """
    text, free = np.concatenate([own for own, _ in blocks]), 0
    for (own, query), end in zip(blocks, itertools.accumulate(len(own) for own, _ in blocks), strict=True):
        before = int(chance.uniform(*LATE) * length)
        first, last = end - len(own) - before, end + length - before
        if query is None or not QUERY[0] <= len(query) <= QUERY[1] or first < free or last > len(text):
            continue
        passage = np.concatenate([text[first : end - len(own)], text[end:last]])
        if query.tobytes() not in passage.tobytes():
            free = last
            yield query, passage


def read_books(file: Path) -> list[list[str]]:
    """The paragraphs of each book of a file, in which a blank line stands after every book."""
    lines = itertools.chain.from_iterable(chunk.lines for chunk in read_chunks(find_files([file])))
    return [list(own) for is_text, own in itertools.groupby(lines, bool) if is_text]


@cache
def book_blocks(file: Path, tokenizer: Tokenizer) -> list[list[Block]]:
    """The paragraphs of each book, each of which may be a query."""
    return [[(pieces, pieces) for pieces in tokenizer.encode(book)] for book in read_books(file)]


@cache
def module_blocks(split: str, tokenizer: Tokenizer) -> list[list[Block]]:
    """The functions' docstrings, which may be queries, and what is between them, of each module in half of Python's
    library: "valid" is one half, in a random order, "test" the other."""
    files, found = source_files(), []
    for file in files[: len(files) // 2] if split == "valid" else files[len(files) // 2 :]:
        try:
            stretches = list(docstrings_apart(file.read_text(encoding="utf-8")))
        except (SyntaxError, ValueError):  # of files that test Python's parser
            continue
        pieces = tokenizer.encode([lines for lines, _ in stretches])
        queries = [None if said is None else tokenizer.encode([said])[0] for _, said in stretches]
        found.append(list(zip(pieces, queries, strict=True)))
    return found


def docstrings_apart(source: str) -> Iterator[tuple[str, str | None]]:
    """All lines of a module, in stretches: each function's docstring with what it says, and the others."""
    lines, found, free = source.split("\n"), {}, 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (said := ast.get_docstring(node)):
            place = node.body[0]
            if not lines[place.lineno - 1].encode()[: place.col_offset].strip():  # nothing stands before it
                found[place.lineno - 1] = place.end_lineno, said
    for first, (last, said) in sorted(found.items()):
        yield "\n".join(lines[free:first]), None
        yield "\n".join(lines[first:last]), said
        free = last or first
    yield "\n".join(lines[free:]), None


def word_scores(kind: str, queries: csr_matrix, passages: csr_matrix, options: Mapping[str, Any]) -> np.ndarray:
    """Of queries and passages, (N, N): the cosine of TF-IDF, or BM25 (Robertson and Zaragoza 2009, section 3).

    Args:
        kind: a key of ``GRID``; `options` are its own.
        queries, passages: counts of V words, (N, V).
    """
    if kind == "TF-IDF":
        weigh = TfidfTransformer(**options).fit(passages).transform
        return np.asarray((weigh(queries) @ weigh(passages).T).todense())
    counts, k1, b = passages.astype(float), options["k1"], options["b"]
    lengths, holding = np.asarray(counts.sum(1)).ravel(), np.asarray((counts > 0).sum(0)).ravel()
    relative = np.repeat(1 - b + b * lengths / lengths.mean(), np.diff(counts.indptr))
    counts.data *= (k1 + 1) / (counts.data + k1 * relative)
    rarity = np.log1p((len(lengths) - holding + 0.5) / (holding + 0.5))
    return np.asarray((queries.multiply(rarity) @ counts.T).todense())


def ranks_of(scores: np.ndarray) -> list[int]:
    """The rank of each query's own passage among all, of scores (N, N); others with the same score come first."""
    ranks: list[int] = (scores >= scores.diagonal()[:, None]).sum(1).tolist()
    return ranks


def reciprocals(ranks: Iterable[int]) -> list[float]:
    """What each query adds to MRR@10."""
    return [1 / rank if rank <= 10 else 0.0 for rank in ranks]


def word_ranks(valid: Passages, reported: Passages, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ranks of TF-IDF and BM25, each with the options that have the best MRR@10 on valid."""
    known, counts = (counts_of(data, tokenizer) for data in (valid, reported))
    found = {}
    for kind, grid in GRID.items():
        worth = [sum(reciprocals(ranks_of(word_scores(kind, *known, options)))) for options in grid]
        best = grid[int(np.argmax(worth))]
        said = ", ".join(f"{name} {value}" for name, value in best.items())
        found[f"{kind}, {said}"] = ranks_of(word_scores(kind, *counts, best))
    return found


def counts_of(data: Passages, tokenizer: Tokenizer) -> tuple[csr_matrix, csr_matrix]:
    """Of queries and passages, for each word of the passages."""
    words = CountVectorizer()
    passages = words.fit_transform(tokenizer.decode(data.passages))
    return words.transform(tokenizer.decode(data.queries)), passages
