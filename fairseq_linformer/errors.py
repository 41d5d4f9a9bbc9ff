"""Errors caused by user input, and helpers for their messages."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MOST_NAMED = 10  # items of a list in a message


class UserError(ValueError):
    """Error caused by user input: the message names the input, its value and the allowed values."""


def check(name: str, value: object, holds: bool, allowed: str) -> None:
    """Raise a UserError unless `holds` is true.

    `name` is an option as the user types it, and `allowed` completes "it must be ".
    """
    if not holds:
        typed = " ".join(str(value).split())  # so that the message is one line
        raise UserError(f"{name}={typed} is not allowed: it must be {allowed}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion of the most similar of `names` for the end of a message; empty if none is similar."""
    nearest = get_close_matches(name, list(names), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def join_truncated(words: Sequence[str]) -> str:
    """Return the first MOST_NAMED words, separated by commas, and an ellipsis if there are more."""
    return ", ".join([*words[:MOST_NAMED], *(["…"] if len(words) > MOST_NAMED else [])])
