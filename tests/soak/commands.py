"""The commands that are killed, as users type them, with inputs small enough that each ends within seconds."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_linformer.data.prepare.glue import SOURCES
from tests.helpers.commands import SIZES, with_flags, with_hydra
from tests.helpers.inputs import sentences, write_sst_2

from .kills import Command, Undisturbed, run_undisturbed

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
    _write_wnli(folder / "glue")
    shutil.make_archive(str(folder / "glue"), "zip", folder / "glue")
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            place = folder / "imdb" / "aclImdb" / split / label
            place.mkdir(parents=True)
            for number, line in enumerate(sentences(60, seed=len(split + label)).split("\n\n")):
                (place / f"{number}_7.txt").write_text(f"{line}<br /><br />{label}")
    shutil.make_archive(str(folder / "aclImdb"), "gztar", folder / "imdb")


def _write_wnli(source: Path) -> None:
    """The one task with so few rows of test, as many as the leaderboard wants, that a submission of it is quick."""
    (source / "WNLI").mkdir(parents=True)
    for file in SOURCES["WNLI"].files.values():
        lines = [line for line in sentences(file.rows if "test" in file.name else 96, seed=5).splitlines() if line]
        rows = ["\t".join(file.columns)]
        for number, line in enumerate(lines):
            fields = {"index": str(number), "sentence1": line, "sentence2": "the dog runs", "label": str(number % 2)}
            rows.append("\t".join(fields[column] for column in file.columns))
        (source / "WNLI" / file.name).write_text("\n".join(rows) + "\n")


def undisturbed_commands(folder: Path) -> Iterator[tuple[Command, Undisturbed]]:
    """Every command with its undisturbed run, one after another, as each reads what an earlier one has made."""
    inputs = folder / "inputs"
    write_inputs(inputs)
    done: dict[str, Undisturbed] = {}
    for name, words, differs, refusal in _lines(inputs, folder / "undisturbed"):
        command = Command(name, words, differs, refusal)
        done[name] = run_undisturbed(command, folder / "undisturbed" / name.replace(" ", "-"))
        yield command, done[name]


def _lines(inputs: Path, made: Path) -> Iterator[tuple[str, list[object], Any, str]]:
    data, tasks = made / "prepare_corpus" / "data", made / "prepare_glue" / "tasks"
    pretrained, runs = made / "fairseq-hydra-train" / "run", made / "finetune" / "runs"
    files = ["--train", inputs / "train.txt", "--valid", inputs / "valid.txt", "--vocab-size", 30, "--workers", 2]
    yield "prepare_corpus", ["linformer", "prepare", "corpus", *files, "--out", "data"], same_files, REFUSED
    glue = ["--source", inputs / "glue.zip", "--tasks", "SST-2", "WNLI", "--tokenizer", data, "--out", "tasks"]
    yield "prepare_glue", ["linformer", "prepare", "glue", *glue], same_files, ""
    imdb = ["--source", inputs / "aclImdb.tar.gz", "--tokenizer", data, "--out", "IMDB"]
    yield "prepare_imdb", ["linformer", "prepare", "imdb", *imdb], same_files, REFUSED
    by_time = "task.save_interval_minutes=0.001"
    yield "fairseq-hydra-train", with_hydra(data, "run", UPDATES, by_time), same_training, ""
    flags = with_flags(data, "run", UPDATES, "--save-interval-minutes", 0.001)
    yield "fairseq-train", flags, same_training, ""
    tuning = [pretrained, "--data", tasks, "--tasks", "wnli", "--seeds", 1, 2, "--epochs", 1]
    tuning += ["--learning-rates", 0.01, "--out", "runs", "dataset.num_workers=0", "common.cpu=true"]
    yield "finetune", ["linformer", "finetune", *tuning], same_results, ""
    rows = ["--input", inputs / "rows.jsonl", "--text", "a", "--second", "b"]
    yield "predict", ["linformer", "predict", runs / "WNLI/seed1", *rows], same_output, ""
    submission = ["--runs", runs, "--data", tasks, "--out", "made"]
    yield "predict, submission", ["linformer", "predict", *submission], same_submission, REFUSED
    small = [f"model.{name}={value}" for name, value in SIZES.items()]
    variants = ["--data", data, "--out", "runs", "--variant", "softmax", "model.attention=softmax", "--all", *small]
    yield "compare", ["scripts/compare.py", *variants, "--seeds", 1, "--updates", 3], same_output_table, ""
    sizes = ["--layers", 1, "--embed-dim", 24, "--heads", 3, "--vocab-size", 50, "--tokens", 64, "--rounds", 1]
    sizes += ["--suites", "growth", "--lengths", 512, 1024, "--threads", 1, "--out", "measured"]
    yield "benchmark", ["scripts/benchmark.py", *sizes], same_rows, ""


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same_files(like: Undisturbed, folder: Path, printed: str) -> str | None:
    """Byte for byte, and none more."""
    expected, found = contents(like.folder), contents(folder)
    others = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    return ", ".join(others) or None


def same_training(like: Undisturbed, folder: Path, printed: str) -> str | None:
    """To the last bit of weights and Adam's moments, of the last checkpoint and of the best."""
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        one, other = (torch.load(place / "run" / name, weights_only=True) for place in (like.folder, folder))
        if not equal(one["model"], other["model"]):
            return f"the weights of {name}"
        if not equal(one["last_optimizer_state"], other["last_optimizer_state"]):
            return f"Adam's moments in {name}"
    return None


def equal(one: Any, other: Any) -> bool:
    """Whether two contents of checkpoints are the same, tensors bit for bit; a nan is equal to itself."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        alike = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dtype == other.dtype
        return alike and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return [*one] == [*other] and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    return repr(one) == repr(other)


def same_results(like: Undisturbed, folder: Path, printed: str) -> str | None:
    def runs(place: Path) -> list[tuple[object, ...]]:
        found = json.loads((place / "runs/results.json").read_text())["runs"]
        return [(run["task"], run["seed"], run["scores"], run["error"]) for run in found]

    expected, found = runs(like.folder), runs(folder)
    return None if expected == found else f"the runs are {found}, not {expected}"


def same_output(like: Undisturbed, folder: Path, printed: str) -> str | None:
    return None if printed == like.printed else f"it printed {printed[-1000:]}"


def same_output_table(like: Undisturbed, folder: Path, printed: str) -> str | None:
    expected, found = ([line for line in text.splitlines() if line.startswith("|")] for text in (like.printed, printed))
    return None if expected == found else f"the table is {found}, not {expected}"


def same_submission(like: Undisturbed, folder: Path, printed: str) -> str | None:
    def tables(place: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(place / "made/submission.zip") as zipped:
            members = {name: zipped.read(name) for name in zipped.namelist()}
        return members | {path.name: path.read_bytes() for path in (place / "made").glob("*.tsv")}

    return None if tables(like.folder) == tables(folder) else "the tables of the submission"


def same_rows(like: Undisturbed, folder: Path, printed: str) -> str | None:
    """What was measured, not how fast it was."""

    def rows(place: Path) -> list[tuple[object, ...]]:
        found = json.loads((place / "measured/results.json").read_text())["rows"]
        return [(row["group"], row["model"], row["n"], "seconds" in row) for row in found]

    return None if rows(like.folder) == rows(folder) else f"the rows are {rows(folder)}"
