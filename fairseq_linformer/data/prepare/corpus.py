"""Text files into a folder that fairseq's masked_lm task trains on.

The text is read twice and never held in memory as a whole. The first pass checks every byte and samples lines for the
vocabulary. The second encodes chunks of lines in worker processes and writes the ids in fairseq's binary format.
"""

import json
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ...errors import UserError, naming
from ...system.files import check_data_path, staged_folder
from ...system.processes import available_cores
from ..dictionaries import DICTIONARY_FILE, dictionary_in
from ..indexed import IndexedWriter
from ..shards import REPORT_FILE
from ..text import first_of
from ..tokenizer import (
    ENCODER_FILE,
    MERGES_FILE,
    SENTENCEPIECE_FILE,
    GPT2Tokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    load_tokenizer,
)
from ..unknown_pieces import Unknown
from .encoding import Encoded, chunk_encoder
from .line_sample import LineSample
from .text_files import find_files, read_chunks
from .vocabulary_training import check_vocab_size, train_sentencepiece

DEFAULT_VOCAB_SIZE = 8000
DEFAULT_SAMPLE_CHARACTERS = 10_000_000
MOST_WORKERS = 1024
STANDARD_INPUT = Path("-")

# Where standard input waits for the second pass.
_SPOOL_FILE = "standard-input"

# A fixed number, not that of the machine's cores: it changes how sentencepiece rounds partial sums, and the vocabulary
# should not depend on the machine that trained it.
_TRAINING_THREADS = 16


@dataclass
class SplitReport:
    """Counts of one split of the corpus. The </s> at the end of each item counts as a token."""

    documents: int = 0
    lines: int = 0
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        return (
            f"{self.documents:,} documents, {self.lines:,} lines, {self.tokens:,} tokens, "
            f"{self.unknown / self.tokens:.3%} unknown"
        )


def prepare_corpus(
    train: Sequence[Path],
    valid: Sequence[Path],
    out: Path,
    *,
    tokenizer: Path | None = None,
    vocab_size: int | None = None,
    sample_characters: int | None = None,
    seed: int = 1,
    workers: int | None = None,
) -> Unknown:
    """Makes the folder `out`: train and valid as .bin and .idx, dict.txt, the tokenizer's files and corpus.json.

    An item of the dataset is a line and </s>; the end of a document is an item of only </s>, as fairseq-preprocess
    stores a blank line. `out` appears when it is complete; until then the work is in `out`.partial.

    Args:
        train: text files (plain, .gz, .xz), folders of them, or "-" for standard input.
        valid: the same, for validation; empty for none.
        out: the folder; it must not exist, or be empty.
        tokenizer: whatever ``load_tokenizer`` takes, or a folder with GPT-2's files alone; None to train a vocabulary.
        vocab_size: pieces of the vocabulary that is trained (default DEFAULT_VOCAB_SIZE).
        sample_characters: of `train`, at most, to train the vocabulary on (default DEFAULT_SAMPLE_CHARACTERS).
        seed: of that sample, at least 0.
        workers: processes that encode, from 1 to MOST_WORKERS (default: one per core).

    Returns:
        What the vocabulary lacks of the text.

    Raises:
        OSError: a file is missing or cannot be read or written, or a worker process was killed.
        UserError: an option cannot work, a text cannot be used, or `out` is in use; the message names it.
    """
    started = time.monotonic()
    check_data_path(out)
    workers = available_cores() if workers is None else workers
    _check_sources([*train, *valid], workers)
    _check_training(tokenizer, {"vocab-size": vocab_size, "sample-characters": sample_characters})
    used = None if tokenizer is None else given_tokenizer(tokenizer)
    sample = LineSample(sample_characters or DEFAULT_SAMPLE_CHARACTERS, seed)
    with staged_folder(out, REPORT_FILE) as (folder, report_file):
        files = _found(train, valid, folder)
        uses = (f"{len(found):,} to {'train' if split == 'train' else 'validate'} on" for split, found in files.items())
        print("text files:", ", ".join(uses), flush=True)
        with naming(str(folder / _SPOOL_FILE), "standard input"):
            reports = {split: _survey(files[split], None if used or split == "valid" else sample) for split in files}
        if used:
            used.save(folder)
        used = used or _trained_tokenizer(sample, folder, vocab_size or DEFAULT_VOCAB_SIZE)
        unknown, counts = _write_dataset(files, used, folder, workers, reports)
        (folder / _SPOOL_FILE).unlink(missing_ok=True)
        json.dump({split: asdict(report) for split, report in reports.items()}, report_file, indent=1)
    _print_summary(reports, counts, time.monotonic() - started)
    return unknown


def _check_sources(names: Sequence[Path], workers: int) -> None:
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers {workers}: must be from 1 to {MOST_WORKERS}")
    if names.count(STANDARD_INPUT) > 1:
        raise UserError("standard input (-) is named more than once among train and valid: it can be read only once")


def _check_training(tokenizer: Path | None, options: Mapping[str, Any]) -> None:
    """Refuses options of the vocabulary's training, by name, that are too small, or given with a tokenizer."""
    for name, value in options.items():
        if value is not None and tokenizer is not None:
            raise UserError(f"{name} {value}: is for training a vocabulary, but that of {tokenizer} is used")
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: must be at least 1")
    if options["vocab-size"] is not None:
        check_vocab_size("vocab-size", options["vocab-size"])


