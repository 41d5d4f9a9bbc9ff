"""Labelled texts, one or two per row, as the folder that our ``text_prediction`` task reads.

::

    OUT/dict.txt and the tokenizer's model       so that the folder suffices to encode another text
    OUT/task.json                                the task's record with its classes, and counts
    OUT/input0/{dict.txt,train.bin,train.idx,valid.bin,...}   the text:        pieces </s>
    OUT/input1/{...}                                          the second text, for pairs only
    OUT/label/{dict.txt,train.bin,...}                        one item per row, see below
    OUT/label/{train.label,...}                               instead of them, for a regression: a number per line

An item of ``label`` depends on the type of label:

- single-label: ``class </s>``
- multi-label: each class of the row once, by number, then ``</s>``; a row may have none
- token-label: for each piece of the text the class of its word if the word begins with it, else ``<pad>``; then
  ``</s>``. An unknown label is ``<unk>`` at the start of its word.

The task adds the ``<s>`` in front (``task.init_token=0``) and the second separator of a pair
(``task.separator_token=2``), and truncates (``task.truncation`` of our ``text_prediction``), at each load. Labels are
numbered by their sorted names, not by frequency as fairseq-preprocess does, so that two preparations of a task always
agree; names are read from ``label/dict.txt``, whose n-th line is class n - 1.
"""

import contextlib
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from ...errors import UserError
from ...files import staged_folder
from ..dictionaries import DICTIONARY_FILE
from ..indexed import Write, indexed_writer
from ..task_record import SUMMARY_FILE, SplitCounts, Summary, Task, check_label, label_names
from ..tokenizer import Tokenizer
from .examples import Example, Label, encode_columns, encode_words, names_of

LONG_LENGTH = 512  # rows of more tokens are counted as long; nothing is cut
BATCH = 1000  # texts encoded at a time: enough to keep the tokenizer's threads busy, little memory


def write_labelled(out: Path, task: Task, splits: Mapping[str, Iterable[Example]], tokenizer: Tokenizer) -> Summary:
    """Encode every split and write the folder `out`, which appears only when it is complete.

    Args:
        out: the folder.
        task: the record. If it names no classes, and is no regression, its classes are the labels of train.
        splits: rows by fairseq's split names, read once and never held in memory. Their labels are valid for the task.
            Rows of "test", "test1", … may all be without a label: then none is written (but for token labels, where
            words begin).
        tokenizer: the tokenizer of the model.

    Returns:
        The summary, its task with the classes.

    Raises:
        UserError: `out` is not empty; a split has no rows; a row has no text, or a class whose name is not allowed, or
            is a pair among single texts or the reverse.
    """
    with staged_folder(out, SUMMARY_FILE) as (folder, summary_file):
        tokenizer.save(folder)
        tokenizer.dictionary.save(str(folder / DICTIONARY_FILE))
        written: dict[str, _Split] = {}
        names: list[str] = []
        for split in sorted(splits, key=lambda name: name != "train"):
            rows = iter(splits[split])
            first = next(rows, None)
            if first is None:
                raise UserError(f"split {split} holds no example")
            if not names:
                names = ["input0"] if first.second is None else ["input0", "input1"]
                for name in names:
                    (folder / name).mkdir()
                    tokenizer.dictionary.save(str(folder / name / DICTIONARY_FILE))
            prefixes = [folder / name / split for name in names]
            written[split] = _write_texts(prefixes, itertools.chain((first,), rows), tokenizer)
        classes, by_class = _write_labels(folder / "label", task, written)
        counts = {split: of_split.counts for split, of_split in written.items()}
        summary = Summary(replace(task, classes=classes), counts, LONG_LENGTH, by_class)
        json.dump(summary.as_json(), summary_file, indent=1)
    return summary


@dataclass
class _Split:
    """Counts of a split, a label per row, and for token labels the number of pieces of each word."""

    counts: SplitCounts = field(default_factory=SplitCounts)
    labels: list[Label | None] = field(default_factory=list)
    words: list[np.ndarray] = field(default_factory=list)


