"""Runs of fairseq-hydra-train: their command lines, runs started as by a user, several at a time, and their logs."""

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from tqdm import tqdm

from ..checkpoint import read_task_state
from ..errors import LAST_LINES, UserError
from ..files import CONFIGS, check_path, lock, read_json, write_whole
from ..processes import available_cores
from .fingerprint import RunFingerprint

FINE_TUNING = "finetune/finetune"  # the YAML of every fine-tuning; recipe=NAME gives the differences of a task
RUN_FILE = "run.json"  # in a run's folder: its fingerprint, and whether it is complete
TRAIN_LOG = "train.log"  # what the command prints
LOG_FILE = Path("hydra", "hydra_train.log")  # what fairseq logs, written by Hydra where the configs say

POLL_SECONDS = 0.2

T = TypeVar("T")

_running: set["subprocess.Popen[str]"] = set()
_starting = threading.Lock()  # held while a process is started, and while all are stopped
_job = threading.local()  # what a thread of side_by_side passes to the processes that it starts


# Command lines


def override(name: str, value: object) -> str:
    """Return ``name=value`` as Hydra reads it, whatever characters the value holds (a folder's name, say).

    Raises:
        UserError: the value holds "${", which no quotes save from fairseq.
    """
    check_path(str(value))
    if re.fullmatch(r"[\w.-]*/[\w./-]+|(?!(?i:true|false|null|inf|nan)$)[A-Za-z_][\w-]*", str(value), re.ASCII):
        return f"{name}={value}"  # a folder's name that needs no quotes
    # Inside quotes a backslash is one, except before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), str(value))
    return f"{name}='{quoted}'"


def command_line(config: str, *overrides: str) -> str:
    """Return the command that trains with a YAML of configs/, ``pretrain/tiny_512``."""
    folder, name = config.split("/")
    settings = " ".join(shlex.quote(setting) for setting in overrides)
    configs = "configs" if Path("configs").resolve() == CONFIGS else '"$(linformer configs)"'
    return f"fairseq-hydra-train --config-dir {configs}/{folder} --config-name {name} {settings}"


def recipe_name(task: str) -> str:
    """Return the YAML of a task in configs/finetune/recipe: sst_2 for SST-2, own where there is none."""
    name = task.lower().replace("-", "_")
    return name if (CONFIGS / "finetune" / "recipe" / f"{name}.yaml").is_file() else "own"


def pretraining_command(data: Path, named: tuple[Path, Mapping[str, Any]] | None = None) -> str | None:
    """Return the command that trains on a prepared corpus: a new model, or the one whose tokenizer it has.

    None for a sentence encoder, which learns from a second model, its original.

    Args:
        data: the corpus.
        named: the checkpoint whose tokenizer it was prepared with, and its content; None for a new model.
    """
    text = override("task.data", data)
    if named is None:
        return command_line("pretrain/tiny_512", text)
    checkpoint, state = named
    if read_task_state(state.get("task_state"))["sentence_modules"]:
        return None
    recipe = [] if torch.cuda.is_available() else ["recipe=tiny"]  # the default needs one, for fp16
    initial = override("checkpoint.finetune_from_model", checkpoint)
    return command_line("pretrain/continue", *recipe, text, initial)


# One run


@dataclass(frozen=True)
class RunState:
    """The content of a run's run.json."""

    fingerprint: RunFingerprint
    complete: bool


