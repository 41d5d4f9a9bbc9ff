#!/usr/bin/env python3
"""Write the sources of Python's standard library as text to pretrain on, one file per document.

example:
  python scripts/python_sources.py --out data/python
  linformer prepare corpus --train data/python/train.txt --valid data/python/valid.txt --out data-bin/python

In a source file names recur at large distances: the information for a position is often many lines away. So attention
matters more here than in novels, and mechanisms can be compared (docs/quality.md). Every Python includes the text;
comparable figures need the same version of it. One file in twenty is for validation. Indentation, blank lines, tables
of character encodings, and files above 200,000 bytes, which are tables too, are left out.
"""

import random
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from fairseq_linformer.cli.arguments import Parser
from fairseq_linformer.cli.program import program
from fairseq_linformer.files import write_whole

LARGEST = 200_000  # bytes
VALID_SHARE = 0.05


def source_files() -> list[Path]:
    """Return the files of the running Python's standard library, in a shuffled order that depends on their names."""
    library = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(library) for path in library.rglob("*.py"))
    files = [library / name for name in names if not {"site-packages", "encodings"} & set(name.parts)]
    files = [path for path in files if path.stat().st_size <= LARGEST]
    random.Random(1).shuffle(files)
    return files


def as_documents(files: Iterable[Path]) -> str:
    """Return the lines of UTF-8 files without indentation, with a blank line after each file; leave out others."""
    documents = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        documents.append("\n".join(line.strip() for line in lines if line.strip()))
    return "\n\n".join(document for document in documents if document) + "\n"


def main() -> None:
    parser = Parser(None, __doc__)
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="gets train.txt and valid.txt")
    out = parser.parse_args().out
    with program():
        files = source_files()
        first = round(len(files) * VALID_SHARE)
        out.mkdir(parents=True, exist_ok=True)
        for split, split_files in (("valid", files[:first]), ("train", files[first:])):
            text = as_documents(split_files)
            write_whole(out / f"{split}.txt", text)
            print(f"{out / split}.txt: {len(split_files)} files, {len(text) / 1e6:.1f} million characters")


if __name__ == "__main__":
    main()
