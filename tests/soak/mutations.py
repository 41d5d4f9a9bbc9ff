"""Mutated input: what a disk, an editor, a hurried script or an enemy makes of a file."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

ODD_TEXT = ["\0", "\ufeff", "\u2028", "\x85", "\u202e", "\u0301" * 50, "\N{DOG FACE}", "\r", "\t", "\n\n"]
ODD_TEXT += ['"', "\\", "'"]
ODD_BYTES = [text.encode() for text in ODD_TEXT]
ODD_BYTES += [b"\xff\xfe", b"\xed\xa0\x80", b" " * 5000, b"[" * 100_000, b'{"a":' * 50_000]
ODD_BYTES += [b"PK\3\4", b"\x1f\x8b", b"null"]
NUMBERS = [b"0", b"-1", b"1e999", b"-1e999", b"NaN", b"Infinity", b"2147483648", b"99999999999999999999", b"9" * 5000]
NUMBERS += [b"0.5", b"null", b"true", b'""', b"[]", b"{}"]
ODD_VALUES: list[Any] = [None, -1, 0, 1, 2.5, 10**12, 10**400, 1e300, float("nan"), float("inf"), True, "", "nan", "1"]
ODD_VALUES += ["x" * 1000, *ODD_TEXT, "\ud800", [], {}, [[]], [1, "a"], {"a": None}]

Mutation = Callable[[bytes, random.Random], bytes]


def mutate(content: bytes, chance: random.Random) -> bytes:
    """The content with one to three changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def flip(content: bytes, chance: random.Random) -> bytes:
    """The content with another byte in one place."""
    if not content:
        return content
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ chance.randrange(1, 256)]) + content[place + 1 :]


def _span(content: bytes, chance: random.Random) -> tuple[bytes, bytes, bytes]:
    """What is before a random span, the span, and what is behind it."""
    start = chance.randint(0, len(content))
    end = start + chance.choice((1, 4, 30, 1000))
    return content[:start], content[start:end], content[end:]


def _cut_end(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randint(0, len(content))]


def _cut_out(content: bytes, chance: random.Random) -> bytes:
    before, _, behind = _span(content, chance)
    return before + behind


def _insert(content: bytes, chance: random.Random) -> bytes:
    before, span, behind = _span(content, chance)
    return before + chance.choice([*ODD_BYTES, chance.randbytes(8)]) + span + behind


def _duplicate(content: bytes, chance: random.Random) -> bytes:
    before, span, behind = _span(content, chance)
    return before + span + span + behind


def _zero(content: bytes, chance: random.Random) -> bytes:
    """As of a block that never reached the disk."""
    before, span, behind = _span(content, chance)
    return before + bytes(len(span)) + behind


def _another_number(content: bytes, chance: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", content[:100_000]))
    if not found:
        return _insert(content, chance)
    place = chance.choice(found)
    return content[: place.start()] + chance.choice(NUMBERS) + content[place.end() :]


# Flips have three lots: they are what a disk does, and what is hardest to see.
CHANGES: Sequence[Mutation] = (flip, flip, flip, _cut_end, _cut_out, _insert, _duplicate, _zero, _another_number)


def mutate_json(content: Any, chance: random.Random, values: Sequence[Any] = ODD_VALUES) -> Any:
    """A copy of nested lists and dictionaries with a random place removed, doubled, renamed or given another value."""
    if not isinstance(content, dict | list) or not content or chance.random() < 0.15:
        return chance.choice(values)
    copy: Any = content.copy()
    place = chance.choice([*content]) if isinstance(content, dict) else chance.randrange(len(content))
    what = chance.random()
    if what < 0.15:
        del copy[place]
    elif what < 0.25 and isinstance(copy, dict):
        copy[chance.choice([f"{place}s", "", "\0", f" {place}"])] = copy.pop(place)
    elif what < 0.25:
        copy.append(copy[place])
    else:
        copy[place] = mutate_json(content[place], chance, values)
    return copy


def mutate_state(content: bytes, chance: random.Random) -> bytes:
    """A JSON file, changed as bytes or in what it says."""
    if chance.random() < 0.5:
        return mutate(content, chance)
    return json.dumps(mutate_json(json.loads(content), chance)).encode("utf-8", "surrogatepass")
