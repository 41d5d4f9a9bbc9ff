"""Fixtures that several test files share, and the way they run a command line."""

import contextlib
import functools
import http.server
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fairseq_linformer.data.prepare.glue import SOURCES
from fairseq_linformer.data.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts that LINFORMER_DATA names (default ../shared/data beside the checkout)."""
    folder = Path(os.environ.get("LINFORMER_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "books" / "valid.txt.xz").is_file():
        pytest.skip(f"no real data: {folder} holds no books/valid.txt.xz (LINFORMER_DATA names another folder)")
    return folder


def run(*command, cwd: Path, status: int = 0) -> str:
    """What a command line of this environment prints, standard error included; it must end with that status."""
    program, *arguments = map(str, command)
    words = [sys.executable, str(ROOT / program)] if program.startswith("scripts/") else [_in_environment(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words + arguments, check=False, cwd=cwd, env=environment, **output)
    assert done.returncode == status, f"{program} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server, on this machine, of the files of a folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def as_flags(options: dict) -> list:
    """The options of a fairseq command line, --name value for each."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


def _in_environment(program: str) -> str:
    return str(Path(sys.executable).parent / program)


def running_in_group(group: int) -> list[str]:
    """The processes of a process group that are no zombies (on Linux; elsewhere none are seen)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                found.append(path.parent.name)
    return found


def sentences(number: int, seed: int) -> str:
    """English-like text with something to learn: every subject has its verbs, every tenth line ends a document."""
    chance = random.Random(seed)
    verbs = {"dog": ["barks", "runs"], "cat": ["sleeps", "purrs"], "bird": ["sings", "flies"], "fish": ["swims"]}
    lines = []
    for i in range(number):
        subject = chance.choice(sorted(verbs))
        lines.append(f"the {chance.choice(['old', 'young', 'small'])} {subject} {chance.choice(verbs[subject])} today")
        if i % 10 == 9:
            lines.append("")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A small corpus, prepared by the script that users type."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "train.txt").write_text(sentences(600, seed=1))
    (folder / "valid.txt").write_text(sentences(60, seed=2))
    files = ("--train", "train.txt", "--valid", "valid.txt", "--out", "data", "--vocab-size", 30, "--workers", 1)
    run("scripts/prepare_corpus.py", *files, cwd=folder)
    return folder / "data"


def write_run(folder: Path, data: "Path | str") -> Path:
    """The folder of a run with a checkpoint that has no parameters, but says which data it was trained on."""
    history = {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 0}
    others = {"optimizer_history": [history], "extra_state": {"train_iterator": None}}
    folder.mkdir(parents=True)
    cfg = {"model": {"_name": "linformer_roberta"}, "task": {"_name": "masked_lm", "data": str(data)}}
    torch.save({"model": {}, "cfg": cfg, **others}, folder / "checkpoint_best.pt")
    return folder


def write_sst_2(source: Path) -> None:
    """A folder in GLUE's layout whose SST-2 ten updates can learn: the animal of the sentence is its label."""
    folder = source / "SST-2"
    folder.mkdir(parents=True)
    for split, number in (("train", 400), ("dev", 40), ("test", 20)):
        rows = [line for line in sentences(number, seed=number).splitlines() if line]
        labelled = [f"{line}\t{int('dog' in line or 'cat' in line)}" for line in rows]
        table = [f"{i}\t{line}" for i, line in enumerate(rows)] if split == "test" else labelled
        header = "index\tsentence" if split == "test" else "sentence\tlabel"
        (folder / f"{split}.tsv").write_text("\n".join([header, *table]) + "\n")


def write_official(source: Path, task: str, rows: int = 3) -> None:
    """The files of a task in the exact shape of the official ones, each field naming its column and row."""
    (source / task).mkdir(parents=True)
    for file in SOURCES[task].files.values():
        lines = ["\t".join(file.columns)] if file.header else []
        for row in range(rows):
            fields = {column: f"{column} {row}" for column in file.columns}
            if SOURCES[task].label in fields:
                labels = TASKS[task].classes or ("5.000", "0", "2.5")
                fields[SOURCES[task].label] = labels[row % len(labels)]
            lines.append("\t".join(fields.values()))
        mark = "\ufeff" if task == "MRPC" and file.name != "test.tsv" else ""
        (source / task / file.name).write_text(mark + "\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def classification(corpus, tmp_path_factory) -> Path:
    """That task, prepared by the script that users type, with the corpus's vocabulary."""
    folder = tmp_path_factory.mktemp("task")
    write_sst_2(folder / "glue")
    run(
        "scripts/prepare_glue.py",
        "--source",
        "glue",
        "--tasks",
        "SST-2",
        "--tokenizer",
        corpus,
        "--out",
        "o",
        cwd=folder,
    )
    return folder / "o" / "SST-2"
