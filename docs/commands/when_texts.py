"""The text to pretrain on, and the tables of reviews and books, of docs/when.md:

    python docs/commands/when_texts.py BOOKS GLUE IMDB OUT

BOOKS holds train.txt.xz, valid.txt.xz and test.txt.xz, novels with a blank line after each, GLUE the folder SST-2; IMDB
is aclImdb or a sample of it with at least 5,500 reviews for training and 2,000 for the test.
"""

import json
import lzma
import sys
from collections.abc import Iterable
from pathlib import Path

from fairseq_linformer.data.prepare.glue import read_glue

NOVELS, ROWS, VALID, TEST = 60, 5000, 500, 2000  # of them half per class
CLASSES, WORDS = 20, 100  # books to tell apart, and the fewest words of a passage
Rows = list[tuple[str, str]]


def read_reviews(folder: Path) -> dict[str, list[str]]:
    return {
        label: [file.read_text(encoding="utf-8") for file in sorted((folder / label).glob("*.txt"))]
        for label in ("neg", "pos")
    }


def slice_of(reviews: dict[str, list[str]], first: int, count: int) -> Rows:
    begin, end = first // 2, (first + count) // 2
    return [(text, label) for label, texts in reviews.items() for text in texts[begin:end]]


def write(name: str, rows: Rows) -> None:
    lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    (out / name).write_text("".join(lines), encoding="utf-8")


def document(lines: Iterable[str]) -> str:
    return "\n".join(line for line in lines if line.strip())


def read_books(split: str) -> list[str]:
    with lzma.open(books / f"{split}.txt.xz", "rt", encoding="utf-8") as stream:
        return [book for book in stream.read().split("\n\n") if book.strip()]


def passages(book: str) -> list[str]:
    """Whole paragraphs, so many that they have enough words."""
    found: list[str] = []
    words: list[str] = []
    for paragraph in book.split("\n"):
        words += paragraph.split()
        if len(words) >= WORDS:
            found.append(" ".join(words))
            words = []
    return found


books, glue, imdb, out = map(Path, sys.argv[1:])
out.mkdir(parents=True)
train, test = (read_reviews(imdb / split) for split in ("train", "test"))
write("reviews.train.jsonl", slice_of(train, 0, ROWS))
write("reviews.valid.jsonl", slice_of(train, ROWS, VALID))
write("reviews.all.jsonl", slice_of(train, 0, ROWS) + slice_of(train, ROWS + VALID, sum(map(len, train.values()))))
negative, positive = test["neg"][: TEST // 2], test["pos"][-TEST // 2 :]
write("reviews.test.jsonl", [*((text, "neg") for text in negative), *((text, "pos") for text in positive)])

# Which of 20 books: a book's first 70 % are to learn from, its last 20 % the test. They are in no text to pretrain on.
to_tell_apart = sorted(read_books("valid") + read_books("test"), key=len)[-CLASSES:]
for split, begin, end in (("train", 0.0, 0.7), ("valid", 0.7, 0.8), ("test", 0.8, 1.0)):
    cut = [(str(number), passages(book)) for number, book in enumerate(to_tell_apart)]
    rows = [(text, label) for label, found in cut for text in found[int(begin * len(found)) : int(end * len(found))]]
    write(f"novels.{split}.jsonl", rows)

# To pretrain on: novels, and what is to be classified, without its labels and without the test's
texts = [document(book.split("\n")) for book in read_books("train")[: NOVELS + 1]]
held_out = texts.pop()
texts += [document(text.replace("<br />", "\n").split("\n")) for label in train for text in train[label]]
texts.append(document(str(row.text) for row in read_glue(glue, "SST-2")["train"].examples))
(out / "valid.txt").write_text(held_out + "\n", encoding="utf-8")
(out / "train.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
