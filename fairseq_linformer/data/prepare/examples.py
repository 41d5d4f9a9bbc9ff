"""Rows of text and label, and the encoding of their texts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import UserError
from ..tokenizer import Tokenizer

# Characters at which str.splitlines breaks, and the tab. Runs of spaces are kept: byte-level BPE has pieces for them.
WHITESPACE = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")

Label = str | tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """Row of a labelled task.

    Attributes:
        text: the text; for token labels its words.
        label: a class or a number; several classes of a multi-label task, or the class of each word; None if unknown.
        second: the second text of a pair.
        location: the row's location in the user's file, for errors.
    """

    text: str | tuple[str, ...]
    label: Label | None
    second: str | None = None
    location: str = field(default="", compare=False)


def encode_columns(
    batch: Sequence[Example], tokenizer: Tokenizer, *, pairs: bool, prefix: str, offset: int = 0
) -> list[list[np.ndarray]]:
    """Encode the texts of rows, and the second texts of pairs, as ids: int32, (tokens,) each.

    Raises:
        UserError: a row has no text, its text has no piece, or it is a pair and `pairs` is False, or the reverse. The
            message begins with the row's `location`; if that is empty, with `prefix` and the number of the row, counted
            from `offset` + 1.
    """
    columns: list[list[str]] = [[], []] if pairs else [[]]
    locations = _locations(batch, prefix, offset)
    for location, example in zip(locations, batch, strict=True):
        if not isinstance(example.text, str) or (example.second is not None) != pairs:
            expected = "pairs of texts" if pairs else "single texts"
            raise UserError(f"{location}: all rows must be {expected}, as the first of train is")
        texts = (example.text,) if example.second is None else (example.text, example.second)
        for column, text in zip(columns, texts, strict=True):
            column.append(WHITESPACE.sub(" ", text).strip())
        if not any(column[-1] for column in columns):  # QQP has pairs with one empty question
            raise UserError(f"{location}: the text is empty: {texts[0]!r}")
    encoded = [tokenizer.encode(column) for column in columns]
    for column, pieces in zip(columns, encoded, strict=True):
        for location, text, ids in zip(locations, column, pieces, strict=True):
            if text and not ids.size:
                raise UserError(f"{location}: the tokenizer has no piece for the text {text!r}")
    return encoded


def names_of(label: Label | None) -> tuple[str, ...]:
    """Return the classes of a label: one, several or none."""
    return () if label is None else (label,) if isinstance(label, str) else label


def _locations(batch: Sequence[Example], prefix: str, offset: int) -> list[str]:
    return [example.location or f"{prefix} {row}" for row, example in enumerate(batch, offset + 1)]


def encode_words(
    batch: Sequence[Example], tokenizer: Tokenizer, *, prefix: str, offset: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Encode rows of words, at least one each; also return the number of pieces of each word, at least one."""
    unknown = np.array([tokenizer.dictionary.unk()], dtype=np.int32)  # for a word without pieces
    pieces, sizes = [], []
    for location, example in zip(_locations(batch, prefix, offset), batch, strict=True):
        if isinstance(example.text, str) or example.second is not None or not example.text:
            raise UserError(f"{location}: all rows must be lists of words, as the first of train is")
        # Every word but the first follows a space, which byte-level BPE needs, and sentencepiece adds itself.
        spaced = [WHITESPACE.sub(" ", f"{' ' if number else ''}{word}") for number, word in enumerate(example.text)]
        ids = [encoded if encoded.size else unknown for encoded in tokenizer.encode(spaced)]
        pieces.append(np.concatenate(ids))
        sizes.append(np.array([len(word) for word in ids], dtype=np.int64))
    return [pieces], sizes
