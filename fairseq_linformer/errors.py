"""Errors caused by user input, and helpers for their messages."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
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


@contextlib.contextmanager
def naming(path: str, name: str) -> Iterator[None]:
    """Replace the path of a temporary file or folder by a name in error messages."""
    try:
        yield
    except (UserError, OSError) as error:
        if path not in str(error):
            raise
        raise type(error)(str(error).replace(f"{path}{os.sep}", f"{name}: ").replace(path, name)) from error


def one_line(text: object) -> str:
    """Return user input, such as a path, with its line breaks replaced by spaces."""
    return " ".join(str(text).splitlines())


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a suggestion of the most similar of `names` for the end of a message; empty if none is similar."""
    nearest = get_close_matches(name, list(names), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def join_truncated(words: Sequence[str]) -> str:
    """Return the first MOST_NAMED words, separated by commas, and an ellipsis if there are more."""
    return ", ".join([*words[:MOST_NAMED], *(["…"] if len(words) > MOST_NAMED else [])])
