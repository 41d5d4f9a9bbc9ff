"""Runs of fairseq-hydra-train: command lines, single runs in a process, concurrent runs, and logs."""

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
from ..errors import UserError
from ..files import CONFIGS, check_path, lock, read_json, write_whole
from ..processes import available_cores
from .fingerprint import RunFingerprint

FINE_TUNING = "finetune/finetune"  # YAML of every fine-tuning; recipe=NAME adds the options of a task
RUN_FILE = "run.json"  # in a run's folder: its fingerprint, and true if it is complete
TRAIN_LOG = "train.log"  # output of the command
LOG_FILE = Path("hydra", "hydra_train.log")  # fairseq's log, which Hydra writes where the configs say

POLL_SECONDS = 0.2

T = TypeVar("T")

_running: set["subprocess.Popen[str]"] = set()
_starting = threading.Lock()  # held while a process is started, or all are stopped
_job = threading.local()  # environment and device of a thread of side_by_side


# Command lines


def override(name: str, value: object) -> str:
    """Return ``name=value``, quoted for Hydra if necessary.

    Raises:
        UserError: the value contains "${", which fairseq resolves even in quotes.
    """
    check_path(str(value))
    if re.fullmatch(r"[\w.-]*/[\w./-]+|(?!(?i:true|false|null|inf|nan)$)[A-Za-z_][\w-]*", str(value), re.ASCII):
        return f"{name}={value}"  # needs no quotes
    # Inside quotes, only backslashes before a quote are escaped.
    quoted = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), str(value))
    return f"{name}='{quoted}'"


def command_line(config: str, *overrides: str) -> str:
    """Return the command that trains with a YAML of configs/, ``pretrain/tiny_512``."""
    folder, name = config.split("/")
    settings = " ".join(shlex.quote(setting) for setting in overrides)
    configs = "configs" if Path("configs").resolve() == CONFIGS else '"$(linformer configs)"'
    return f"fairseq-hydra-train --config-dir {configs}/{folder} --config-name {name} {settings}"


def recipe_name(task: str) -> str:
    """Return the name of a task's YAML in configs/finetune/recipe: sst_2 for SST-2; "own" if there is none."""
    name = task.lower().replace("-", "_")
    return name if (CONFIGS / "finetune" / "recipe" / f"{name}.yaml").is_file() else "own"


def pretraining_command(data: Path, named: tuple[Path, Mapping[str, Any]] | None = None) -> str | None:
    """Return the command that trains a new or an existing model on a prepared corpus.

    It is None for a sentence encoder, which needs its original model as a teacher.

    Args:
        data: the corpus.
        named: the checkpoint whose tokenizer prepared the corpus, and its content; None for a new model.
    """
    text = override("task.data", data)
    if named is None:
        return command_line("pretrain/tiny_512", text)
    checkpoint, state = named
    if read_task_state(state.get("task_state"))["sentence_modules"]:
        return None
    recipe = [] if torch.cuda.is_available() else ["recipe=tiny"]  # the default, with fp16, needs a GPU
    initial = override("checkpoint.finetune_from_model", checkpoint)
    return command_line("pretrain/continue", *recipe, text, initial)


# One run


@dataclass(frozen=True)
class RunState:
    """Content of a run's run.json."""

    fingerprint: RunFingerprint
    complete: bool


