"""IMDB at full length, in subword pieces and in bytes (the Long Range Arena's task "Text")."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from fairseq.data import Dictionary

from fairseq_linformer.checkpoints.reading import find_tokenizer
from fairseq_linformer.data.prepare.imdb import LABELS, imdb_folder, read_imdb
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import UserError

from .rows_of_text import FIRST, MARKS, Labelled, Request, TaskData, as_rows, shuffled, symbols_dictionary, without

SEED = 1
VALID_SHARE = 0.1  # of the official train, at most
BYTES = 256

Encode = Callable[[Sequence[str]], list[np.ndarray]]


def imdb(request: Request) -> TaskData:
    """Reviews as the first n - 2 subword pieces."""
    tokenizer = load_tokenizer(find_tokenizer(cast(Path, request.tokenizer)))

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [pieces[: request.length - MARKS] for pieces in tokenizer.encode(texts)]

    return _reviews(request, encode, tokenizer.decode, tokenizer.dictionary)


def imdb_bytes(request: Request) -> TaskData:
    """Reviews as the first n - 2 bytes of their UTF-8."""

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [as_bytes(text, request.length - MARKS) for text in texts]

    return _reviews(request, encode, from_bytes, symbols_dictionary(BYTES))


def as_bytes(text: str, most: int) -> np.ndarray:
    """The first bytes of a text as numbers of symbols."""
    return np.frombuffer(text.encode()[:most], dtype=np.uint8).astype(np.int32) + FIRST


def from_bytes(rows: Sequence[np.ndarray]) -> list[str]:
    """The texts of rows of bytes, a last character that was cut through left out."""
    return [(row - FIRST).astype(np.uint8).tobytes().decode(errors="ignore") for row in rows]


def _reviews(
    request: Request, encode: Encode, decode: Callable[[Sequence[np.ndarray]], list[str]], dictionary: Dictionary
) -> TaskData:
    numbers = {label: number for number, label in enumerate(LABELS.values())}
    read: dict[str, list[Labelled]] = {}
    with imdb_folder(str(request.source)) as folder:
        for split, source in read_imdb(folder).items():
            reviews = list(source.examples)
            rows = encode([str(review.text) for review in reviews])
            labels = [numbers[str(review.label)] for review in reviews]
            read[split] = [Labelled(*own) for own in zip(rows, labels, decode(rows), strict=True)]
    test = shuffled(read["valid"], SEED, request.tested)
    known = shuffled(without(read["train"], test), SEED, len(read["train"]))
    held = min(request.tested, int(VALID_SHARE * len(known)))
    valid = known[:held]
    if not valid:
        raise UserError(f"{request.source} holds {len(known)} reviews to train on: too few")
    train = without(known[held:], valid)[: request.rows]
    parts = as_rows(train, request.length), as_rows(valid, request.length), as_rows(test, request.length)
    return TaskData(*parts, dictionary, len(numbers))