def _write_texts(file_prefixes: Sequence[Path], examples: Iterable[Example], tokenizer: Tokenizer) -> _Split:
    """Write a split of input0, and of input1 for pairs."""
    written, dictionary, split = _Split(), tokenizer.dictionary, file_prefixes[0].name
    counts, prefix = written.counts, f"split {split}, row"
    bar = iter(tqdm(examples, desc=f"encoding {split}", unit="row", disable=None))
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(indexed_writer(file_prefix, len(dictionary))) for file_prefix in file_prefixes]
        while batch := list(itertools.islice(bar, BATCH)):
            offset = counts.examples
            if isinstance(batch[0].text, tuple):
                columns, words = encode_words(batch, tokenizer, prefix=prefix, offset=offset)
                written.words += words
            else:
                columns = encode_columns(batch, tokenizer, pairs=len(writers) == 2, prefix=prefix, offset=offset)
            lengths = np.full(len(batch), len(writers), dtype=np.int64)  # <s>, or the separator of the two
            for pieces, write in zip(columns, writers, strict=True):
                lengths += _write_items(write, [[*ids.tolist(), dictionary.eos()] for ids in pieces])
                counts.unknown += sum(int((ids == dictionary.unk()).sum()) for ids in pieces)
            written.labels.extend(sys.intern(row.label) if isinstance(row.label, str) else row.label for row in batch)
            counts.examples += len(batch)
            counts.tokens += int(lengths.sum())
            counts.long += int((lengths > LONG_LENGTH).sum())
    return written


def _write_items(write: Write, items: Sequence[Sequence[int]]) -> np.ndarray:
    """Append items, and return the length of each, (items,)."""
    sizes = np.array([len(item) for item in items], dtype=np.int64)
    write(np.fromiter(itertools.chain.from_iterable(items), dtype=np.int64, count=int(sizes.sum())), sizes)
    return sizes


def _write_labels(
    folder: Path, task: Task, splits: Mapping[str, _Split]
) -> tuple[tuple[str, ...], dict[str, Counter[str]]]:
    """Write the labels of every labelled split; return the classes by number, and their counts by split."""
    folder.mkdir()
    labels: dict[str, list[Label]] = {}
    for split, written in splits.items():
        labelled = [label for label in written.labels if label is not None]
        if labelled or not split.startswith("test"):
            assert len(labelled) == len(written.labels), f"{split}: a row has no label"
            labels[split] = labelled
    if task.kind == "regression":
        for split, scores in labels.items():
            lines = [f"{float(str(score)) / task.scale!r}\n" for score in scores]
            (folder / f"{split}.label").write_text("".join(lines), encoding="utf-8")
        return (), {}
    classes_of = names_of if task.kind == "token-label" else lambda label: set(names_of(label))
    by_class = {split: Counter(itertools.chain.from_iterable(map(classes_of, rows))) for split, rows in labels.items()}
    counts = by_class.get("train", Counter())
    dictionary = Dictionary()
    for name in sorted(task.classes or counts):
        check_label(name)
        dictionary.add_symbol(name, n=counts[name])
    for split, written in splits.items():
        assert by_class.get(split, Counter()).keys() <= set(label_names(dictionary)), f"{split}: an unknown label"
        if split in labels or task.kind == "token-label":
            with indexed_writer(folder / split, len(dictionary)) as write:
                _write_items(write, list(_label_items(task, labels.get(split), written.words, dictionary)))
    dictionary.save(str(folder / DICTIONARY_FILE))
    return label_names(dictionary), by_class


def _label_items(
    task: Task, labels: Sequence[Label] | None, words: Sequence[np.ndarray], dictionary: Dictionary
) -> Iterator[list[int]]:
    """Yield the item of each row, as in the module's docstring; unknown labels are None."""
    for row, label in enumerate([("<unk>",) * len(sizes) for sizes in words] if labels is None else labels):
        numbers = [dictionary.index(name) for name in names_of(label)]
        if task.kind == "multi-label":
            numbers = sorted(set(numbers))
        if task.kind == "token-label":
            pieces = np.full(int(words[row].sum()), dictionary.pad(), dtype=np.int64)
            pieces[np.cumsum(words[row]) - words[row]] = numbers
            numbers = pieces.tolist()
        yield [*numbers, dictionary.eos()]
