"""Labelled texts, one or two per row, into the folder that our ``text_prediction`` task reads.

::

    OUT/dict.txt and the tokenizer's model       so that the folder alone says how to encode another text
    OUT/task.json                                the task's record, its classes among it, and counts
    OUT/input0/{dict.txt,train.bin,train.idx,valid.bin,...}   the text:        pieces </s>
    OUT/input1/{...}                                          the second text, for pairs only
    OUT/label/{dict.txt,train.bin,...}                        one item per row, see below
    OUT/label/{train.label,...}                               instead of them, for a regression: a number per line

An item of ``label`` is, by the kind of the task:

- single-label: ``class </s>``
- multi-label: each class of the row once, by number, then ``</s>``; a row may have none
- token-label: for each piece of the text the class of its word where the word begins, ``<pad>`` elsewhere, then
  ``</s>``. Where labels are not known, ``<unk>`` stands where a word begins.

The ``<s>`` in front (``task.init_token=0``), the second separator of a pair (``task.separator_token=2``) and shortening
(``task.truncation`` of our ``text_prediction``) are the task's work, at each load. Labels are numbered by their sorted
names, not by frequency as fairseq-preprocess does, so two preparations of a task always agree; names are read from
``label/dict.txt``, where the n-th line is class n - 1.
"""

import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from ...errors import UserError
from ...system.files import check_data_path, staged_folder
from ..indexed import IndexedWriter
from ..summary import SUMMARY_FILE, SplitCounts, Summary
from ..task_record import Task, check_label, label_names
from ..tokenizer import DICTIONARY_FILE, Tokenizer
from ..unknown_pieces import Unknown
from .examples import Example, Label, encode_columns, encode_words, words_of

BATCH = 1000  # texts encoded at a time: enough to keep the tokenizer's threads busy, little memory


def write_labelled(
    out: Path,
    task: Task,
    splits: Mapping[str, Iterable[Example]],
    tokenizer: Tokenizer,
    long_length: int = 512,
) -> Summary:
    """Encodes every split and writes the folder `out`, which appears only when it is complete.

    Args:
        out: the folder to make.
        task: the record. Where it names no classes, and is no regression, they are those that occur in train.
        splits: fairseq's split names and their rows, read once and never held in memory. Rows of "test", "test1", …
            may all come without a label: then none is written (but for token labels, where words begin).
        tokenizer: that of the model.
        long_length: rows of more tokens than this are counted as long; nothing is cut.

    Returns:
        The summary, its task with the classes.

    Raises:
        UserError: `out` is a file or a folder with something in it; no "train" to find the classes in; a split without
            rows; a row without any text, whose label is missing, unknown or impossible, or that is a pair among single
            texts or the reverse.
    """
    check_data_path(out)
    found_in_train = not task.classes and task.kind != "regression"
    if found_in_train and "train" not in splits:
        raise UserError(f"the splits are {', '.join(splits) or 'none'}, but a split named train is needed")
    with staged_folder(out.resolve(), SUMMARY_FILE) as (folder, summary_file):
        tokenizer.save(folder)
        tokenizer.dictionary.save(str(folder / DICTIONARY_FILE))
        texts = _TextWriter(folder, tokenizer, long_length)
        for split in sorted(splits, key=lambda name: name != "train"):
            texts.write(split, splits[split])
        texts.save_dictionaries()
        classes, by_class = _write_label_folder(folder / "label", task, texts)
        for split, counts in texts.counts.items():
            texts.unknown.add(split, counts.tokens, counts.unknown)
        summary = Summary(replace(task, classes=classes), texts.counts, long_length, texts.unknown, by_class)
        json.dump(summary.as_json(), summary_file, indent=1)
    return summary


