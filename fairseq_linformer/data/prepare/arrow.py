"""Reads a file of Parquet or Arrow, checks what it holds, and writes it to the standard output as an Arrow stream.

``table_files.py`` runs this file in a process of its own, because a damaged table can end the process that reads it. It
imports nothing of this package, whose imports take seconds.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyarrow import ipc, parquet

Batches = tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]
END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream; a stream that was cut off between two batches lacks it
LONGEST = 300  # characters of a message: it may quote what is damaged


@contextmanager
def _parquet(path: str) -> Iterator[Batches]:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        yield file.schema_arrow, file.iter_batches()


@contextmanager
def _stream(path: str) -> Iterator[Batches]:
    with pyarrow.memory_map(path) as source, ipc.open_stream(source) as batches:
        yield batches.schema, batches
        read, size = source.tell(), source.size()
        if read != size or source.read_at(len(END), size - len(END)) != END:
            raise ValueError(f"its end mark is missing, or not at its end: {read:,} of {size:,} bytes were read")


READERS: Mapping[str, Callable[[str], Any]] = {"parquet": _parquet, "arrow": _stream}


def copy(kind: str, path: str) -> None:
    """Writes the batches of a file to the standard output, each after it was checked.

    Raises:
        Exception: whatever pyarrow raises of a damaged file; a batch is not what its schema says, or text not UTF-8.
    """
    with READERS[kind](path) as (schema, batches), ipc.new_stream(sys.stdout.buffer, schema) as stream:
        schema.to_string(show_field_metadata=False, show_schema_metadata=False)  # decodes all names
        row = 0
        for batch in batches:
            for name, column in zip(schema.names, batch.columns, strict=True):
                try:
                    column.validate(full=True)
                except pyarrow.ArrowException as error:
                    raise ValueError(f"rows {row + 1} to {row + len(batch)}, column {name!r}: {error}") from error
            stream.write_batch(batch)
            row += len(batch)


if __name__ == "__main__":
    try:
        copy(*sys.argv[1:])
    except Exception as error:
        sys.exit(" ".join(str(error).split())[:LONGEST] or type(error).__name__)
