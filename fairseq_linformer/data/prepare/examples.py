"""Rows of text and label, and how a row's text becomes ids."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...errors import UserError
from ..tokenizer import Tokenizer

# What str.splitlines breaks at, and the tab. Runs of plain spaces stay: byte-level BPE has pieces for them.
WHITESPACE = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")

Label = str | tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        text: the text; for token labels its words.
        label: a class or a number; several classes of a multi-label task, or the class of each word; None where it is
            not known.
        second: the second text of a pair.
        where: the row's place in the user's file, for errors.
    """

    text: str | tuple[str, ...]
    label: Label | None
    second: str | None = None
    where: str = field(default="", compare=False)


def encode_columns(
    batch: Sequence[Example], tokenizer: Tokenizer, *, pairs: bool, where: str, before: int = 0
) -> list[list[np.ndarray]]:
    """Encode the texts of some rows, and of the second texts for pairs, int32 of shape (tokens,) each.

    Raises:
        UserError: a row has no text, is not `pairs`, or of its text no piece is left; the message starts with the
            row's own `where`, or with that given here and its number, counted from 1 after `before` others.
    """
    columns: list[list[str]] = [[], []] if pairs else [[]]
    places = _places(batch, where, before)
    for place, example in zip(places, batch, strict=True):
        if not isinstance(example.text, str) or (example.second is not None) != pairs:
            expected = "pairs of texts" if pairs else "single texts"
            raise UserError(f"{place}: all must be {expected}, as the first of train is")
        texts = (example.text,) if example.second is None else (example.text, example.second)
        for column, text in zip(columns, texts, strict=True):
            column.append(WHITESPACE.sub(" ", text).strip())
        if not any(column[-1] for column in columns):  # QQP has pairs with one empty question
            raise UserError(f"{place}: the text is empty: {texts[0]!r}")
    encoded = [tokenizer.encode(column) for column in columns]
    for column, pieces in zip(columns, encoded, strict=True):
        for place, text, ids in zip(places, column, pieces, strict=True):
            if text and not ids.size:
                raise UserError(f"{place}: no piece is left of the text {text!r}")
    return encoded


def names_of(label: Label | None) -> tuple[str, ...]:
    """Return the classes of a label, which may be one, several or none."""
    return () if label is None else (label,) if isinstance(label, str) else label


def _places(batch: Sequence[Example], where: str, before: int) -> list[str]:
    """Return the names of rows in errors."""
    return [example.where or f"{where} {row}" for row, example in enumerate(batch, before + 1)]


def encode_words(
    batch: Sequence[Example], tokenizer: Tokenizer, *, where: str, before: int
) -> tuple[list[list[np.ndarray]], list[np.ndarray]]:
    """Encode rows of words, at least one each; return also how many pieces each word of a row has, at least one."""
    unknown = np.array([tokenizer.dictionary.unk()], dtype=np.int32)  # of a word of which no piece is left
    pieces, sizes = [], []
    for place, example in zip(_places(batch, where, before), batch, strict=True):
        if isinstance(example.text, str) or example.second is not None or not example.text:
            raise UserError(f"{place}: all must be lists of words, as the first of train is")
        # Every word but the first follows a space, which byte-level BPE needs to see, and sentencepiece adds itself.
        spaced = [WHITESPACE.sub(" ", f"{' ' if number else ''}{word}") for number, word in enumerate(example.text)]
        ids = [encoded if encoded.size else unknown for encoded in tokenizer.encode(spaced)]
        pieces.append(np.concatenate(ids))
        sizes.append(np.array([len(word) for word in ids], dtype=np.int64))
    return [pieces], sizes
