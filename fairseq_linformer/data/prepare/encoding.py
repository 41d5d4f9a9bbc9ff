"""Encodes chunks of lines as dataset items, in worker processes, in order."""

import contextlib
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fairseq.data.indexed_dataset import best_fitting_int_dtype

from ...system.processes import end_with_parent
from ..tokenizer import Tokenizer, load_tokenizer
from .text_files import Chunk


class Items(NamedTuple):
    """The ids of some items one after another (uint16 or uint32), and the length of each item (int32).

    `lacking`: how often characters stand in them that the vocabulary lacks.
    """

    ids: np.ndarray
    sizes: np.ndarray
    lacking: Counter[str]


# The items of each chunk, and the number of bytes of text that they were made from.
Encoded = Iterator[tuple[Items, int]]

# Chunks per worker that are being encoded, or wait for earlier ones: enough to keep all workers busy, but not so many
# that they fill the memory when the disk is slow.
_CHUNKS_PER_WORKER = 4


def encode_items(tokenizer: Tokenizer, lines: Sequence[str]) -> Items:
    """One item per line: its tokens and </s>. A line of which no piece is left is <unk>: </s> alone ends a document."""
    dictionary = tokenizer.dictionary
    unknown = np.array([dictionary.unk()], dtype=np.int32)
    pairs = zip(lines, tokenizer.encode(lines), strict=True)
    encoded = [unknown if line and not ids.size else ids for line, ids in pairs]
    sizes = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded)) + 1
    ends = np.cumsum(sizes) - 1
    ids = np.empty(int(sizes.sum()), dtype=best_fitting_int_dtype(len(dictionary)))
    is_token = np.ones(ids.size, dtype=bool)
    is_token[ends] = False
    ids[ends] = dictionary.eos()
    ids[is_token] = np.concatenate([np.empty(0, dtype=np.int32), *encoded])
    rows = np.unique(np.searchsorted(ends, np.flatnonzero(ids == dictionary.unk())))
    lacking = tokenizer.unknown_characters(lines[row] for row in rows) if rows.size else Counter()
    return Items(ids, sizes, lacking)


@contextlib.contextmanager
def chunk_encoder(tokenizer: Tokenizer, folder: Path, workers: int) -> Iterator[Callable[[Iterable[Chunk]], Encoded]]:
    """Yields a function from chunks to the items and the bytes of each, in order.

    Args:
        tokenizer: which encodes where there is one worker.
        folder: where the tokenizer is saved; several workers read it there.
        workers: 1 for this process, or the number of processes to start.

    Raises:
        ChildProcessError: a worker was killed, mostly because memory ran out.
    """
    if workers == 1:
        yield lambda chunks: ((encode_items(tokenizer, chunk.lines), chunk.bytes_read) for chunk in chunks)
        return
    pool = ProcessPoolExecutor(workers, initializer=_start_worker)
    try:
        yield partial(_encode_in_pool, pool, folder, _CHUNKS_PER_WORKER * workers)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"one of the {workers} worker processes died, perhaps because memory ran out: nothing was written; "
            "run again, with fewer workers if it was the memory"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _encode_in_pool(pool: ProcessPoolExecutor, folder: Path, most_waiting: int, chunks: Iterable[Chunk]) -> Encoded:
    # Executor.map and Pool.imap would read all chunks at once, and keep every result that is not yet consumed.
    waiting: deque[tuple[Future[Items], int]] = deque()
    for chunk in chunks:
        waiting.append((pool.submit(_encode_in_worker, folder, chunk.lines), chunk.bytes_read))
        if len(waiting) == most_waiting:
            future, bytes_read = waiting.popleft()
            yield future.result(), bytes_read
    while waiting:
        future, bytes_read = waiting.popleft()
        yield future.result(), bytes_read


@cache
def _worker_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a worker process, which ends before the folder is removed or renamed."""
    return load_tokenizer(folder)


def _encode_in_worker(folder: Path, lines: list[str]) -> Items:
    return encode_items(_worker_tokenizer(folder), lines)


def _start_worker() -> None:
    """Leaves Ctrl-C and SIGHUP to the main process, which stops the workers, and ends this one when that one ends.

    SIGTERM ends a worker at once. The handler that it inherits from the main process would raise an exception, which
    the pool would take for the result of the chunk.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
