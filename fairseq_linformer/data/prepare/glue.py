"""The nine tasks of GLUE and its diagnostic set AX, from the files of the official downloads (gluebenchmark.com).

``data/tasks.py`` has their files, columns and classes. Fields are separated by tabs, and quotes are text. Labels keep
their official values, which a submission to the benchmark needs. STS-B's scores, 0 to 5, are divided by 5
(``Task.scale``), as in RoBERTa's recipe.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from ...errors import UserError
from ...files import naming
from ..task_record import Source, SourceFile, Task, letters_of
from ..tasks import TASKS
from .examples import Example
from .labels import number_of
from .sources import as_folder, download, is_address, unpack
from .table import tsv_rows

SOURCES: Mapping[str, Source] = {name: task.source for name, task in TASKS.items() if task.source is not None}


def find_task(name: str) -> str:
    """Return the task of ``SOURCES`` with a name in any spelling: SST-2 for sst_2."""
    task = next((task for task in SOURCES if letters_of(task) == letters_of(name)), None)
    if task is None:
        raise UserError(f"task {name!r} is unknown; the tasks are {', '.join(SOURCES)}")
    return task


def read_glue(source: Path, task: str) -> dict[str, Iterator[Example]]:
    """Read the splits of a task: train, valid (the official dev set) and test; MNLI's mismatched are valid1 and test1.

    Rows are read as they are consumed.

    Args:
        source: a folder with a folder of the task's name, in it or in one of its folders.
        task: its name in ``SOURCES``.

    Raises:
        FileNotFoundError: a file is missing.
        UserError: a row that is consumed does not fit the task; the message names the file and the line.
    """
    folder = next((parent / task for parent in (source, *sorted(source.glob("*/"))) if (parent / task).is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"{source} holds no folder {task}")
    if missing := [file.name for file in SOURCES[task].files.values() if not (folder / file.name).is_file()]:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}")
    return {split: _read(folder / file.name, file, TASKS[task]) for split, file in SOURCES[task].files.items()}


def _read(path: Path, file: SourceFile, task: Task) -> Iterator[Example]:
    source, broken = SOURCES[task.name], 0
    with path.open("rb") as lines:
        for row in tsv_rows(lines, str(path), file.columns, header=file.header, skips_broken=source.skips_broken):
            if row is None:
                broken += 1
                continue
            label = _label(str(row.value(source.label)), task, row.location) if source.label in file.columns else None
            text, *second = map(row.plain_text, source.texts)
            yield Example(text, label, second[0] if second else None, row.location)
    if broken:
        print(f"{task.name}/{path.name}: {broken:,} broken rows are left out")


def _label(value: str, task: Task, location: str) -> str:
    """Return the class or the score of a row, which must be valid for the task."""
    score = number_of(value)
    works = value in task.classes if task.classes else score is not None and 0.0 <= score <= task.scale
    if not works:
        allowed = ", ".join(task.classes) or f"the numbers from 0 to {task.scale:g}"
        raise UserError(f"{location}: label {value!r} is none of {allowed}")
    return value


_GLUE, _MRPC = "glue/data", "senteval/senteval_data/msr_paraphrase"
# By task: paths below https://dl.fbaipublicfiles.com, with the SHA-256 that Hugging Face recorded.
DOWNLOADS: Mapping[str, Mapping[str, str]] = {
    "CoLA": {f"{_GLUE}/CoLA.zip": "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"},
    "SST-2": {f"{_GLUE}/SST-2.zip": "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"},
    "MRPC": {
        f"{_MRPC}_train.txt": "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        f"{_MRPC}_test.txt": "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
        f"{_GLUE}/mrpc_dev_ids.tsv": "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
    },
    "QQP": {f"{_GLUE}/QQP-clean.zip": "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"},
    "STS-B": {f"{_GLUE}/STS-B.zip": "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"},
    "MNLI": {f"{_GLUE}/MNLI.zip": "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"},
    "QNLI": {f"{_GLUE}/QNLIv2.zip": "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"},
    "RTE": {f"{_GLUE}/RTE.zip": "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"},
    "WNLI": {f"{_GLUE}/WNLI.zip": "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"},
    "AX": {f"{_GLUE}/AX.tsv": "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd"},
}


@contextlib.contextmanager
def glue_folder(source: str, tasks: Sequence[str]) -> Iterator[Path]:
    """Yield a folder for `read_glue`: `source` is one, an archive of one, or the address of the downloads."""
    if not is_address(source):
        with as_folder(Path(source), _task_file) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as temporary, naming(temporary, source):
        for task in tasks:
            if task not in DOWNLOADS:
                raise UserError(f"{task} is not among the official downloads: --source names a folder or an archive")
            files = list(download(source, DOWNLOADS[task]).values())  # in the order of DOWNLOADS
            (Path(temporary) / task).mkdir()
            if task == "MRPC":
                _write_mrpc(files[0], files[1], files[2], Path(temporary) / task)
            elif task == "AX":
                shutil.copy(files[0], Path(temporary) / task / "AX.tsv")
            else:
                unpack(files[0], Path(temporary), _task_file)
        yield Path(temporary)


def _task_file(member: str) -> str | None:
    """Return TASK/FILE for a member of an archive that is a file of a task, in that task's folder."""
    task, file = PurePosixPath("/", member).parts[-2:]
    is_one = task in SOURCES and file in {file.name for file in SOURCES[task].files.values()}
    return f"{task}/{file}" if is_one else None


def _write_mrpc(train: Path, test: Path, dev_ids: Path, folder: Path) -> None:
    """Write GLUE's three files from the original corpus. `dev_ids` lists pairs of ids in train that are the dev set."""
    pairs = {tuple(line.split("\t")) for line in dev_ids.read_text(encoding="utf-8").splitlines()}
    header, *rows = train.read_text(encoding="utf-8").rstrip("\n").split("\n")
    for name, in_dev in (("train.tsv", False), ("dev.tsv", True)):
        chosen = [row for row in rows if (tuple(row.split("\t")[1:3]) in pairs) == in_dev]
        (folder / name).write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
    _, *rows = test.read_text(encoding="utf-8").rstrip("\n").split("\n")
    numbered = ["\t".join([str(number), *row.split("\t")[1:]]) for number, row in enumerate(rows)]
    header = "\t".join(SOURCES["MRPC"].files["test"].columns)
    (folder / "test.tsv").write_text("\n".join([header, *numbered]) + "\n", encoding="utf-8")
