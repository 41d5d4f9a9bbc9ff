"""Errors that the user can mend, and the words of their messages."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

MOST_NAMED = 10  # items of a list in a message
LAST_LINES = "; its last lines:\n"  # after it, a message shows what a failed program printed


class UserError(ValueError):
    """What the user can mend: the message names the thing, its value and what is allowed."""


def check(name: str, value: object, holds: bool, allowed: str) -> None:
    """Refuses a value that an option cannot have.

    Args:
        name: of the option, as the user types it.
        value: that was given.
        holds: whether it is allowed.
        allowed: what is allowed; it completes "it must be ".

    Raises:
        UserError: `holds` is false. The message names the option, its value and what is allowed.
    """
    if not holds:
        typed = " ".join(str(value).split())  # the message is one line, whatever was typed
        raise UserError(f"{name}={typed} is not allowed: it must be {allowed}")


@contextlib.contextmanager
def naming(hidden: str, shown: str) -> Iterator[None]:
    """Lets errors that the user can mend call a temporary file or folder by what it holds."""
    try:
        yield
    except (UserError, OSError) as error:
        if hidden not in str(error):
            raise
        raise type(error)(str(error).replace(f"{hidden}{os.sep}", f"{shown}: ").replace(hidden, shown)) from error


def one_line(text: object) -> str:
    """What a user typed, such as a path, with a space for each line break in it."""
    return " ".join(str(text).splitlines())


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question about the most similar of `names`, to end a message with; empty where none is similar."""
    nearest = get_close_matches(name, list(names), n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def join_truncated(words: Sequence[str], rest: str = ", …") -> str:
    """Return the first MOST_NAMED words with commas between them, and `rest` if there are more."""
    return ", ".join(words[:MOST_NAMED]) + (rest if len(words) > MOST_NAMED else "")
