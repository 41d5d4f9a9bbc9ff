"""Labelled texts, one or two a row, into the folder that fairseq's ``sentence_prediction`` task reads.

::

    OUT/dict.txt and the tokenizer's model       so that the folder alone says how to encode another text
    OUT/classification.json                      label names, counts, what scores are divided by
    OUT/input0/{dict.txt,train.bin,train.idx,valid.bin,...}   the text:        pieces </s>
    OUT/input1/{...}                                          the second text, for pairs only
    OUT/label/{dict.txt,train.bin,...}                        one item a row:  label </s>
    OUT/label/{train.label,...}                               instead of them, for scores: a number a line

The ``<s>`` in front (``task.init_token=0``), the second separator of a pair (``task.separator_token=2``) and shortening
(``task.truncation`` of our ``text_prediction``) are the task's work, at each load. Labels are numbered by their sorted
names, not by frequency as fairseq-preprocess does, so two preparations of a task always agree; names are read from
``label/dict.txt``, where the n-th line is class n - 1.
"""

import contextlib
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from ..errors import UserError
from ..system.files import check_data_path, staged_folder
from ..system.state import read_state
from .indexed import IndexedWriter
from .tokenizer import DICTIONARY_FILE, Tokenizer, unknown_warning

SUMMARY_FILE = "classification.json"  # until it is whole, the mark of a folder of ours
BATCH = 1000  # texts encoded at a time: enough to keep the tokenizer's threads busy, little memory
# What str.splitlines breaks at, and the tab. Runs of plain spaces stay: byte-level BPE has pieces for them.
WHITESPACE = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
RESERVED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # fairseq's own entries of every label dictionary


@dataclass(frozen=True)
class Example:
    """One row: a text, its label (a name, or a number; None where it is not known), and the second text of a pair."""

    text: str
    label: str | None
    second: str | None = None


@dataclass
class SplitCounts:
    """Rows of a split, their tokens as the model sees them (with <s>, </s> and separators), and how many are long.

    `unknown`: tokens that are <unk>.
    """

    examples: int = 0
    tokens: int = 0
    long: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Summary:
    """What was written: class names by number (none for scores), counts by split, and the length called long.

    `scale`: scores are written divided by it, and predictions are multiplied back.
    """

    labels: tuple[str, ...]
    splits: dict[str, SplitCounts]
    long_length: int
    scale: float = 1.0

    def lines(self) -> Iterator[str]:
        """The summary for people, a line at a time."""
        names = ", ".join(f"{number} = {name}" for number, name in enumerate(self.labels))
        yield f"labels: {names or 'scores'}"
        for split, counts in self.splits.items():
            yield (
                f"{split}: {counts.examples:,} examples, {counts.tokens / counts.examples:.0f} tokens on average, "
                f"{100 * counts.long / counts.examples:.1f} % longer than {self.long_length}, "
                f"{counts.unknown / counts.tokens:.3%} unknown"
            )
            yield from unknown_warning(split, counts.unknown, counts.tokens)


class _UnknownCount(TypedDict, total=False):
    unknown: int  # not in the folders of earlier versions


class _SplitCounts(_UnknownCount):
    """SplitCounts in the summary's file."""

    examples: int
    tokens: int
    long: int


class _Summary(TypedDict):
    """Summary in its file."""

    labels: list[str]
    splits: dict[str, _SplitCounts]
    long_length: int
    scale: float