@dataclass(frozen=True)
class Training:
    """Run of fairseq-hydra-train in a folder of its own.

    Args:
        config: folder and name of a YAML of configs/, ``pretrain/tiny_512``.
        overrides: of Hydra, ``task.data=…``.
        folder: of the checkpoints; the output of the command is appended to its ``train.log``.
        updates: length of the run.
    """

    config: str
    overrides: Sequence[str]
    folder: Path
    updates: int

    @property
    def settings(self) -> list[str]:
        """All overrides of the command."""
        save_dir = override("checkpoint.save_dir", self.folder)
        return [save_dir, f"optimization.max_update={self.updates}", *self.overrides]

    @cached_property
    def fingerprint(self) -> RunFingerprint:
        """Fingerprint of the run, computed on first access, before it begins."""
        return RunFingerprint.of_command(self.config, self.settings)

    def is_complete(self) -> bool:
        """Return True if the folder contains this run and it is complete.

        Raises:
            UserError: Hydra cannot compose the settings; the folder contains a run with another fingerprint.
            FileNotFoundError: the data or the initial checkpoint does not exist.
        """
        fingerprint, state = self.fingerprint, read_run(self.folder)
        if not ((state and state.complete) or any(self.folder.glob("*.pt"))):
            return False  # empty, or a run that failed at its start
        remedy = "remove it, or give another --out"
        if state is None:
            raise UserError(f"{self.folder} holds a run, but no {RUN_FILE} with its fingerprint: {remedy}")
        if differences := state.fingerprint.differences(fingerprint):
            raise UserError(f"{self.folder} holds a run with other settings ({differences}): {remedy}")
        return state.complete

    def run(self, launcher: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Start or resume the run; a complete run is not repeated.

        Args:
            launcher: overrides that select Hydra's launcher, ``hydra/launcher=slurm``; this process by default.

        Returns:
            Rows of fairseq's log, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
            ``valid_loss`` and ``valid_num_updates``, all values as numbers.

        Raises:
            UserError: as ``is_complete``; another process trains in the folder; the data or the initial checkpoint was
                replaced during the run.
            OSError: the run failed; the message ends with the last lines of its output.
        """
        self.is_complete()  # rejects another run's folder before any write
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / TRAIN_LOG).open("a", buffering=1, encoding="utf-8") as log:
            # The training inherits the lock: if only this process is killed, no second training starts.
            lock(log, f"{self.folder}: another process is training there", inherited=True)
            if not self.is_complete():
                self._write(complete=False)
                self._train(log, launcher)
                current = RunFingerprint.of_command(self.config, self.settings)
                current = replace(current, configuration=self.fingerprint.configuration)
                if differences := self.fingerprint.differences(current):
                    raise UserError(f"{self.folder}: since the run began, {differences}: restore it, and repeat")
                self._write(complete=True)
        return list(logged_rows((self.folder / LOG_FILE).read_text(encoding="utf-8").splitlines()))

    def _train(self, log: IO[str], launcher: Sequence[str]) -> None:
        """Run fairseq-hydra-train to its end; an exception in this method ends it, too."""
        offset, fairseq_log, environment = log.tell(), self.folder / LOG_FILE, {**os.environ, "PYTHONUNBUFFERED": "1"}
        directory, name = self.config.split("/")
        folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
        program = shutil.which("fairseq-hydra-train", path=os.pathsep.join(folders)) or "fairseq-hydra-train"
        command = [program, "--config-dir", str(CONFIGS / directory), "--config-name", name]
        command += ["common.log_format=json", *self.settings]
        fairseq_log.parent.mkdir(exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as temporary,
            fairseq_log.open("a+", encoding="utf-8") as fairseq_log_file,
            tqdm(total=self.updates, unit="update", desc="/".join(self.folder.parts[-3:])) as bar,
        ):
            if launcher:
                sweep = [override("hydra.sweep.dir", self.folder), f"hydra.sweep.subdir={LOG_FILE.parent}"]
                command += [*sweep, *launcher, "--multirun"]
            else:  # removes temporary folders of workers that PyTorch ends in mid-epoch
                environment |= {"TMPDIR": temporary, **getattr(_job, "environment", {})}
            with _started(command, environment, log) as process:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    _show(fairseq_log_file, bar)
                _show(fairseq_log_file, bar)
        if process.returncode != 0:
            raise _failure(Path(log.name), offset, process.returncode)

    def _write(self, complete: bool) -> None:
        content = {**self.fingerprint.as_json(), "complete": complete}
        write_whole(self.folder / RUN_FILE, json.dumps(content, indent=1) + "\n")


def read_run(folder: Path) -> RunState | None:
    """Return the content of a folder's run.json; None if there is none.

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


def _failure(log: Path, offset: int, status: int) -> OSError:
    """Return the error for a training that failed; its output begins at `offset` of the log."""
    with log.open(encoding="utf-8", errors="replace") as log_file:
        log_file.seek(offset)
        lines = log_file.read().rstrip().splitlines()
    if lines and lines[-1].startswith("error: "):
        return OSError(f"fairseq-hydra-train: {lines[-1].removeprefix('error: ')}")
    tail = "\n".join(lines[-15:])
    return OSError(f"fairseq-hydra-train ended with status {status}; its last lines:\n{tail}")


def _show(log: IO[str], bar: tqdm) -> None:
    """Update a progress bar by the new rows of a log."""
    for row in logged_rows(log):
        bar.update(int(row.get("num_updates", bar.n)) - bar.n)
        bar.set_postfix({key: row[key] for key in ("loss", "valid_loss") if key in row})


def logged_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines of a log, with text of numbers converted to numbers."""
    for line in lines:
        start = line.find('{"epoch": ')
        if start >= 0:
            with contextlib.suppress(json.JSONDecodeError):  # truncated when the run was interrupted
                yield {key: _number(value) for key, value in json.loads(line[start:]).items()}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


# Concurrent runs


@contextlib.contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that prints into a log, and end it when the body ends."""
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
    """End a training and its workers, which would otherwise hold its lock for seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def side_by_side(calls: Sequence[Callable[[], T]], jobs: int, gpus: int = 1) -> list[T | Exception]:
    """Call functions that train, `jobs` at a time, which share the cores; each thread gets `gpus` of the GPUs in turn.

    The result of a call that failed is its error; the other calls continue. An interruption ends all of them: their
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
    """Set the share of cores and GPUs for the trainings of a thread of ``side_by_side``."""
    _job.stop = stop
    _job.environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))}
    if devices := torch.cuda.device_count():
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))).split(",")
        first = next(numbers) * gpus
        share = [(first + index) % devices for index in range(min(gpus, devices))]
        _job.environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[index] for index in share)
        _job.device = f"cuda:{share[0]}"


def job_device() -> str:
    """Return the device on which this thread computes: in ``side_by_side``, the one of its trainings."""
    return getattr(_job, "device", "cuda" if torch.cuda.is_available() else "cpu")


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # of any type, such as a GPU out of memory: the other trainings continue
        return error
