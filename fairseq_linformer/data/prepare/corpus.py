"""Text files into a folder that fairseq's masked_lm task trains on.

The text is read twice and never held in memory as a whole. The first pass checks every byte and samples lines for the
vocabulary. The second encodes chunks of lines in worker processes and writes the ids in fairseq's binary format.
"""

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from tqdm import tqdm

from ...errors import UserError, naming
from ...system.files import check_data_path, staged_folder
from ...system.processes import available_cores
from ..frequencies import unigram_perplexity
from ..indexed import IndexedWriter
from ..shards import REPORT_FILE
from ..tokenizer import (
    DICTIONARY_FILE,
    ENCODER_FILE,
    MERGES_FILE,
    SENTENCEPIECE_FILE,
    GPT2Tokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    dictionary_in,
    load_tokenizer,
)
from ..unknown_pieces import Unknown
from .encoding import Encoded, chunk_encoder
from .line_sample import LineSample
from .text_files import Chunk, find_files, read_chunks
from .vocabulary_training import check_vocab_size, train_sentencepiece

DEFAULT_VOCAB_SIZE = 8000
DEFAULT_SAMPLE_CHARACTERS = 10_000_000
MOST_WORKERS = 1024
STANDARD_INPUT = Path("-")
USE = {"train": "to train on", "valid": "to validate on"}

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

    def add_text(self, chunk: Chunk) -> None:
        blank = chunk.lines.count("")
        self.documents += blank
        self.lines += len(chunk.lines) - blank
        self.bytes += chunk.bytes_read


