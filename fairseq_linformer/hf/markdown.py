"""Text of others in a Markdown table."""

import re


def cell(value: object) -> str:
    """Return a value as the text of a table's cell: one line, without links, HTML, code or cells of its own."""
    line = "".join(character if character.isprintable() else " " for character in str(value))
    return re.sub(r"[\\|`<&]|(?<=\])\(", r"\\\g<0>", " ".join(line.split()))