class _TextWriter:
    """Writes input0, and input1 for pairs; holds what was found meanwhile.

    Attributes:
        counts, labels: by split; a label per row.
        words: for token labels, by split and row, how many pieces each word has.
        unknown: its characters alone.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, long_length: int) -> None:
        self._folder, self._tokenizer, self._long_length = folder, tokenizer, long_length
        self._names: tuple[str, ...] = ()  # as the first row of the first split has them
        self.counts: dict[str, SplitCounts] = {}
        self.labels: dict[str, list[Label | None]] = {}
        self.words: dict[str, list[np.ndarray]] = {}
        self.unknown = Unknown()

    def write(self, split: str, examples: Iterable[Example]) -> None:
        rows = iter(examples)
        first = next(rows, None)
        if first is None:
            raise UserError(f"split {split} holds no example")
        self._names = self._names or (("input0",) if first.second is None else ("input0", "input1"))
        self.counts[split], self.labels[split], self.words[split] = SplitCounts(), [], []
        with contextlib.ExitStack() as stack:
            writers = []
            for name in self._names:
                (self._folder / name).mkdir(exist_ok=True)
                writer = IndexedWriter(self._folder / name / split, len(self._tokenizer.dictionary))
                writers.append(stack.enter_context(writer))
            chained = itertools.chain((first,), rows)
            bar = iter(tqdm(chained, desc=f"encoding {split}", unit="row", disable=None))
            while batch := list(itertools.islice(bar, BATCH)):
                self._write_batch(split, batch, writers)

    def _write_batch(self, split: str, batch: Sequence[Example], writers: Sequence[IndexedWriter]) -> None:
        counts, labels, dictionary = self.counts[split], self.labels[split], self._tokenizer.dictionary
        where, before = f"split {split}, row", len(labels)
        if isinstance(batch[0].text, tuple):
            columns, words = encode_words(batch, self._tokenizer, where=where, before=before)
            self.words[split] += words
        else:
            pairs = len(writers) == 2
            columns = encode_columns(batch, self._tokenizer, pairs=pairs, where=where, before=before)
        lengths = np.full(len(batch), len(writers), dtype=np.int64)  # <s>, or what separates the two
        for pieces, writer in zip(columns, writers, strict=True):
            sizes = np.array([len(text) + 1 for text in pieces], dtype=np.int64)
            ids = _end_each(pieces, dictionary.eos())
            writer.write(ids, sizes)
            lengths += sizes
            if unknown := int((ids == dictionary.unk()).sum()):
                counts.unknown += unknown
                rows = [row for row, text in zip(batch, pieces, strict=True) if (text == dictionary.unk()).any()]
                texts = (row.second if writer is not writers[0] else " ".join(words_of(row)) for row in rows)
                self.unknown.characters += self._tokenizer.unknown_characters(text or "" for text in texts)
        labels.extend(sys.intern(row.label) if isinstance(row.label, str) else row.label for row in batch)
        counts.examples += len(batch)
        counts.tokens += int(lengths.sum())
        counts.long += int((lengths > self._long_length).sum())

    def save_dictionaries(self) -> None:
        for name in self._names:
            self._tokenizer.dictionary.save(str(self._folder / name / DICTIONARY_FILE))


def _write_label_folder(
    folder: Path, task: Task, texts: _TextWriter
) -> tuple[tuple[str, ...], dict[str, Counter[str]]]:
    """Writes the labels of every split that has them.

    Returns:
        The names of the classes by number, and by split how often each stands there.
    """
    folder.mkdir()
    known = {
        split: _known(column, split)
        for split, column in texts.labels.items()
        if not split.startswith("test") or any(label is not None for label in column)
    }
    if task.kind == "regression":
        for split, values in known.items():
            _write_scores(folder, split, values, task.scale)
        return (), {}
    by_class = {split: Counter(itertools.chain.from_iterable(map(_names_of, known[split]))) for split in known}
    counts = by_class.get("train", Counter())
    dictionary = _label_dictionary({name: counts[name] for name in task.classes or counts})
    for split in texts.labels:
        if split in known:
            _write_classes(folder, split, task, known[split], dictionary, texts.words[split])
        elif task.kind == "token-label":
            _write_word_starts(folder, split, dictionary, texts.words[split])
    dictionary.save(str(folder / DICTIONARY_FILE))
    return label_names(dictionary), by_class


def _end_each(pieces: Sequence[np.ndarray], end: int) -> np.ndarray:
    """All ids in one array, (total,), with `end` after each text."""
    stop = np.array([end], dtype=np.int64)
    return np.concatenate([part for ids in pieces for part in (ids, stop)])


def _known(labels: Sequence[Label | None], split: str) -> list[Label]:
    """The labels of a split, of which none may be missing."""
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        raise UserError(_at(split, labels.index(None), "the label is missing"))
    return known


def _names_of(label: Label) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


def _label_dictionary(counts: Mapping[str, int]) -> Dictionary:
    """fairseq's dictionary of class names, sorted, with how often each occurs in train."""
    dictionary = Dictionary()
    for name in sorted(counts):
        check_label(name)
        dictionary.add_symbol(name, n=counts[name])
    return dictionary


