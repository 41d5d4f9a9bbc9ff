"""Labelled texts, one or two a row, into the folder that fairseq's ``sentence_prediction`` task reads.

::

    OUT/dict.txt and the tokenizer's model       so that the folder alone says how to encode another text
    OUT/classification.json                      label names, counts
    OUT/input0/{dict.txt,train.bin,train.idx,valid.bin,...}   the text:        pieces </s>
    OUT/input1/{...}                                          the second text, for pairs only
    OUT/label/{dict.txt,train.bin,...}                        one item a row:  label </s>

The ``<s>`` in front (``task.init_token=0``), the second separator of a pair (``task.separator_token=2``) and
shortening (``task.shorten_method=truncate``) are the task's work, at each load. Labels are numbered by their sorted
names, not by frequency as fairseq-preprocess does, so two preparations of a task always agree; names are read from
``label/dict.txt``, where the n-th line is class n - 1.
"""

import contextlib
import itertools
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from .indexed import IndexedWriter
from .staging import staged_folder
from .tokenizer import DICTIONARY_FILE, Tokenizer

SUMMARY_FILE = "classification.json"  # until it is whole, the mark of a folder of ours
BATCH = 1000  # texts encoded at a time: enough to keep the tokenizer's threads busy, little memory
# What str.splitlines breaks at, and the tab. Runs of plain spaces stay: byte-level BPE has pieces for them.
WHITESPACE = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
RESERVED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # fairseq's own entries of every label dictionary


@dataclass(frozen=True)
class Example:
    """One row: a text, its label (None where it is not known), and the second text of a pair."""

    text: str
    label: str | None
    second: str | None = None


@dataclass
class SplitCounts:
    """Rows of a split, their tokens as the model sees them (with <s>, </s> and separators), and how many are long."""

    examples: int = 0
    tokens: int = 0
    long: int = 0


@dataclass(frozen=True)
class Summary:
    """What was written: class names in the order of their numbers, counts by split, and the length called long."""

    labels: tuple[str, ...]
    splits: dict[str, SplitCounts]
    long_length: int

    def lines(self) -> Iterator[str]:
        """The summary for people, a line at a time."""
        yield f"labels: {', '.join(f'{number} = {name}' for number, name in enumerate(self.labels))}"
        for split, counts in self.splits.items():
            yield (
                f"{split}: {counts.examples:,} examples, {counts.tokens / counts.examples:.0f} tokens on average, "
                f"{100 * counts.long / counts.examples:.1f} % longer than {self.long_length}"
            )


def write_classification(
    out: Path, splits: Mapping[str, Iterable[Example]], tokenizer: Tokenizer, long_length: int = 512
) -> Summary:
    """Encodes every split and writes the folder `out`, which appears only when it is complete.

    `splits` maps fairseq's split names to rows, read once and never held in memory; "train" is read first and names
    the labels. Rows of "test" may all come without a label: then no label/test is written.
    `long_length`: rows of more tokens than this are counted as long; nothing is cut.
    ValueError: `out` is a file or a folder with something in it; no "train"; a split without rows; a row whose text is
    empty, whose label is missing, unknown or impossible, or that is a pair among single texts or the reverse.
    """
    if "train" not in splits:
        raise ValueError(f"the splits are {', '.join(splits) or 'none'}, but a split named train is needed")
    with staged_folder(out.resolve(), SUMMARY_FILE) as (folder, summary_file):
        tokenizer.save(folder)
        tokenizer.dictionary.save(str(folder / DICTIONARY_FILE))
        counts: dict[str, SplitCounts] = {}
        dictionary, pairs = Dictionary(), False
        for split in ("train", *(name for name in splits if name != "train")):
            rows = iter(splits[split])
            first = next(rows, None)
            if first is None:
                raise ValueError(f"split {split} holds no example")
            if split == "train":
                pairs = first.second is not None
            counts[split], labels = _write_texts(
                folder, split, itertools.chain((first,), rows), tokenizer, pairs=pairs, long_length=long_length
            )
            if split == "train":
                dictionary = _label_dictionary(labels)
            _write_labels(folder / "label", split, labels, dictionary)
        for name in ("input0", "input1") if pairs else ("input0",):
            tokenizer.dictionary.save(str(folder / name / DICTIONARY_FILE))
        dictionary.save(str(folder / "label" / DICTIONARY_FILE))
        summary = Summary(_label_names(dictionary), counts, long_length)
        json.dump(asdict(summary), summary_file, indent=1)
    return summary