def write_classification(
    out: Path,
    splits: Mapping[str, Iterable[Example]],
    tokenizer: Tokenizer,
    labels: Sequence[str] | None = None,
    long_length: int = 512,
    scale: float = 1.0,
) -> Summary:
    """Encodes every split and writes the folder `out`, which appears only when it is complete.

    `splits` maps fairseq's split names to rows, read once and never held in memory, "train" first. `labels` are the
    classes; none at all (an empty sequence) for labels that are numbers; None for those that occur in train. Rows of
    "test", "test1", … may all come without a label: then none is written.
    `long_length`: rows of more tokens than this are counted as long; nothing is cut. `scale`: scores are written
    divided by it, so that those of a task are between 0 and 1.
    ValueError: `out` is a file or a folder with something in it; no "train" to name the labels; a split without rows; a
    row without any text, whose label is missing, unknown or impossible, or that is a pair among single texts or the
    reverse.
    """
    check_data_path(out)
    if labels is None and "train" not in splits:
        raise UserError(f"the splits are {', '.join(splits) or 'none'}, but a split named train is needed")
    with staged_folder(out.resolve(), SUMMARY_FILE) as (folder, summary_file):
        tokenizer.save(folder)
        tokenizer.dictionary.save(str(folder / DICTIONARY_FILE))
        counts: dict[str, SplitCounts] = {}
        columns: dict[str, list[str | None]] = {}
        pairs: bool | None = None
        for split in sorted(splits, key=lambda name: name != "train"):
            rows = iter(splits[split])
            first = next(rows, None)
            if first is None:
                raise UserError(f"split {split} holds no example")
            pairs = first.second is not None if pairs is None else pairs
            counts[split], columns[split] = _write_texts(
                folder, split, itertools.chain((first,), rows), tokenizer, pairs=pairs, long_length=long_length
            )
        for name in ("input0", "input1") if pairs else ("input0",):
            tokenizer.dictionary.save(str(folder / name / DICTIONARY_FILE))
        summary = Summary(_write_label_folder(folder / "label", columns, labels, scale), counts, long_length, scale)
        json.dump(asdict(summary), summary_file, indent=1)
    return summary


def _write_label_folder(
    folder: Path, columns: Mapping[str, Sequence[str | None]], labels: Sequence[str] | None, scale: float
) -> tuple[str, ...]:
    """Writes the labels of every split that has them, and returns the names of the classes by number."""
    known = {
        split: _known(column, split)
        for split, column in columns.items()
        if not split.startswith("test") or any(label is not None for label in column)
    }
    counts = Counter(known["train"] if labels is None else labels)
    dictionary = _label_dictionary(counts)
    folder.mkdir()
    for split, values in known.items():
        if counts:
            _write_labels(folder, split, values, dictionary)
        else:
            _write_scores(folder, split, values, scale)
    if counts:
        dictionary.save(str(folder / DICTIONARY_FILE))
    return label_names(dictionary)


