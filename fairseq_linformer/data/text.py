"""Text in and out: bytes that must be UTF-8, and long lists in messages."""

from collections.abc import Sequence

from ..errors import UserError

MOST_NAMED = 10


def decoded(content: bytes, where: str, *, mark: bool = False) -> str:
    """The text that bytes are; `mark`: without the byte-order mark that some editors put at the start.

    Raises:
        UserError: they are not UTF-8. The message starts with `where`.
    """
    try:
        return content.decode("utf-8-sig" if mark else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error})") from error


def check_line_ends(start: bytes, where: str) -> None:
    """Refuses a file that carriage returns alone would make one line of.

    Args:
        start: of the file: its first line, or more.
        where: what the message calls the file.

    Raises:
        UserError: there is no line feed, and more than one carriage return before the end.
    """
    if b"\n" not in start and start.rstrip(b"\r").count(b"\r") > 1:
        raise UserError(f"{where}: its lines end with carriage returns alone: convert it with tr '\\r' '\\n'")


def first_of(words: Sequence[str], rest: str = ", …") -> str:
    """The first MOST_NAMED of some words, with commas between them, and `rest` where there are more."""
    return ", ".join(words[:MOST_NAMED]) + (rest if len(words) > MOST_NAMED else "")