@dataclass(frozen=True)
class Training:
    """A run of fairseq-hydra-train, and the folder that belongs to it alone.

    Args:
        config: folder and name of a YAML of configs/, ``pretrain/tiny_512``.
        overrides: Hydra's, ``task.data=…``.
        folder: of the checkpoints; what the command prints is added to its ``train.log``.
        updates: length of the run.
    """

    config: str
    overrides: tuple[str, ...]
    folder: Path
    updates: int

    @property
    def settings(self) -> list[str]:
        """Every override that the command is given."""
        save_dir = override("checkpoint.save_dir", self.folder)
        return [save_dir, f"optimization.max_update={self.updates}", *self.overrides]

    @cached_property
    def fingerprint(self) -> RunFingerprint:
        """The fingerprint of the files when this is asked first: before it begins."""
        return RunFingerprint.of_command(self.config, self.settings)

    def is_complete(self) -> bool:
        """Return True if the folder holds this run, and all of it.

        Raises:
            UserError: Hydra does not compose its settings; the folder holds a run with another fingerprint.
            FileNotFoundError: the data, or the checkpoint that it starts from, does not exist.
        """
        now, state = self.fingerprint, read_run(self.folder)
        if not ((state and state.complete) or any(self.folder.glob("*.pt"))):
            return False  # a run that failed at its start is no hindrance
        remedy = "remove it, or give another --out"
        if state is None:
            raise UserError(f"{self.folder} holds a run, but no {RUN_FILE} that says what it is made of: {remedy}")
        if differences := state.fingerprint.differences(now):
            raise UserError(f"{self.folder} holds a run with other settings ({differences}): {remedy}")
        return state.complete

    def run(self, launcher: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Train from where an interrupted run stopped; a complete one is not run again.

        Args:
            launcher: Hydra's overrides that choose what starts the run, ``hydra/launcher=slurm``; this process by
                default.

        Returns:
            What fairseq logged, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
            ``valid_loss`` and ``valid_num_updates``, numbers as numbers.

        Raises:
            UserError: as ``is_complete``; another process is at work in the folder; the data or the checkpoint was
                replaced while it trained.
            OSError: the run failed; the message ends with the last lines that it printed.
        """
        self.is_complete()  # rejects another run's folder before anything is written into it
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / TRAIN_LOG).open("a", buffering=1, encoding="utf-8") as log:
            # The training inherits the lock: if this process alone is killed, no second one starts beside the first.
            lock(log, f"{self.folder}: another process is training there", inherited=True)
            if not self.is_complete():
                self._write(complete=False)
                self._train(log, launcher)
                self._check_sources()
                self._write(complete=True)
        return list(logged_rows((self.folder / LOG_FILE).read_text(encoding="utf-8").splitlines()))

    def _train(self, log: IO[str], launcher: Sequence[str]) -> None:
        """Run fairseq-hydra-train to its end; whatever ends this function ends it too."""
        begin, fairseqs_log, environment = log.tell(), self.folder / LOG_FILE, {**os.environ, "PYTHONUNBUFFERED": "1"}
        directory, name = self.config.split("/")
        command = [_program(), "--config-dir", str(CONFIGS / directory), "--config-name", name]
        command += ["common.log_format=json", *self.settings]
        fairseqs_log.parent.mkdir(exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as temporary,
            fairseqs_log.open("a+", encoding="utf-8") as rows,
            tqdm(total=self.updates, unit="update", desc="/".join(self.folder.parts[-3:])) as bar,
        ):
            if launcher:
                sweep = [override("hydra.sweep.dir", self.folder), f"hydra.sweep.subdir={LOG_FILE.parent}"]
                command += [*sweep, *launcher, "--multirun"]
            else:  # its temporary files are gone with it: workers that PyTorch ends in mid-epoch leave folders behind
                environment |= {"TMPDIR": temporary, **getattr(_job, "environment", {})}
            with _started(command, environment, log) as process:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    _show(rows, bar)
                _show(rows, bar)
        if process.returncode != 0:
            raise _failure(Path(log.name), begin, process.returncode)

    def _check_sources(self) -> None:
        """A configuration was read when the run began, but nobody knows which part of replaced data it was given."""
        now = RunFingerprint.of_command(self.config, self.settings)
        if differences := self.fingerprint.differences(replace(now, configuration=self.fingerprint.configuration)):
            raise UserError(f"{self.folder}: since the run began, {differences}: put the former one back, and repeat")

    def _write(self, complete: bool) -> None:
        content = {**self.fingerprint.as_json(), "complete": complete}
        write_whole(self.folder / RUN_FILE, json.dumps(content, indent=1) + "\n")


def read_run(folder: Path) -> RunState | None:
    """Return the content of a folder's run.json, or None if there is none.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / RUN_FILE
    if not file.is_file():
        return None
    try:
        content = read_json(file)
        return RunState(RunFingerprint.of_json(content), bool(content["complete"]))
    except (UserError, KeyError) as error:
        raise UserError(f"{file} is damaged ({error}): remove its folder, or name another one") from error


def _program() -> str:
    """Return fairseq-hydra-train of this Python's environment: beside it, where pip puts scripts, or in PATH."""
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    program = shutil.which("fairseq-hydra-train", path=os.pathsep.join(places))
    if program is None:
        raise FileNotFoundError(
            f"fairseq-hydra-train is not beside {sys.executable} nor in PATH: install fairseq-fixed"
        )
    return program


def train(
    config: str, overrides: Sequence[str], folder: Path, updates: int, launcher: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Run a ``Training`` in `folder`, unless it is complete there, and return what fairseq logged."""
    return Training(config, tuple(overrides), folder, updates).run(launcher)


def _failure(log: Path, begin: int, status: int) -> OSError:
    """Return the error for a training that failed; its output begins at that place of the log."""
    with log.open(encoding="utf-8", errors="replace") as printed:
        printed.seek(begin)
        lines = printed.read().rstrip().splitlines()
    if lines and lines[-1].startswith("error: "):
        return OSError(f"fairseq-hydra-train: {lines[-1].removeprefix('error: ')}")
    tail = "\n".join(lines[-15:])
    return OSError(f"fairseq-hydra-train ended with status {status}{LAST_LINES}{tail}")


def _show(log: IO[str], bar: tqdm) -> None:
    """Move a progress bar on to what has been logged since the last time."""
    for row in logged_rows(log):
        bar.update(int(row.get("num_updates", bar.n)) - bar.n)
        bar.set_postfix({key: row[key] for key in ("loss", "valid_loss") if key in row})


def logged_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines of a log, their numbers read."""
    for line in lines:
        start = line.find('{"epoch": ')
        if start >= 0:
            with contextlib.suppress(json.JSONDecodeError):  # cut off when the run was
                yield {key: _number(value) for key, value in json.loads(line[start:]).items()}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


# Several at a time


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that prints into a log; whatever ends the body ends it too."""
    with _starting:
        if getattr(_job, "stop", threading.Event()).is_set():
            raise OSError("interrupted before it began")
        output = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env=environment, **output)  # type: ignore[call-overload]
        _running.add(process)
    try:
        yield process
    finally:
        _running.discard(process)
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a training with its workers, which would live on for seconds, and hold its lock."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def side_by_side(calls: Sequence[Callable[[], T]], jobs: int, gpus: int = 1) -> list[T | Exception]:
    """Call functions that train, `jobs` at a time, which share the cores; each has `gpus` of the GPUs, by turns.

    A call that failed gives its error in place of a result; the others go on. An interruption ends them all: their
    checkpoints stay, and the runs resume when repeated.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(jobs, initializer=_begin_job, initargs=(itertools.count(), jobs, gpus, stop)) as pool:
        try:
            return [future.result() for future in [pool.submit(_result_or_error, call) for call in calls]]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with _starting:
                stop.set()
                for process in list(_running):
                    _end(process)
            raise


def _begin_job(numbers: Iterator[int], jobs: int, gpus: int, stop: threading.Event) -> None:
    """Give a thread of ``side_by_side`` its share of the machine, for what it will start."""
    _job.stop = stop
    _job.environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))}
    if devices := torch.cuda.device_count():
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))).split(",")
        first = next(numbers) * gpus
        share = [(first + index) % devices for index in range(min(gpus, devices))]
        _job.environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[index] for index in share)
        _job.device = f"cuda:{share[0]}"


def job_device() -> str:
    """Return the device on which this thread computes: in ``side_by_side`` the one that its trainings have."""
    return getattr(_job, "device", "cuda" if torch.cuda.is_available() else "cpu")


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # a GPU without memory, say: whatever it was, the other trainings are not to blame
        return error
