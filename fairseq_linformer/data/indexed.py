"""Writes fairseq's mmap datasets (.bin and .idx) as a stream."""

import contextlib
import os
import struct
from pathlib import Path
from types import TracebackType

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset, _dtype_header_code, best_fitting_int_dtype

from ..errors import UserError

# Items of the index that are in memory at once.
_INDEX_CHUNK = 1_000_000


class IndexedWriter:
    """Writes `prefix`.bin and `prefix`.idx, byte for byte what fairseq's MMapIndexedDatasetBuilder writes.

    fairseq's builder keeps the sizes and offsets of all items in Python lists, about 100 bytes per item: gigabytes for
    the lines of Wikipedia. Here the sizes go to a temporary file, `prefix`.sizes, and memory does not grow.

    As a context manager it closes itself at the end. The index appears last, and complete. After an error, also one in
    closing, there is no index, so that nothing is taken for a dataset.
    """

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        self._dtype = best_fitting_int_dtype(vocab_size)
        self._vocab_size = vocab_size
        self._index = prefix.with_name(prefix.name + ".idx")
        self._unfinished_index = prefix.with_name(prefix.name + ".idx.partial")
        self._sizes_file = prefix.with_name(prefix.name + ".sizes")
        with contextlib.ExitStack() as stack:
            self._data = stack.enter_context(prefix.with_name(prefix.name + ".bin").open("wb"))
            self._sizes = stack.enter_context(self._sizes_file.open("w+b"))
            self._files = stack.pop_all()

    def write(self, ids: np.ndarray, sizes: np.ndarray) -> None:
        """Appends many items.

        Args:
            ids: (tokens,), the items one after another; each id from 0 to vocab_size - 1.
            sizes: (items,), the number of ids per item.

        Raises:
            UserError: the sizes do not add up to the number of ids, or an id is outside the vocabulary.
        """
        if int(sizes.sum()) != ids.size:
            raise UserError(f"sizes add up to {int(sizes.sum())}, but there are {ids.size} ids")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise UserError(f"ids from {ids.min()} to {ids.max()}: they must be from 0 to {self._vocab_size - 1}")
        self._data.write(ids.astype(self._dtype, copy=False).tobytes())
        self._sizes.write(sizes.astype(np.int32, copy=False).tobytes())

    def close(self) -> None:
        """Writes the index and closes the files."""
        with self._files:
            self._write_index()
        # Only now, as closing writes the last of the data and may fail on a full disk.
        os.replace(self._unfinished_index, self._index)
        self._sizes_file.unlink()

    def _write_index(self) -> None:
        """Layout: magic, version, type of the ids, number of items, sizes (int32), offsets in bytes (int64)."""
        items = self._sizes.tell() // np.dtype(np.int32).itemsize
        with self._unfinished_index.open("wb") as index:
            index.write(MMapIndexedDataset.Index._HDR_MAGIC)
            index.write(struct.pack("<QBQ", 1, _dtype_header_code(self._dtype), items))
            self._sizes.seek(0)
            while chunk := self._sizes.read(4 * _INDEX_CHUNK):
                index.write(chunk)
            self._sizes.seek(0)
            offset = 0
            while chunk := self._sizes.read(4 * _INDEX_CHUNK):
                ends = offset + np.cumsum(np.frombuffer(chunk, dtype=np.int32), dtype=np.int64) * self._dtype().itemsize
                index.write(np.concatenate([[offset], ends[:-1]]).astype(np.int64).tobytes())
                offset = int(ends[-1])

    def __enter__(self) -> "IndexedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._files.close()
