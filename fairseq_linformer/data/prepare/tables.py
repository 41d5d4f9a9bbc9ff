"""Tables of texts and labels on disk, in any of the formats that they come in: files, and folders."""

import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ...errors import UserError
from ...system.state import parse_json, read_state
from .rows import FORMATS, Row, parse_rows

SUFFIXES: Mapping[str, str] = {
    **{f".{name}": name for name in FORMATS},
    **dict.fromkeys((".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".conllu", ".bio", ".iob", ".iob2"), "conll"),
    ".parquet": "parquet",
}
WHOLE = ""  # the split of a table that names none
SPLIT_NAMES: Mapping[str, str] = {  # those of the Hugging Face hub, and ours
    "train": "train",
    "test": "test",
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
}


class _DataFile(TypedDict):
    filename: str


class _State(TypedDict):
    """state.json of a folder that ``datasets.Dataset.save_to_disk`` wrote."""

    _data_files: list[_DataFile]


class _Splits(TypedDict):
    """dataset_dict.json of ``datasets.DatasetDict.save_to_disk``."""

    splits: list[str]


def read_table(path: Path, kind: str | None = None) -> dict[str, Iterator[Row]]:
    """The rows of a table by split, read as they are consumed; those of a table without splits under WHOLE.

    Args:
        path: a file; a folder of ``datasets`` (``save_to_disk``); or a folder that holds a folder per class with text
            files: its columns are "text" and "label".
        kind: the format of a file, where its name does not say it; one of ``rows.FORMATS``, or ``parquet``.

    Raises:
        FileNotFoundError: there is no such file or folder, or none of these.
        UserError: its format is not known; later, what ``parse_rows`` raises.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such table")
    kind = kind or SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{path} ends in none of {', '.join(SUFFIXES)}: --from names its format")
    return {WHOLE: _parquet(path) if kind == "parquet" else _stream(path, kind)}


def _stream(path: Path, kind: str) -> Iterator[Row]:
    with path.open("rb") as lines:
        yield from parse_rows(lines, kind, str(path))


def _folder(path: Path) -> dict[str, Iterator[Row]]:
    if (path / "state.json").is_file():
        return {WHOLE: _dataset(path)}
    if (path / "dataset_dict.json").is_file():
        names = read_state(path / "dataset_dict.json", _Splits)["splits"]
        return {SPLIT_NAMES[name]: _dataset(path / name) for name in names if name in SPLIT_NAMES}
    files = sorted(path.glob("*/*.txt"))
    if not files:
        raise FileNotFoundError(f"{path} holds neither a folder per class with .txt files, nor a saved dataset")
    return {WHOLE: _class_folders(files)}


def _class_folders(files: Sequence[Path]) -> Iterator[Row]:
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{file}: not UTF-8 ({error})") from error
        yield Row(str(file), ("text", "label"), (text, file.parent.name))


def _parquet(path: Path) -> Iterator[Row]:
    parquet = _pyarrow("parquet", path)
    try:
        with parquet.ParquetFile(path) as file:
            yield from _arrow_rows(str(path), file.schema_arrow, file.iter_batches())
    except _pyarrow("lib", path).ArrowException as error:
        raise UserError(f"{path}: not Parquet that can be read ({error})") from error


def _dataset(folder: Path) -> Iterator[Row]:
    ipc, lib = _pyarrow("ipc", folder), _pyarrow("lib", folder)
    for file in read_state(folder / "state.json", _State)["_data_files"]:
        path = folder / file["filename"]
        try:
            with lib.memory_map(str(path)) as source, ipc.open_stream(source) as batches:
                yield from _arrow_rows(str(path), batches.schema, batches)
        except lib.ArrowException as error:
            raise UserError(f"{path}: not an Arrow file that can be read ({error})") from error


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise UserError(f"{path}: reading it needs pyarrow: pip install pyarrow") from error


def _arrow_rows(source: str, schema: Any, batches: Iterator[Any]) -> Iterator[Row]:
    classes = _class_names(schema, source)
    columns = tuple(schema.names)
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, row in enumerate(rows, 1):
        values = [_named(row[name], classes[name]) if name in classes else row[name] for name in columns]
        yield Row(f"{source}, row {number}", columns, values)


def _class_names(schema: Any, source: str) -> dict[str, list[str]]:
    """The names of the classes of columns that ``datasets`` keeps as numbers, from what it adds to a file's schema."""
    content = (schema.metadata or {}).get(b"huggingface")
    features = parse_json(content.decode("utf-8"), source)["info"]["features"] if content else {}
    classes = {}
    for name, feature in features.items():
        inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            classes[name] = inner["names"]
    return classes


def _named(value: Any, names: Sequence[str]) -> Any:
    """A class or a list of classes by name; -1 is how ``datasets`` writes that a label is not known."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return None if value is None or value < 0 else names[value]
