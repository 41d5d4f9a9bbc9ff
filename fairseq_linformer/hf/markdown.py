"""Escaping of untrusted text in Markdown tables."""

import re


def cell(value: object) -> str:
    """Escape a value for a cell of a table: one line, without links, HTML, code or further cells."""
    line = "".join(character if character.isprintable() else " " for character in str(value))
    return re.sub(r"[\\|`<&]|(?<=\])\(", r"\\\g<0>", " ".join(line.split()))