def prepare_corpus(
    train: Sequence[Path],
    valid: Sequence[Path],
    out: Path,
    *,
    spm: Path | None = None,
    gpt2_bpe: Path | None = None,
    vocab_size: int | None = None,
    cover_letters: bool = False,
    sample_characters: int | None = None,
    seed: int = 1,
    workers: int | None = None,
) -> Unknown:
    """Makes the folder `out`: train and valid as .bin and .idx, dict.txt, the tokenizer's files and corpus.json.

    An item of the dataset is a line and </s>. The end of a document is an item of only </s>, as fairseq-preprocess
    stores a blank line. `out` appears when it is complete; until then the work is in `out`.partial, which a later run
    replaces.

    Args:
        train: text files (plain, .gz, .xz), folders of them, or "-" for standard input.
        valid: the same, for validation; empty for none.
        out: the folder; it must not exist, or be empty.
        spm: the tokenizer to use: whatever ``load_tokenizer`` takes.
        gpt2_bpe: or a folder with encoder.json, vocab.bpe and perhaps dict.txt.
        vocab_size: pieces of the vocabulary that is trained where neither is given (default DEFAULT_VOCAB_SIZE).
        cover_letters: as in ``train_sentencepiece``.
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
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers {workers}: must be from 1 to {MOST_WORKERS}")
    if [*train, *valid].count(STANDARD_INPUT) > 1:
        raise UserError("standard input (-) is named more than once among train and valid: it can be read only once")
    options = {"vocab-size": vocab_size, "cover-letters": cover_letters or None, "sample-characters": sample_characters}
    given = _given_tokenizer(spm, gpt2_bpe, options)
    sample = LineSample(sample_characters or DEFAULT_SAMPLE_CHARACTERS, seed)
    out = out.resolve()
    with staged_folder(out, REPORT_FILE) as (folder, report_file):
        files = {split: _found(names, folder) for split, names in (("train", train), ("valid", valid)) if names}
        print("text files:", ", ".join(f"{len(found):,} {USE[split]}" for split, found in files.items()), flush=True)
        with naming(str(folder / _SPOOL_FILE), "standard input"):
            reports = {
                split: _survey(found, sample if split == "train" and not given else None)
                for split, found in files.items()
            }
        if given:
            given.save(folder)
        tokenizer = given or _trained_tokenizer(sample, folder, vocab_size or DEFAULT_VOCAB_SIZE, cover_letters)
        unknown = Unknown()
        counts = _write_dataset(files, tokenizer, folder, workers, reports, unknown.characters)
        (folder / _SPOOL_FILE).unlink(missing_ok=True)
        json.dump({split: asdict(report) for split, report in reports.items()}, report_file, indent=1)
    _print_summary(reports, counts, time.monotonic() - started)
    for split, report in reports.items():
        unknown.add(split, report.tokens, report.unknown)
    return unknown


def _given_tokenizer(
    spm: Path | None, gpt2_bpe: Path | None, training_options: Mapping[str, int | None]
) -> Tokenizer | None:
    """The tokenizer that the user names, None if one is to be trained."""
    if spm is not None and gpt2_bpe is not None:
        raise UserError(f"spm {spm} and gpt2-bpe {gpt2_bpe}: give one tokenizer, not two")
    given = spm or gpt2_bpe
    for name, value in training_options.items():
        if value is not None and given is not None:
            raise UserError(f"{name} {value}: is for training a vocabulary, but that of {given} is used")
        if value is not None and value < 1:
            raise UserError(f"{name} {value}: must be at least 1")
    if training_options["vocab-size"] is not None:
        check_vocab_size("vocab-size", training_options["vocab-size"])
    if spm is not None:
        return load_tokenizer(spm)
    if gpt2_bpe is not None:
        return GPT2Tokenizer(gpt2_bpe / ENCODER_FILE, gpt2_bpe / MERGES_FILE, dictionary_in(gpt2_bpe))
    return None


def _found(names: Sequence[Path], folder: Path) -> list[Path]:
    """The text files of one split. Standard input is first written to a file, as the text is read twice."""
    if STANDARD_INPUT not in names:
        return find_files(names)
    spool = folder / _SPOOL_FILE
    with spool.open("wb") as stream:
        shutil.copyfileobj(sys.stdin.buffer, stream)
    return find_files(spool if name == STANDARD_INPUT else name for name in names)


def _survey(files: Sequence[Path], sample: LineSample | None) -> SplitReport:
    """First pass: checks and counts the text, and draws `sample` from it.

    Raises:
        UserError: as ``read_chunks``.
    """
    report = SplitReport()
    last_line = ""
    with tqdm(desc="checking the text", unit="B", unit_scale=True, disable=None) as progress:
        for chunk in read_chunks(files):
            report.add_text(chunk)
            if chunk.lines:
                last_line = chunk.lines[-1]
            if sample is not None:
                sample.add(chunk.lines)
            progress.update(chunk.bytes_read)
    report.documents += last_line != ""
    return report


def _trained_tokenizer(sample: LineSample, folder: Path, vocab_size: int, cover_letters: bool) -> Tokenizer:
    """Trains a sentencepiece model and writes it to `folder`."""
    lines = sample.lines()
    print(f"training a vocabulary of {vocab_size:,} pieces on {sum(map(len, lines)):,} characters", flush=True)
    model = folder / SENTENCEPIECE_FILE
    train_sentencepiece(lines, model, vocab_size, _TRAINING_THREADS, cover_letters=cover_letters)
    return SentencePieceTokenizer(model)


def _write_dataset(
    files: dict[str, list[Path]],
    tokenizer: Tokenizer,
    folder: Path,
    workers: int,
    reports: dict[str, SplitReport],
    lacking: Counter[str],
) -> dict[str, np.ndarray]:
    """Second pass: writes both splits, and dict.txt with the counts of train.

    Counts the tokens in `reports`, and in `lacking` the characters that the vocabulary lacks.

    Returns:
        How often each id occurs, by split, int64, (V,).
    """
    _save_dictionary(tokenizer.dictionary, folder)  # the workers read it
    size = len(tokenizer.dictionary)
    counts = {}
    with chunk_encoder(tokenizer, folder, workers) as encode:
        for split, report in reports.items():
            counts[split] = _write_split(folder / split, size, encode(read_chunks(files[split])), report.bytes, lacking)
            report.tokens = int(counts[split].sum())
            report.unknown = int(counts[split][tokenizer.dictionary.unk()])
    tokenizer.dictionary.count = counts["train"].tolist()
    _save_dictionary(tokenizer.dictionary, folder)
    return counts


def _write_split(
    prefix: Path, vocab_size: int, encoded: Encoded, total_bytes: int, lacking: Counter[str]
) -> np.ndarray:
    """Writes a split's .bin and .idx. Returns how often each id occurs: int64, (vocab_size,)."""
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


def _save_dictionary(dictionary: Dictionary, folder: Path) -> None:
    with (folder / DICTIONARY_FILE).open("w", encoding="utf-8") as stream:
        dictionary.save(stream)


def print_split(split: str, report: SplitReport) -> None:
    """What a split holds."""
    print(
        f"{split}: {report.documents:,} documents, {report.lines:,} lines, {report.tokens:,} tokens, "
        f"{report.unknown / report.tokens:.3%} unknown"
    )


def _print_summary(reports: dict[str, SplitReport], counts: dict[str, np.ndarray], seconds: float) -> None:
    for split, report in reports.items():
        print_split(split, report)
    if "valid" in counts:
        level = unigram_perplexity(counts["train"], counts["valid"])
        print(f"perplexity of valid by token frequencies alone: {level:.1f}")
    megabytes = sum(report.bytes for report in reports.values()) / 1e6
    print(f"{megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s")
