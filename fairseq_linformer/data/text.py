"""Words of messages: long lists, cut short."""

from collections.abc import Sequence

MOST_NAMED = 10


def first_of(words: Sequence[str], rest: str = ", …") -> str:
    """The first MOST_NAMED of some words, with commas between them, and `rest` where there are more."""
    return ", ".join(words[:MOST_NAMED]) + (rest if len(words) > MOST_NAMED else "")
