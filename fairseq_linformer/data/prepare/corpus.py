"""Preparation of text files as a folder that fairseq's masked_lm task trains on.

The text is read twice and never held in memory as a whole. The first pass checks every byte and samples lines for the
vocabulary. The second encodes chunks of lines in worker processes and writes the ids in fairseq's binary format.
"""

import contextlib
import json
import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from tqdm import tqdm

from ...errors import check, join_truncated
from ...files import check_data_path, naming, staged_folder
from ...processes import available_cores, end_with_parent
from ..dictionaries import DICTIONARY_FILE, REPORT_FILE
from ..indexed import indexed_writer
from ..subword_models import load_tokenizer_for_corpus
from ..tokenizer import SENTENCEPIECE_FILE, SentencePieceTokenizer, Tokenizer
from .text_files import Chunk, find_files, read_chunks
from .vocabulary_training import LineSample, check_vocab_size, train_sentencepiece

DEFAULT_VOCAB_SIZE = 8000
DEFAULT_SAMPLE_CHARACTERS = 10_000_000
STANDARD_INPUT = Path("-")
_SPOOL_FILE = "standard-input"  # copy of standard input for the second pass

# Chunks per worker that are being encoded, or wait for earlier ones: enough to keep all workers busy, but not so many
# that they fill the memory when the disk is slow.
_CHUNKS_PER_WORKER = 4

Items = tuple[np.ndarray, np.ndarray]  # ids of consecutive items, uint16 or uint32; and the length of each item, int32
Encoded = tuple[Items, int]  # items of a chunk, and its bytes of text

_worker_tokenizer: ContextVar[Tokenizer] = ContextVar("tokenizer")  # set in a worker process


@dataclass
class SplitReport:
    """Counts of one split of the corpus. The </s> at the end of each item counts as a token."""

    documents: int = 0
    lines: int = 0
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0


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
) -> dict[str, float]:
    """Write the folder `out`: train and valid as .bin and .idx, dict.txt, the tokenizer's files and corpus.json.

    An item of the dataset is a line and </s>; the end of a document is an item of only </s>, as fairseq-preprocess
    stores a blank line. `out` appears when it is complete; until then the work is in `out`.partial.

    Args:
        train: text files (plain, .gz, .xz), folders of them, or "-" for standard input.
        valid: the same, for validation; empty for none.
        out: the folder; it must not exist, or be empty.
        tokenizer: anything that ``load_tokenizer`` takes, or a folder with GPT-2's files alone; None to train a
            vocabulary.
        vocab_size: pieces of the vocabulary that is trained (default DEFAULT_VOCAB_SIZE).
        sample_characters: maximum length of the text from `train` that the vocabulary is trained on (default
            DEFAULT_SAMPLE_CHARACTERS).
        seed: seed of that sample, at least 0.
        workers: number of processes that encode (default: one per core).

    Returns:
        The share of tokens that are <unk>, by split.

    Raises:
        OSError: a file is missing or cannot be read or written, or a worker process was killed.
        UserError: an option or a text is invalid, or `out` is in use; the message names it.
    """
    started = time.monotonic()
    check_data_path(out)
    loaded = None
    if tokenizer is not None:
        for name, value in {"vocab-size": vocab_size, "sample-characters": sample_characters}.items():
            check(f"--{name}", value, value is None, f"left out with --tokenizer {tokenizer}, which needs no training")
        loaded = load_tokenizer_for_corpus(tokenizer)
    vocab_size = DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size
    check_vocab_size("--vocab-size", vocab_size)
    sample = LineSample(sample_characters or DEFAULT_SAMPLE_CHARACTERS, seed)
    with staged_folder(out, REPORT_FILE) as (folder, report_file), naming(str(folder / _SPOOL_FILE), "standard input"):
        files = _find_files(train, valid, folder)
        reports = {split: _survey(files[split], None if loaded or split == "valid" else sample) for split in files}
        if loaded is not None:
            loaded.save(folder)
        else:
            lines, model = sample.lines(), folder / SENTENCEPIECE_FILE
            print(f"training a vocabulary of {vocab_size:,} pieces on {sum(map(len, lines)):,} characters", flush=True)
            train_sentencepiece(lines, model, vocab_size)
            loaded = SentencePieceTokenizer(model)
        dictionary, counts = loaded.dictionary, {}
        with chunk_encoder(loaded, workers or available_cores()) as encode:
            for split, report in reports.items():
                counts[split] = _write_split(folder / split, encode(read_chunks(files[split])), dictionary, report)
        dictionary.count = counts["train"].tolist()
        dictionary.save(str(folder / DICTIONARY_FILE))
        (folder / _SPOOL_FILE).unlink(missing_ok=True)
        json.dump({split: asdict(report) for split, report in reports.items()}, report_file, indent=1)
    _print_summary(reports, counts, time.monotonic() - started)
    return {split: report.unknown / report.tokens for split, report in reports.items()}


