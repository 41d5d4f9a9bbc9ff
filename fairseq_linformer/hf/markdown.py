"""Text of others in Markdown: as it is, and nothing but text."""

import re


def fenced(text: str, language: str) -> str:
    """A block of code, which nothing in the text ends."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{language}\n{text}\n{fence}"


def cell(value: object) -> str:
    """A value as the text of a table's cell: one line, without links, HTML, code or cells of its own."""
    line = "".join(character if character.isprintable() else " " for character in str(value))
    return re.sub(r"[\\|`<&]|(?<=\])\(", r"\\\g<0>", " ".join(line.split()))
