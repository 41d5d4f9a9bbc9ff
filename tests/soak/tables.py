"""Tables of texts and labels, mutated, and read as `linformer prepare table` and `linformer predict` read them."""

import csv
import functools
import io
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ipc, parquet

from fairseq_linformer.data.prepare.label_kinds import Columns
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.prepare.own_data import own_data
from fairseq_linformer.data.prepare.table_files import read_table
from fairseq_linformer.data.prepare.table_formats import DELIMITERS, read_rows
from fairseq_linformer.data.tokenizer import Tokenizer, load_tokenizer
from fairseq_linformer.errors import UserError

from .files import BOM, TEXT, write_corpus
from .mutations import mutate, mutate_json, mutate_state
from .readers import File, Files, difference

TEXTS = [f"{line} {number}" for number, line in enumerate(filter(None, TEXT.splitlines()))]
LABELS = [number % 2 for number, _ in enumerate(TEXTS)]
WORDS = [text.split() for text in TEXTS]
TAGS = [[len(word) % 3 for word in words] for words in WORDS]
CLASSES, TAG_NAMES = ["bad", "good"], ["B-X", "I-X", "O"]


def prepared_rows(tokenizer: Tokenizer, text: str, label: str, path: Path) -> list[list[Any]]:
    """Prepares a table as `linformer prepare table` does, and returns the values of its rows."""
    try:
        read = [row for rows in read_table(path).values() for row in rows]
        data = own_data("own", {"train": read}, Columns(text, (label,)), {"train": 0.8, "valid": 0.2})
        write_labelled(Path("out"), data.task, data.splits, tokenizer)
    except ValueError as error:
        if not isinstance(error, UserError):
            raise AssertionError("the command would end in a traceback") from error
        raise
    finally:
        shutil.rmtree("out", ignore_errors=True)
    return [[list(value) if isinstance(value, tuple) else value for value in row.values] for row in read]


def text_tables() -> Files:
    """CSV, TSV, JSON lines and CoNLL to prepare; lines of text, TSV and JSON lines to predict, alone and as pairs."""
    tokenizer = load_tokenizer(write_corpus())
    named = [(text, CLASSES[label]) for text, label in zip(TEXTS, LABELS, strict=True)]
    tagged = [[f"{word} {TAG_NAMES[len(word) % 3]}\n" for word in words] for words in WORDS]
    wholes = {
        "csv": "text,label\n" + "".join(f'"{text},\n""x""",{label}\n' for text, label in named),
        "tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in named),
        "jsonl": "".join(json.dumps({"text": text, "label": label, "n": 1.5}) + "\n" for text, label in named),
        "conll": "\n".join(map("".join, tagged)),
        "txt": TEXT,
    }
    files = []
    for kind in ("csv", "tsv", "jsonl", "conll"):
        columns = ("0", "-1") if kind == "conll" else ("text", "label")
        read = functools.partial(prepared_rows, tokenizer, *columns)
        files.append(File(f"table.{kind}", wholes[kind].encode(), read, functools.partial(_naive_values, kind)))
    for kind, second in (("txt", None), *itertools.product(("tsv", "jsonl"), (None, "label"))):
        read, right = (functools.partial(function, kind, second) for function in (_texts, _naive_texts))
        files.append(File(f"rows.{kind}", wholes[kind].encode(), read, right))
    return Files(files)


def _texts(kind: str, second: str | None, path: Path) -> list[tuple[Any, ...]]:
    """The texts that `linformer predict` reads."""
    with path.open("rb") as stream:
        return [(row.text, row.second) for row in read_rows(stream, kind, "file", second=second)]


def _naive_texts(kind: str, second: str | None, content: bytes) -> list[tuple[Any, ...]]:
    return [(row["text"], row[second] if second else None) for row in _naive_rows(content.decode(), kind)]


def _naive_rows(text: str, kind: str) -> list[dict[str, Any]]:
    """The rows of txt, tsv or jsonl, by column."""
    lines = [line.rstrip("\r") for line in text.removeprefix(BOM).removesuffix("\n").split("\n")] if text else []
    if kind == "txt":
        return [{"text": line} for line in lines]
    if kind == "jsonl":
        return [json.loads(line) for line in lines]
    header, *fields = (line.split("\t") for line in lines) if lines else [[]]
    return [dict(zip(header, values, strict=True)) for values in fields]


