"""The text to pretrain on, and the table of functions, of docs/when.md:

    PYTHONPATH=scripts python docs/commands/when_functions.py OUT

A function's label is the first word of its name, one of the twenty most frequent ones; its text is the function with
another name and without its docstring. They are those of the Python packages installed beside this one. Tests are left
out, and transformers' models, whose files copy each other. One file in seven is for validation and the test, and in no
text to pretrain on.
"""

import ast
import json
import random
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from python_sources import as_documents, files_below

CLASSES, PER_CLASS, LINES = 20, 700, 5  # at most so many rows of a class, of functions with at least so many lines
HELD_OUT, VALID, CHARACTERS = 7, 0.2, 36_000_000  # one file in seven, a fifth of them for validation; to pretrain on


def is_own(name: Path) -> bool:
    """Whether a file of the packages is read, by its path below their folder."""
    return not {"tests", "test", "testing"} & set(name.parts) and name.parts[:2] != ("transformers", "models")


def functions(path: Path) -> Iterator[tuple[str, str]]:
    """The text and the first word of the name of each function that is in no other function."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):
        return
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef))]
    for node in (node for body in bodies for node in body if isinstance(node, ast.FunctionDef)):
        word = re.search(r"[A-Z]?[a-z]+", node.name)
        if word and not node.name.startswith("__") and (node.end_lineno or 0) - node.lineno >= LINES - 1:
            if ast.get_docstring(node) is not None and len(node.body) > 1:
                del node.body[0]
            yield re.sub(rf"\b{re.escape(node.name)}\b", "f", ast.unparse(node)), word[0].lower()


def unseen(files: Iterable[Path], seen: set[str]) -> list[tuple[str, str]]:
    rows = []
    for path in files:
        for text, label in functions(path):
            flat = " ".join(text.split())
            if flat not in seen:
                seen.add(flat)
                rows.append((flat, label))
    return rows


def write(name: str, rows: list[tuple[str, str]], labels: set[str], per_class: int) -> None:
    random.Random(1).shuffle(rows)
    taken: Counter[str] = Counter()
    with (out / name).open("w", encoding="utf-8") as stream:
        for text, label in rows:
            if label in labels and taken[label] < per_class:
                taken[label] += 1
                stream.write(json.dumps({"text": text, "label": label}) + "\n")
    print(name, taken.total(), "rows", dict(taken))


out = Path(sys.argv[1])
out.mkdir(parents=True)
warnings.simplefilter("ignore", SyntaxWarning)  # of what others have written
files = files_below(Path(sysconfig.get_path("purelib")), is_own)
held_out, own = files[: len(files) // HELD_OUT], files[len(files) // HELD_OUT :]
cut = round(len(held_out) * VALID)
seen: set[str] = set()
valid, test, train = (unseen(some, seen) for some in (held_out[:cut], held_out[cut:], own))
labels = {label for label, _ in Counter(label for _, label in train).most_common(CLASSES)}
for name, rows, per_class in (("train", train, PER_CLASS), ("valid", valid, 50), ("test", test, 100)):
    write(f"functions.{name}.jsonl", rows, labels, per_class)
(out / "valid.txt").write_text(as_documents(held_out[:cut]), encoding="utf-8")
(out / "train.txt").write_text(as_documents(own)[:CHARACTERS], encoding="utf-8")