def given_tokenizer(place: Path) -> Tokenizer:
    """The tokenizer of a place; GPT-2's files make one without dict.txt, too."""
    encoder, merges = place / ENCODER_FILE, place / MERGES_FILE
    return GPT2Tokenizer(encoder, merges, dictionary_in(place)) if encoder.is_file() else load_tokenizer(place)


def unigram_perplexity(train: np.ndarray, valid: np.ndarray) -> float:
    """Of a model that predicts each token by how often it occurs, which every other must beat.

    Args:
        train: counts of tokens, (V,); to each one is added, because a token may occur in valid only.
        valid: the same of the tokens whose perplexity it is.
    """
    log_probabilities = np.log((train + 1) / (train + 1).sum())
    return math.exp(-(valid * log_probabilities).sum() / valid.sum())


def _found(train: Sequence[Path], valid: Sequence[Path], folder: Path) -> dict[str, list[Path]]:
    """The text files by split. Standard input is first written to a file, as the text is read twice."""
    spool = folder / _SPOOL_FILE
    if STANDARD_INPUT in (*train, *valid):
        with spool.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
    first, second = ([spool if name == STANDARD_INPUT else name for name in names] for names in (train, valid))
    held_out = find_files(second)
    trained = find_files(first, held_out)
    warn_of_both(trained, held_out)
    return {"train": trained, **({"valid": held_out} if valid else {})}


def warn_of_both(trained: Iterable[Path], held_out: Iterable[Path]) -> None:
    """Names the files that are to train and to validate on, by whatever paths."""
    places = set(map(os.path.realpath, held_out))
    if both := sorted(path.name for path in trained if os.path.realpath(path) in places):
        print(f"warning: to train and to validate on: {first_of(both)}; its loss will say little of other text")


def _survey(files: Sequence[Path], sample: LineSample | None) -> SplitReport:
    """First pass: checks and counts the text, and draws `sample` from it.

    Raises:
        UserError: as ``read_chunks``.
    """
    report, last_line = SplitReport(), ""
    with tqdm(desc="checking the text", unit="B", unit_scale=True, disable=None) as progress:
        for chunk in read_chunks(files):
            blank = chunk.lines.count("")
            report.documents += blank
            report.lines += len(chunk.lines) - blank
            report.bytes += chunk.bytes_read
            last_line = chunk.lines[-1] if chunk.lines else last_line
            if sample is not None:
                sample.add(chunk.lines)
            progress.update(chunk.bytes_read)
    report.documents += last_line != ""
    return report


def _trained_tokenizer(sample: LineSample, folder: Path, vocab_size: int) -> Tokenizer:
    """Trains a sentencepiece model and writes it to `folder`."""
    lines = sample.lines()
    print(f"training a vocabulary of {vocab_size:,} pieces on {sum(map(len, lines)):,} characters", flush=True)
    model = folder / SENTENCEPIECE_FILE
    train_sentencepiece(lines, model, vocab_size, _TRAINING_THREADS)
    return SentencePieceTokenizer(model)


def _write_dataset(
    files: Mapping[str, Sequence[Path]],
    tokenizer: Tokenizer,
    folder: Path,
    workers: int,
    reports: Mapping[str, SplitReport],
) -> tuple[Unknown, dict[str, np.ndarray]]:
    """Second pass: writes both splits, and dict.txt with the counts of train. Counts the tokens in `reports`.

    Returns:
        What the vocabulary lacks, and how often each id occurs, by split, int64, (V,).
    """
    dictionary, unknown, counts = tokenizer.dictionary, Unknown(), {}
    dictionary.save(str(folder / DICTIONARY_FILE))  # the workers read it
    with chunk_encoder(tokenizer, folder, workers) as encode:
        for split, report in reports.items():
            encoded = encode(read_chunks(files[split]))
            counts[split] = _write_split(folder / split, len(dictionary), encoded, report.bytes, unknown.characters)
            report.tokens, report.unknown = int(counts[split].sum()), int(counts[split][dictionary.unk()])
            unknown.add(split, report.tokens, report.unknown)
    dictionary.count = counts["train"].tolist()
    dictionary.save(str(folder / DICTIONARY_FILE))
    return unknown, counts


def _write_split(
    prefix: Path, vocab_size: int, encoded: Encoded, total_bytes: int, lacking: Counter[str]
) -> np.ndarray:
    """Writes a split's .bin and .idx, and adds to `lacking` the characters that the vocabulary lacks.

    Returns:
        How often each id occurs: int64, (vocab_size,).
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    with (
        IndexedWriter(prefix, vocab_size) as writer,
        tqdm(desc=f"encoding {prefix.name}", total=total_bytes, unit="B", unit_scale=True, disable=None) as progress,
    ):
        for items, bytes_read in encoded:
            writer.write(items.ids, items.sizes)
            counts += np.bincount(items.ids, minlength=vocab_size)
            lacking += items.lacking
            progress.update(bytes_read)
    return counts


def _print_summary(reports: Mapping[str, SplitReport], counts: Mapping[str, np.ndarray], seconds: float) -> None:
    for split, report in reports.items():
        print(f"{split}: {report}")
    if "valid" in counts:
        level = unigram_perplexity(counts["train"], counts["valid"])
        print(f"perplexity of valid by token frequencies alone: {level:.1f}")
    megabytes = sum(report.bytes for report in reports.values()) / 1e6
    print(f"{megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s")
