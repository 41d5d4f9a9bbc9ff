"""Writer of fairseq's mmap datasets (.bin and .idx) as a stream."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from fairseq.data.indexed_dataset import MMapIndexedDataset, _dtype_header_code, best_fitting_int_dtype

Write = Callable[[np.ndarray, np.ndarray], None]

# Items of the index that are in memory at once.
_INDEX_CHUNK = 1_000_000


@contextlib.contextmanager
def indexed_writer(prefix: Path, vocab_size: int) -> Iterator[Write]:
    """Write `prefix`.bin and `prefix`.idx, byte for byte as fairseq's MMapIndexedDatasetBuilder does.

    fairseq's builder keeps the sizes and offsets of all items in Python lists, about 100 bytes per item: gigabytes for
    the lines of Wikipedia. Here sizes are written to a temporary file, `prefix`.sizes, and memory does not grow.

    Yields:
        A function that appends many items: their concatenated ids, (tokens,), each below `vocab_size`; and the number
        of ids of each, (items,). After an error in the body there is no index, so no dataset.
    """
    dtype = best_fitting_int_dtype(vocab_size)
    sizes_file = prefix.with_name(f"{prefix.name}.sizes")
    with prefix.with_name(f"{prefix.name}.bin").open("wb") as data, sizes_file.open("w+b") as sizes:

        def write(ids: np.ndarray, lengths: np.ndarray) -> None:
            data.write(ids.astype(dtype, copy=False).tobytes())
            sizes.write(lengths.astype(np.int32, copy=False).tobytes())

        yield write
        with prefix.with_name(f"{prefix.name}.idx").open("wb") as index:
            _write_index(index, sizes, dtype)
    sizes_file.unlink()


def _write_index(index: BinaryIO, sizes: BinaryIO, dtype: type) -> None:
    """Write magic, version, type of the ids, number of items, sizes (int32), offsets in bytes (int64)."""
    items = sizes.tell() // np.dtype(np.int32).itemsize
    index.write(MMapIndexedDataset.Index._HDR_MAGIC)
    index.write(struct.pack("<QBQ", 1, _dtype_header_code(dtype), items))
    sizes.seek(0)
    while chunk := sizes.read(4 * _INDEX_CHUNK):
        index.write(chunk)
    sizes.seek(0)
    offset = 0
    while chunk := sizes.read(4 * _INDEX_CHUNK):
        ends = offset + np.cumsum(np.frombuffer(chunk, dtype=np.int32), dtype=np.int64) * np.dtype(dtype).itemsize
        index.write(np.concatenate([[offset], ends[:-1]]).astype(np.int64).tobytes())
        offset = int(ends[-1])