def fine_tuning_command(config: str, data: Path) -> str:
    """What to type next with a folder that was written for a config of configs/finetune."""
    task_data = shlex.quote(f"task.data={data}")
    return (
        f"fairseq-hydra-train --config-dir configs/finetune --config-name {config} model=MODEL "
        f"{task_data} checkpoint.finetune_from_model=CHECKPOINT"
    )


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
            columns = _clean_columns(batch, split, len(labels), pairs)
            lengths = np.full(len(batch), len(columns), dtype=np.int64)  # <s>, or what separates the two
            for column, writer in zip(columns, writers, strict=True):
                pieces = tokenizer.encode(column)
                sizes = np.array([len(ids) + 1 for ids in pieces], dtype=np.int64)
                if (sizes == 1).any():
                    row = int(np.argmax(sizes == 1))
                    raise ValueError(_at(split, len(labels) + row, f"no piece is left of the text {column[row]!r}"))
                writer.write(_end_each(pieces, tokenizer.dictionary.eos()), sizes)
                lengths += sizes
            labels.extend(None if example.label is None else sys.intern(example.label) for example in batch)
            counts.examples += len(batch)
            counts.tokens += int(lengths.sum())
            counts.long += int((lengths > long_length).sum())
    return counts, labels


def _clean_columns(batch: Sequence[Example], split: str, before: int, pairs: bool) -> list[list[str]]:
    """The texts of a batch, and the second texts for pairs, on one line each; `before` rows of the split came before.

    ValueError names the split and the row, counted from 1, that is empty or is not what the first row of train is.
    """
    columns: list[list[str]] = [[], []] if pairs else [[]]
    for row, example in enumerate(batch, before):
        if (example.second is not None) != pairs:
            expected = "pairs, as the first of train is" if pairs else "single texts, as the first of train is"
            found = "a single text" if pairs else "a pair"
            raise ValueError(_at(split, row, f"{found}, but all must be {expected}"))
        texts = (example.text,) if example.second is None else (example.text, example.second)
        for column, text in zip(columns, texts, strict=True):
            column.append(WHITESPACE.sub(" ", text).strip())
            if not column[-1]:
                raise ValueError(_at(split, row, f"the text is empty: {text!r}"))
    return columns


def _end_each(pieces: Sequence[np.ndarray], end: int) -> np.ndarray:
    """All ids in one array, (total,), with `end` after each text."""
    stop = np.array([end], dtype=np.int64)
    return np.concatenate([part for ids in pieces for part in (ids, stop)])


def _label_dictionary(labels: Sequence[str | None]) -> Dictionary:
    """fairseq's dictionary of the names in train, sorted, with how often each occurs."""
    counts: Counter[str] = Counter()
    for row, label in enumerate(labels):
        if label is None:
            raise ValueError(_at("train", row, "the label is missing"))
        counts[label] += 1
    dictionary = Dictionary()
    for name in sorted(counts):
        if not name or name != name.strip() or not name.isprintable() or name in RESERVED:
            raise ValueError(
                f"label {name!r}: a name is printable, without space at its ends, and none of {', '.join(RESERVED)}"
            )
        dictionary.add_symbol(name, n=counts[name])
    return dictionary


def _label_names(dictionary: Dictionary) -> tuple[str, ...]:
    return tuple(dictionary.symbols[dictionary.nspecial :])


def _write_labels(folder: Path, split: str, labels: Sequence[str | None], dictionary: Dictionary) -> None:
    """Writes one item, [label, </s>], a row; nothing for a test split in which no row has a label."""
    if split == "test" and all(label is None for label in labels):
        return
    names = _label_names(dictionary)
    items = np.full((len(labels), 2), dictionary.eos(), dtype=np.int64)
    for row, label in enumerate(labels):
        if label is None:
            raise ValueError(_at(split, row, "the label is missing"))
        if label not in names:
            raise ValueError(_at(split, row, f"label {label!r} is not one of train's: {', '.join(names)}"))
        items[row, 0] = dictionary.index(label)
    folder.mkdir(exist_ok=True)
    with IndexedWriter(folder / split, len(dictionary)) as writer:
        writer.write(items.reshape(-1), np.full(len(labels), 2, dtype=np.int64))


def _at(split: str, row: int, message: str) -> str:
    return f"split {split}, row {row + 1}: {message}"