def _naive_values(kind: str, content: bytes) -> list[list[Any]]:
    text = content.decode().removeprefix(BOM)
    if kind == "csv":
        delimiter = max(DELIMITERS, key=text.split("\n")[0].count)
        _, *rows = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter)
        return [row for row in rows if row]
    if kind != "conll":
        return [list(row.values()) for row in _naive_rows(text, kind)]
    lines = text.split("\n")
    tabs = "\t" in next(line for line in lines if line.strip())
    words = [line.rstrip("\r").split("\t" if tabs else None) if line.strip() else None for line in lines]
    blocks = [[*block] for filled, block in itertools.groupby(words, lambda word: word is not None) if filled]
    return [[*map(list, zip(*block, strict=True))] * 2 for block in blocks]


class ArrowTables:
    """Parquet, and folders that the package datasets saved.

    Of these formats only the pages of Parquet have checksums, where the writer writes them: its footer has none.
    """

    def __init__(self) -> None:
        self._tokenizer = load_tokenizer(write_corpus())
        known = [None if number == 7 else label for number, label in enumerate(LABELS)]
        notes = [None if number % 3 else f"note {number % 2}" for number, _ in enumerate(TEXTS)]
        coded, large = pyarrow.array(notes).dictionary_encode(), pyarrow.array(TEXTS, "large_string")
        about, of_tags = ({"_type": "ClassLabel", "names": names} for names in (CLASSES, TAG_NAMES))
        names = {None: None, **dict(enumerate(CLASSES))}
        rows = [[text, names[label], note] for text, label, note in zip(TEXTS, known, notes, strict=True)]
        words = [[own, [TAG_NAMES[tag] for tag in tags]] for own, tags in zip(WORDS, TAGS, strict=True)]
        self._tables = [
            (_described({"text": TEXTS, "label": known, "note": notes}, about), rows),
            (_described({"text": large, "label": known, "note": coded}, about), rows),
            (_described({"text": WORDS, "label": TAGS}, [of_tags]), words),
        ]

    def attempt(self, chance: random.Random) -> str | None:
        table, right = chance.choice(self._tables)
        if said := chance.random() < 0.1:
            about = mutate_json(json.loads(table.schema.metadata[b"huggingface"]), chance)
            table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
        write = self._write_parquet if chance.random() < 0.5 else self._write_saved
        path, must_be_right = write(table, chance, not said)
        found = prepared_rows(self._tokenizer, "text", "label", path)
        return difference(right, found, f"{path.name}: the rows") if must_be_right and not said else None

    def _write_parquet(self, table: pyarrow.Table, chance: random.Random, changed: bool) -> tuple[Path, bool]:
        """Writes a file; returns it, and whether it must be refused or read rightly."""
        path, stream = Path("table.parquet"), io.BytesIO()
        checksums = chance.random() < 0.7
        parquet.write_table(
            table,
            stream,
            row_group_size=chance.choice((15, 1000)),
            compression=chance.choice(("none", "snappy", "gzip", "zstd", "lz4", "brotli")),
            use_dictionary=chance.random() < 0.5,
            data_page_version=chance.choice(("1.0", "2.0")),
            write_page_checksum=checksums,
        )
        whole = stream.getvalue()
        path.write_bytes(content := mutate(whole, chance) if changed else whole)
        footer = whole[-8 - int.from_bytes(whole[-8:-4], "little") :]
        return path, checksums and content.endswith(footer)

    def _write_saved(self, table: pyarrow.Table, chance: random.Random, changed: bool) -> tuple[Path, bool]:
        """As `_write_parquet`; of a folder the files must not be cut."""
        path = Path("saved")
        options = ipc.IpcWriteOptions(compression=chance.choice((None, None, "lz4", "zstd")))
        files = {}
        for name, part in (("data-0.arrow", table[:20]), ("data-1.arrow", table[20:])):
            with pyarrow.BufferOutputStream() as stream:
                with ipc.new_stream(stream, table.schema, options=options) as writer:
                    writer.write_table(part, max_chunksize=8)
                files[name] = stream.getvalue().to_pybytes()
        files["state.json"] = json.dumps({"_data_files": [{"filename": name} for name in files]}).encode()
        name = chance.choice([*files])
        whole = files[name]
        if changed:
            files[name] = (mutate_state if name == "state.json" else mutate)(whole, chance)
        path.mkdir(exist_ok=True)
        for each, content in files.items():
            (path / each).write_bytes(content)
        return path, whole.startswith(files[name]) and name != "state.json"


def _described(columns: dict[str, Any], label: Any) -> pyarrow.Table:
    """A table with what datasets says of its classes."""
    about = {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, "label": label}}}
    return pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps(about)})