def _write_classes(
    folder: Path, split: str, task: Task, labels: Sequence[Label], dictionary: Dictionary, words: Sequence[np.ndarray]
) -> None:
    """Writes the item of each row, as the module's docstring has them."""
    names = set(label_names(dictionary))
    items = []
    for row, label in enumerate(labels):
        if unknown := [name for name in _names_of(label) if name not in names]:
            raise UserError(_at(split, row, f"label {unknown[0]!r} is none of {', '.join(sorted(names))}"))
        numbers = [dictionary.index(name) for name in _names_of(label)]
        if task.kind == "single-label" and len(numbers) != 1:
            raise UserError(_at(split, row, f"{len(numbers)} labels, it must have one"))
        if task.kind == "multi-label":
            numbers = sorted(set(numbers))
        if task.kind == "token-label":
            if len(numbers) != len(words[row]):
                raise UserError(_at(split, row, f"{len(numbers)} labels for {len(words[row])} words"))
            numbers = _at_first_pieces(numbers, words[row], dictionary)
        items.append([*numbers, dictionary.eos()])
    _write_items(folder, split, items, dictionary)


def _write_word_starts(folder: Path, split: str, dictionary: Dictionary, words: Sequence[np.ndarray]) -> None:
    """Writes where words begin, for rows whose labels are not known."""
    rows = (
        [*_at_first_pieces([dictionary.unk()] * len(sizes), sizes, dictionary), dictionary.eos()] for sizes in words
    )
    _write_items(folder, split, list(rows), dictionary)


def _at_first_pieces(numbers: Sequence[int], sizes: np.ndarray, dictionary: Dictionary) -> list[int]:
    """A number per piece: that of a word at its first, ``<pad>`` at the others."""
    item = np.full(int(sizes.sum()), dictionary.pad(), dtype=np.int64)
    item[np.cumsum(sizes) - sizes] = numbers
    return item.tolist()


def _write_items(folder: Path, split: str, items: Sequence[Sequence[int]], dictionary: Dictionary) -> None:
    with IndexedWriter(folder / split, len(dictionary)) as writer:
        ids = np.fromiter(itertools.chain.from_iterable(items), dtype=np.int64)
        writer.write(ids, np.array([len(item) for item in items], dtype=np.int64))


def _write_scores(folder: Path, split: str, scores: Sequence[Label], scale: float) -> None:
    """Writes a number per line, as fairseq reads the targets of a regression."""
    with (folder / f"{split}.label").open("w", encoding="utf-8") as lines:
        for row, score in enumerate(scores):
            try:
                lines.write(f"{float(str(score)) / scale!r}\n")
            except ValueError:
                raise UserError(_at(split, row, f"score {score!r} is no number")) from None


def _at(split: str, row: int, message: str) -> str:
    return f"split {split}, row {row + 1}: {message}"