def read_summary(folder: Path) -> Summary:
    """The summary of a folder that ``write_classification`` wrote.

    FileNotFoundError where it is none, ValueError for a damaged one.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no prepared task: it holds no {SUMMARY_FILE}")
    content = read_state(path, _Summary)
    if not content["scale"] > 0:
        raise UserError(f"{path} is damaged: /scale is {content['scale']}, it must be above 0")
    splits = {
        split: SplitCounts(counts["examples"], counts["tokens"], counts["long"], counts.get("unknown", 0))
        for split, counts in content["splits"].items()
    }
    return Summary(tuple(content["labels"]), splits, content["long_length"], content["scale"])


def _write_texts(
    folder: Path, split: str, examples: Iterable[Example], tokenizer: Tokenizer, *, pairs: bool, long_length: int
) -> tuple[SplitCounts, list[str | None]]:
    """Writes input0, and input1 for pairs; returns the counts and the labels, one a row."""
    names = ("input0", "input1") if pairs else ("input0",)
    counts = SplitCounts()
    labels: list[str | None] = []
    with contextlib.ExitStack() as stack:
        writers = []
        for name in names:
            (folder / name).mkdir(exist_ok=True)
            writers.append(stack.enter_context(IndexedWriter(folder / name / split, len(tokenizer.dictionary))))
        rows = iter(tqdm(examples, desc=f"encoding {split}", unit="row", disable=None))
        while batch := list(itertools.islice(rows, BATCH)):
            lengths = np.full(len(batch), len(writers), dtype=np.int64)  # <s>, or what separates the two
            columns = encode_columns(batch, tokenizer, pairs=pairs, where=f"split {split}, row", before=len(labels))
            for pieces, writer in zip(columns, writers, strict=True):
                sizes = np.array([len(text) + 1 for text in pieces], dtype=np.int64)
                ids = _end_each(pieces, tokenizer.dictionary.eos())
                writer.write(ids, sizes)
                lengths += sizes
                counts.unknown += int((ids == tokenizer.dictionary.unk()).sum())
            labels.extend(None if example.label is None else sys.intern(example.label) for example in batch)
            counts.examples += len(batch)
            counts.tokens += int(lengths.sum())
            counts.long += int((lengths > long_length).sum())
    return counts, labels


def encode_columns(
    batch: Sequence[Example], tokenizer: Tokenizer, *, pairs: bool, where: str, before: int = 0
) -> list[list[np.ndarray]]:
    """The ids of the texts of some rows, and of the second texts for pairs, int32 of shape (tokens,) each.

    ValueError names the row, counted from 1 after `before` others and with `where` in front, that has no text, is not
    `pairs`, or of whose text no piece is left.
    """
    columns: list[list[str]] = [[], []] if pairs else [[]]
    for row, example in enumerate(batch, before + 1):
        if (example.second is not None) != pairs:
            expected = "pairs, as the first of train is" if pairs else "single texts, as the first of train is"
            found = "a single text" if pairs else "a pair"
            raise UserError(f"{where} {row}: {found}, but all must be {expected}")
        texts = (example.text,) if example.second is None else (example.text, example.second)
        for column, text in zip(columns, texts, strict=True):
            column.append(WHITESPACE.sub(" ", text).strip())
        if not any(column[-1] for column in columns):  # QQP has pairs with one empty question
            raise UserError(f"{where} {row}: the text is empty: {texts[0]!r}")
    encoded = [tokenizer.encode(column) for column in columns]
    for column, pieces in zip(columns, encoded, strict=True):
        for row, (text, ids) in enumerate(zip(column, pieces, strict=True), before + 1):
            if text and not ids.size:
                raise UserError(f"{where} {row}: no piece is left of the text {text!r}")
    return encoded


def _end_each(pieces: Sequence[np.ndarray], end: int) -> np.ndarray:
    """All ids in one array, (total,), with `end` after each text."""
    stop = np.array([end], dtype=np.int64)
    return np.concatenate([part for ids in pieces for part in (ids, stop)])


def _known(labels: Sequence[str | None], split: str) -> list[str]:
    """The labels of a split, of which none may be missing."""
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        raise UserError(_at(split, labels.index(None), "the label is missing"))
    return known


def _label_dictionary(counts: Counter[str]) -> Dictionary:
    """fairseq's dictionary of class names, sorted, with how often each occurs."""
    dictionary = Dictionary()
    for name in sorted(counts):
        if not name or name != name.strip() or not name.isprintable() or name in RESERVED:
            raise UserError(
                f"label {name!r}: a name is printable, without space at its ends, and none of {', '.join(RESERVED)}"
            )
        dictionary.add_symbol(name, n=counts[name])
    return dictionary


def label_names(dictionary: Dictionary) -> tuple[str, ...]:
    """The classes of a label dictionary, by number."""
    return tuple(dictionary.symbols[dictionary.nspecial :])


def _write_labels(folder: Path, split: str, labels: Sequence[str], dictionary: Dictionary) -> None:
    """Writes one item, [label, </s>], a row."""
    names = label_names(dictionary)
    items = np.full((len(labels), 2), dictionary.eos(), dtype=np.int64)
    for row, label in enumerate(labels):
        if label not in names:
            raise UserError(_at(split, row, f"label {label!r} is none of {', '.join(names)}"))
        items[row, 0] = dictionary.index(label)
    with IndexedWriter(folder / split, len(dictionary)) as writer:
        writer.write(items.reshape(-1), np.full(len(labels), 2, dtype=np.int64))


def _write_scores(folder: Path, split: str, scores: Sequence[str], scale: float) -> None:
    """Writes a number a line, as fairseq reads the targets of a regression."""
    with (folder / f"{split}.label").open("w", encoding="utf-8") as lines:
        for row, score in enumerate(scores):
            try:
                lines.write(f"{float(score) / scale!r}\n")
            except ValueError:
                raise UserError(_at(split, row, f"score {score!r} is no number")) from None


def _at(split: str, row: int, message: str) -> str:
    return f"split {split}, row {row + 1}: {message}"
