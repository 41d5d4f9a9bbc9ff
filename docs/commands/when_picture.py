"""The picture of docs/when.md, of the tables that stand there above it in the page:

PYTHONPATH=scripts python docs/commands/when_picture.py docs/when.md docs/when/when.png
"""

import re
import sys
from pathlib import Path

from benchmarking.plots import Panel, draw

page, picture = map(Path, sys.argv[1:])


def cells(line: str) -> list[str]:
    return [cell.strip(" *") for cell in line.strip("|").split("|")]


def values(cell: str) -> list[float]:
    """A mean with the deviation on either side of it, or one number."""
    if not re.match(r"\d", cell):
        return []
    mean, _, spread = cell.replace("*", "").partition(" ± ")
    return [float(mean) + sign * float(spread) for sign in (-1, 0, 1)] if spread else [float(mean)]


def panel(table: str) -> Panel | None:
    """Of a table whose columns are numbers of labelled rows."""
    head, _, *lines = map(cells, table.splitlines())
    if not head[1].endswith(" rows"):
        return None
    title, measure = re.fullmatch(r"(.*?)(?: \(.*\))?, % of (.*)", head[0]).groups()
    counts = [int(re.search(r"\d+(,\d{3})*", cell)[0].replace(",", "")) for cell in head[1:]]
    curves = {name: dict(zip(counts, map(values, found), strict=True)) for name, *found in lines}
    return Panel(curves, title=title, x="labelled rows", y=f"% of {measure}", log=False)


found = filter(None, map(panel, re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)))
first, second, *others = found
draw([[first, second], others], picture)
