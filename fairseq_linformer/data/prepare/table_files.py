"""Tables of texts and labels on disk, in any of the formats that they come in: files, and folders."""

import itertools
import logging
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ...errors import UserError
from ...system.files import leaves_folder
from ...system.state import check_state, parse_state, read_state
from ..text import decoded
from .table_formats import ENDINGS, Row, no_format, parse_rows
from .text_files import PACKED, is_hidden, suffix_of, unpacked

logger = logging.getLogger(__name__)

SUFFIXES: Mapping[str, str] = {**ENDINGS, ".parquet": "parquet"}
WITHOUT_CHECKS = ("csv", "tsv", "conll")  # formats in which any byte could stand
CONTROLS = re.compile(rb"[\x01-\x08\x0e-\x1f\x7f]")
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


class _Info(TypedDict, total=False):
    features: dict[str, Any] | None


class _Description(TypedDict, total=False):
    """What ``datasets`` adds to the schema of its files."""

    info: _Info


class _ClassLabel(TypedDict):
    names: list[str]


def read_table(path: Path, kind: str | None = None) -> dict[str, Iterator[Row]]:
    """The rows of a table by split, read as they are consumed; those of a table without splits under WHOLE.

    Splits of a saved dataset are called by our names, those not in SPLIT_NAMES by their own.

    Args:
        path: a file, of all but Parquet packed (PACKED), too; a folder of ``datasets`` (``save_to_disk``); or a folder
            that holds a folder per class with text files: its columns are "text" and "label".
        kind: the format of a file, where its name does not say it; one of ``table_formats.FORMATS``, or ``parquet``.

    Raises:
        FileNotFoundError: there is no such file or folder, or none of these.
        UserError: its format is not known, or is packed Parquet; two of its splits have one name of ours; later, a
            packed file is damaged, or what ``parse_rows`` raises.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such table")
    kind = kind or SUFFIXES.get(suffix_of(path))
    if kind is None:
        raise no_format(path, SUFFIXES)
    if kind != "parquet":
        return {WHOLE: _stream(path, kind)}
    if path.suffix.lower() in PACKED:
        raise UserError(f"{path}: unpack it, Parquet is packed inside")
    return {WHOLE: _arrow_rows(path, kind)}


def _stream(path: Path, kind: str) -> Iterator[Row]:
    with unpacked(path) as lines:
        yield from parse_rows(_without_controls(lines, path) if kind in WITHOUT_CHECKS else lines, kind, str(path))


def _without_controls(lines: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a table without control characters, which no text has, and no subword model reads.

    Raises:
        UserError: a zero byte, of which UTF-16 is full.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if b"\0" in line:
            raise UserError(f"{path}, line {number}: a zero byte is no text: save the table as UTF-8")
        text, left_out = CONTROLS.subn(b"", line)
        if left_out:
            found.append(number)
        yield text
    if found:
        logger.warning(f"{path}: control characters are left out, first in line {found[0]:,} (lines: {len(found):,})")


def _folder(path: Path) -> dict[str, Iterator[Row]]:
    if (path / "state.json").is_file():
        return {WHOLE: _dataset(path)}
    if (path / "dataset_dict.json").is_file():
        names = read_state(path / "dataset_dict.json", _Splits)["splits"]
        splits = [SPLIT_NAMES.get(name, name) for name in names]
        if twice := [name for name, split in zip(names, splits, strict=True) if splits.count(split) > 1]:
            raise UserError(
                f"{path}: {' and '.join(twice)} are the same split: name the folder of each, as in {path / 'train'} "
                f"--valid {path / twice[0]}"
            )
        return {split: _dataset(path / name) for split, name in zip(splits, names, strict=True)}
    files = sorted(
        file
        for file in path.glob("*/*")
        if file.suffix.lower() == ".txt" and not is_hidden(file.name) and not is_hidden(file.parent.name)
    )
    if not files:
        raise FileNotFoundError(f"{path} holds neither a folder per class with .txt files, nor a saved dataset")
    return {WHOLE: _class_folders(files)}


def _class_folders(files: Sequence[Path]) -> Iterator[Row]:
    for file in files:
        text = decoded(file.read_bytes(), str(file), mark=True)
        yield Row(str(file), ("text", "label"), (text, file.parent.name))


def _dataset(folder: Path) -> Iterator[Row]:
    for file in read_state(folder / "state.json", _State)["_data_files"]:
        if leaves_folder(file["filename"]):
            raise UserError(
                f"{folder / 'state.json'}: the file {file['filename']!r} is not allowed: it must be in the same folder"
            )
        path = folder / file["filename"]
        if not path.is_file():
            raise FileNotFoundError(f"{folder / 'state.json'}: there is no file {file['filename']!r}")
        yield from _arrow_rows(path, "arrow")


def _arrow_rows(path: Path, kind: str) -> Iterator[Row]:
    """The rows of a file of Parquet or Arrow, read and checked by a process of its own: damage may end that one."""
    try:
        from pyarrow import ArrowException, ipc
    except ImportError as error:
        raise UserError(f"{path}: reading it needs pyarrow: pip install pyarrow") from error
    program = [sys.executable, str(Path(__file__).with_name("arrow.py")), kind, str(path)]
    broken = False
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        try:
            with ipc.open_stream(process.stdout) as batches:
                yield from _batch_rows(str(path), batches)
        except ArrowException:
            broken = True
        if process.wait() or broken:
            said.seek(0)
            why = said.read().decode("utf-8", "replace").strip()
            if process.returncode < 0:
                why = f"reading it ended with {signal.Signals(-process.returncode).name}"
            raise UserError(f"{path}: not {kind.capitalize()} that can be read ({why})")


def _batch_rows(source: str, batches: Any) -> Iterator[Row]:
    columns = tuple(batches.schema.names)
    classes = _class_names(batches.schema.metadata or {}, source)
    numbers = itertools.count(1)
    for batch in batches:
        values = [_values(column, name, source) for name, column in zip(columns, batch.columns, strict=True)]
        for row in zip(*values, strict=True):
            where = f"{source}, row {next(numbers)}"
            named = [
                _named(value, classes[name], f"{where}: {name}") if name in classes else value
                for name, value in zip(columns, row, strict=True)
            ]
            yield Row(where, columns, named, header=source)


def _values(column: Any, name: str, source: str) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, LookupError) as error:  # a date after the year 9999, an unknown time zone
        raise UserError(f"{source}: column {name!r} holds what Python cannot represent ({error})") from error


def _class_names(metadata: Mapping[bytes, bytes], source: str) -> dict[str, list[str]]:
    """The names of the classes of columns that ``datasets`` keeps as numbers, from what it adds to a file's schema."""
    if b"huggingface" not in metadata:
        return {}
    where = f"{source}, 'huggingface' in its schema"
    about = parse_state(metadata[b"huggingface"], where, _Description)
    classes = {}
    for name, feature in (about.get("info", {}).get("features") or {}).items():
        inner = feature[0] if isinstance(feature, list) and feature else feature
        inner = inner.get("feature", inner) if isinstance(inner, dict) else inner
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
            check_state(inner, where, _ClassLabel)
            classes[name] = inner["names"]
    return classes


def _named(value: Any, names: Sequence[str], where: str) -> Any:
    """A class or a list of classes by name; -1 is how ``datasets`` writes that a label is not known."""
    if isinstance(value, list):
        return [_named(item, names, where) for item in value]
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{where} is {value!r}, but it must be the number of a class, from 0 to {len(names) - 1}")
    return names[value]
