"""The commands that are killed, as users type them, with inputs small enough that each ends within seconds."""

import hashlib
import itertools
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_linformer.checkpoints.files import LAST
from tests.helpers.commands import with_flags, with_hydra
from tests.helpers.inputs import sentences, write_imdb, write_official, write_sst_2

from .kills import Command, Result, Undisturbed, run_undisturbed

UPDATES = 6  # of a training, which is saved every third of them and, as asked for here, after each
REFUSED = "exists and is not an empty folder: nothing was changed"


def write_inputs(folder: Path) -> None:
    """Text, archives of GLUE and IMDB, and rows to predict."""
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text(sentences(3000, seed=1))
    (folder / "valid.txt").write_text(sentences(60, seed=2))
    rows = [{"a": line, "b": "the old dog runs"} for line in sentences(300, seed=3).splitlines() if line]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_sst_2(folder / "glue")
    write_official(folder / "glue", "WNLI", rows=146)  # the task of which the leaderboard wants fewest rows
    shutil.make_archive(str(folder / "glue"), "zip", folder / "glue")
    write_imdb(folder / "aclImdb.tar.gz", folder / "imdb")


def undisturbed_commands(folder: Path) -> Iterator[tuple[Command, Undisturbed]]:
    """Every command with its undisturbed run, one after another, as each reads what an earlier one has made."""
    inputs = folder / "inputs"
    write_inputs(inputs)
    for command in itertools.starmap(Command, _lines(inputs, folder / "undisturbed")):
        yield command, run_undisturbed(command, folder / "undisturbed" / command.name.replace(" ", "-"))


def _lines(inputs: Path, made: Path) -> Iterator[tuple[str, list[object], Result, str]]:
    """Name, words, result, and with what the command refuses to do it again."""
    data, tasks = made / "prepare_corpus" / "data", made / "prepare_glue" / "tasks"
    pretrained, runs = made / "fairseq-hydra-train" / "run", made / "finetune" / "runs"
    files = ["--train", inputs / "train.txt", "--valid", inputs / "valid.txt", "--vocab-size", 286, "--workers", 2]
    yield "prepare_corpus", ["linformer", "prepare", "corpus", *files, "--out", "data"], contents, REFUSED
    glue = ["--source", inputs / "glue.zip", "--tasks", "SST-2", "WNLI", "--tokenizer", data, "--out", "tasks"]
    yield "prepare_glue", ["linformer", "prepare", "glue", *glue], contents, ""
    imdb = ["--source", inputs / "aclImdb.tar.gz", "--tokenizer", data, "--out", "IMDB"]
    yield "prepare_imdb", ["linformer", "prepare", "imdb", *imdb], contents, REFUSED
    by_time = "task.save_interval_minutes=0.001"
    yield "fairseq-hydra-train", with_hydra(data, "run", UPDATES, by_time), _trained, ""
    flags = with_flags(data, "run", UPDATES, "--save-interval-minutes", 0.001)
    yield "fairseq-train", flags, _trained, ""
    tuning = [pretrained, "--data", tasks, "--tasks", "wnli", "--seeds", 1, 2, "--epochs", 1]
    tuning += ["--learning-rates", 0.01, "--out", "runs", "dataset.num_workers=0", "common.cpu=true"]
    yield "finetune", ["linformer", "finetune", *tuning], _scores, ""
    rows = ["--input", inputs / "rows.jsonl", "--text", "a", "--second", "b"]
    yield "predict", ["linformer", "predict", runs / "WNLI/seed1", *rows], _printed, ""
    submission = ["--runs", runs, "--data", tasks, "--out", "made"]
    yield "predict, submission", ["linformer", "predict", *submission], _submitted, REFUSED


def contents(folder: Path, _: str = "") -> dict[str, str]:
    """The digest of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _trained(folder: Path, _: str) -> dict[str, Any]:
    """Weights and Adam's moments, of the last checkpoint and of the best."""
    states = {name: torch.load(folder / "run" / name, weights_only=True) for name in (LAST, "checkpoint_best.pt")}
    return {name: [state["model"], state["last_optimizer_state"]] for name, state in states.items()}


def _scores(folder: Path, _: str) -> list[list[Any]]:
    runs = json.loads((folder / "runs/results.json").read_text())["runs"]
    return [[run[name] for name in ("task", "seed", "scores", "error")] for run in runs]


def _printed(_: Path, printed: str) -> str:
    return printed


def _submitted(folder: Path, _: str) -> dict[str, bytes]:
    with zipfile.ZipFile(folder / "made/submission.zip") as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    return members | {path.name: path.read_bytes() for path in (folder / "made").glob("*.tsv")}
