"""GLUE tasks from the folders of the official downloads (gluebenchmark.com), one folder of .tsv files a task.

A task is an entry of `TASKS`: its files, their columns, and its labels. The files are lines of tab-separated fields
and nothing more: quotes are text. Labels keep their official values, which a submission to the benchmark needs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .classification import Example


@dataclass(frozen=True)
class TsvFile:
    """A file with a header: its name, all of its columns, and which of them hold the text and the label."""

    name: str
    columns: tuple[str, ...]
    text: str
    label: str | None


@dataclass(frozen=True)
class GlueTask:
    """The files of a task by fairseq's split names, and the labels that may occur in them."""

    splits: Mapping[str, TsvFile]
    labels: tuple[str, ...]


TASKS: Mapping[str, GlueTask] = {
    "SST-2": GlueTask(
        splits={
            "train": TsvFile("train.tsv", ("sentence", "label"), text="sentence", label="label"),
            "valid": TsvFile("dev.tsv", ("sentence", "label"), text="sentence", label="label"),
            "test": TsvFile("test.tsv", ("index", "sentence"), text="sentence", label=None),
        },
        labels=("0", "1"),
    ),
}


def read_glue(source: Path, task: str) -> dict[str, Iterator[Example]]:
    """The rows of train, valid (the official dev set) and test (without labels), each read as it is consumed.

    `source` holds a folder named as the task. ValueError: an unknown task; later, a row that is not what the task's
    files hold, named by file and line. FileNotFoundError: a file of the task is missing.
    """
    if task not in TASKS:
        raise ValueError(f"task {task!r} is unknown, known are: {', '.join(TASKS)}")
    for file in TASKS[task].splits.values():
        if not (source / task / file.name).is_file():
            raise FileNotFoundError(f"{source / task / file.name} is missing: {source} must hold the folder {task}")
    return {
        split: _read_rows(source / task / file.name, file, TASKS[task].labels)
        for split, file in TASKS[task].splits.items()
    }


def _read_rows(path: Path, file: TsvFile, labels: tuple[str, ...]) -> Iterator[Example]:
    text_column = file.columns.index(file.text)
    label_column = None if file.label is None else file.columns.index(file.label)
    with path.open("rb") as lines:  # bytes end lines at \n alone: a carriage return inside a text is text
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number}"
            try:
                fields = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: not UTF-8 ({error})") from error
            if len(fields) != len(file.columns):
                expected = f"{len(file.columns)} tab-separated fields ({', '.join(file.columns)})"
                raise ValueError(f"{where}: {len(fields)} instead of {expected}: {line[:100]!r}")
            if number == 1:
                if tuple(fields) != file.columns:
                    raise ValueError(f"{where}: the header is {fields}, expected {list(file.columns)}")
                continue
            label = None if label_column is None else fields[label_column]
            if label is not None and label not in labels:
                raise ValueError(f"{where}: label {label!r}, expected one of {', '.join(labels)}")
            yield Example(fields[text_column], label)