def _find_files(train: Sequence[Path], valid: Sequence[Path], folder: Path) -> dict[str, list[Path]]:
    """Return the text files by split. Standard input is first written to a file, as the text is read twice."""
    spool = folder / _SPOOL_FILE
    names = [*train, *valid]
    if STANDARD_INPUT in names:
        check("--train, --valid", " ".join(map(str, names)), names.count(STANDARD_INPUT) == 1, "names with one - only")
        with spool.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
    to_train, to_validate = ([spool if name == STANDARD_INPUT else name for name in names] for names in (train, valid))
    held_out = find_files(to_validate)
    files = {"train": find_files(to_train, held_out), **({"valid": held_out} if valid else {})}
    targets = set(map(os.path.realpath, held_out))
    if shared := sorted(path.name for path in files["train"] if os.path.realpath(path) in targets):
        print(f"warning: in train and in valid: {join_truncated(shared)}; the loss on them is not that of unseen text")
    print("text files:", ", ".join(f"{split} {len(of_split):,}" for split, of_split in files.items()), flush=True)
    return files


def _survey(files: Sequence[Path], sample: LineSample | None) -> SplitReport:
    """Check and count the text, and draw `sample` from it: the first pass."""
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


def _write_split(prefix: Path, chunks: Iterable[Encoded], dictionary: Dictionary, report: SplitReport) -> np.ndarray:
    """Write a split, and count its tokens in `report`: the second pass. Return the count of each id, int64, (V,)."""
    counts = np.zeros(len(dictionary), dtype=np.int64)
    progress = tqdm(desc=f"encoding {prefix.name}", total=report.bytes, unit="B", unit_scale=True, disable=None)
    with indexed_writer(prefix, len(dictionary)) as write, progress:
        for (ids, sizes), bytes_read in chunks:
            write(ids, sizes)
            counts += np.bincount(ids, minlength=len(dictionary))
            progress.update(bytes_read)
    report.tokens, report.unknown = int(counts.sum()), int(counts[dictionary.unk()])
    return counts


def _print_summary(reports: Mapping[str, SplitReport], counts: Mapping[str, np.ndarray], seconds: float) -> None:
    for split, report in reports.items():
        print(
            f"{split}: {report.documents:,} documents, {report.lines:,} lines, {report.tokens:,} tokens, "
            f"{report.unknown / report.tokens:.3%} unknown"
        )
    if "valid" in counts:
        level = unigram_perplexity(counts["train"], counts["valid"])
        print(f"perplexity of valid by token frequencies alone: {level:.1f}")
    megabytes = sum(report.bytes for report in reports.values()) / 1e6
    print(f"{megabytes:.1f} MB in {seconds:.1f} s, {megabytes / seconds:.1f} MB/s")


def unigram_perplexity(train: np.ndarray, valid: np.ndarray) -> float:
    """Return the perplexity of a model that predicts each token by its frequency; both are counts, (V,)."""
    log_probabilities = np.log((train + 1) / (train + 1).sum())  # a token may occur in valid only
    return math.exp(-(valid * log_probabilities).sum() / valid.sum())


def encode_items(tokenizer: Tokenizer, lines: Sequence[str]) -> Items:
    """Encode an item per line: its tokens and </s>. A line without pieces is <unk>, as </s> alone ends a document."""
    dictionary = tokenizer.dictionary
    end, unknown = (np.array([token], dtype=np.int32) for token in (dictionary.eos(), dictionary.unk()))
    pairs = zip(lines, tokenizer.encode(lines), strict=True)
    encoded = [unknown if line and not ids.size else ids for line, ids in pairs]
    sizes = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded)) + 1
    ids = np.concatenate([np.empty(0, dtype=np.int32), *chain.from_iterable((ids, end) for ids in encoded)])
    return ids.astype(best_fitting_int_dtype(len(dictionary))), sizes


@contextlib.contextmanager
def chunk_encoder(tokenizer: Tokenizer, workers: int) -> Iterator[Callable[[Iterable[Chunk]], Iterator[Encoded]]]:
    """Yield a function that encodes chunks in order: in this process, or in several workers."""
    if workers == 1:
        yield lambda chunks: ((encode_items(tokenizer, chunk.lines), chunk.bytes_read) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(workers, initializer=_start_worker, initargs=(tokenizer,))

    def encode(chunks: Iterable[Chunk]) -> Iterator[Encoded]:
        # Executor.map and Pool.imap would read all chunks at once, and keep every result that is not yet consumed.
        waiting: deque[Future[Encoded]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_encode_in_worker, chunk))
            if len(waiting) == _CHUNKS_PER_WORKER * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield encode
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"one of the {workers} worker processes died, perhaps because memory ran out: nothing was written; "
            "run again, with fewer workers if it was the memory"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(tokenizer: Tokenizer) -> None:
    end_with_parent()
    _worker_tokenizer.set(tokenizer)


def _encode_in_worker(chunk: Chunk) -> Encoded:
    return encode_items(_worker_tokenizer.get(), chunk.lines), chunk.bytes_read
