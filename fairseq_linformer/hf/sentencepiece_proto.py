"""What a sentencepiece model file says.

It is a protobuf message, sentencepiece's ``sentencepiece_model.proto``. The reader that sentencepiece ships asks for
one of the newest versions of protobuf, which other packages hold back. The wire format is simple and does not change:
https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class ModelType(IntEnum):
    """Those that can be exported."""

    UNIGRAM = 1
    BPE = 2


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class SentencePieceModel:
    """Args:
    pieces: text, score and type of each, in the order of the ids.
    model_type: one of ModelType, or of those that cannot be exported.
    byte_fallback: an unknown character becomes the pieces of its UTF-8 bytes.
    treat_whitespace_as_suffix: the mark of a space ends a word.
    normalization: name of the rule.
    charsmap: the rule; empty where text stays as it is.
    add_dummy_prefix: a space comes before the text.
    remove_extra_whitespaces: runs of spaces become one, those at both ends none.
    escape_whitespaces: spaces become U+2581.
    """

    pieces: list[tuple[str, float, PieceType]]
    model_type: int
    byte_fallback: bool
    treat_whitespace_as_suffix: bool
    normalization: str
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    def scores(self, *types: PieceType) -> dict[str, float]:
        """The pieces of some types with their scores; without types, all that encoding gives. Without <mask>."""
        if not types:
            types = (PieceType.NORMAL, PieceType.USER_DEFINED, *([PieceType.BYTE] if self.byte_fallback else []))
        return {piece: score for piece, score, kind in self.pieces if kind in types and piece != "<mask>"}

    def unused(self) -> list[str]:
        return [piece for piece, _, kind in self.pieces if kind == PieceType.UNUSED]


def read_sentencepiece(file: bytes) -> SentencePieceModel:
    """The model of a file that sentencepiece has read."""
    model = _fields(file)
    trainer, normalizer = (_fields(b"".join(model[number])) for number in (2, 3))
    pieces = []
    for piece in map(_fields, model[1]):
        (score,) = struct.unpack("<f", _last(piece, 2, bytes(4)))
        pieces.append((_last(piece, 1, b"").decode(), score, PieceType(_last(piece, 3, PieceType.NORMAL))))
    return SentencePieceModel(
        pieces=pieces,
        model_type=_last(trainer, 3, ModelType.UNIGRAM),
        byte_fallback=bool(_last(trainer, 35, False)),
        treat_whitespace_as_suffix=bool(_last(trainer, 24, False)),
        normalization=_last(normalizer, 1, b"").decode(),
        charsmap=_last(normalizer, 2, b""),
        add_dummy_prefix=bool(_last(normalizer, 3, True)),
        remove_extra_whitespaces=bool(_last(normalizer, 4, True)),
        escape_whitespaces=bool(_last(normalizer, 5, True)),
    )


def _last(fields: dict[int, list[Any]], number: int, default: Any) -> Any:
    return fields[number][-1] if number in fields else default


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of each field by number: integers, or bytes for all that is not one."""
    fields: dict[int, list[Any]] = defaultdict(list)
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(message, position)
            fields[key >> 3].append(value)
            continue
        if kind == 2:
            size, position = _varint(message, position)
        else:
            size = {1: 8, 5: 4}[kind]
        fields[key >> 3].append(message[position : position + size])
        position += size
    return fields


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """An integer, seven bits a byte, lowest first; and where the next value starts."""
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
