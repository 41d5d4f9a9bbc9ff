"""Runs fairseq-hydra-train as a user would, with a progress bar, reads what it logged, and writes its command lines."""

import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypedDict, TypeVar

import torch
from tqdm import tqdm

from ..errors import LAST_LINES, UserError
from ..system.files import check_path, lock, write_whole
from ..system.processes import available_cores
from ..system.state import read_state
from .provenance import CONFIGS, Provenance

FINE_TUNING = "finetune/finetune"  # the YAML of every fine-tuning; recipe=NAME gives the differences of a task

RUN_FILE = "run.json"  # in a run's folder: what it is made of, and whether it is complete
LOG_FILE = Path("hydra", "hydra_train.log")  # what fairseq logs, written by Hydra where the configs say

POLL_SECONDS = 0.2

T = TypeVar("T")


_Options = TypedDict(  # of a configuration, those that its readers need
    "_Options",
    {
        "checkpoint.best_checkpoint_metric": str,
        "common.seed": int,
        "dataset.batch_size": int | None,
        "optimization.lr": list[float],
        "optimization.max_update": int,
    },
)


class _Made(TypedDict, total=False):  # all of them, but in what was written before
    config: str
    configuration: _Options
    data: str
    checkpoint: str | None


class _RunFile(_Made):
    complete: bool


_running: set["subprocess.Popen[str]"] = set()
_starting = threading.Lock()  # held while a process is started, and while all are stopped
_job = threading.local()  # what a thread of side_by_side passes to the processes that it starts


def override(name: str, value: object) -> str:
    """``name=value`` as Hydra reads it, whatever characters the value holds (a folder's name, say).

    Raises:
        ValueError: the value holds "${", which no quotes save from fairseq.
    """
    check_path(str(value))
    if re.fullmatch(r"[A-Za-z0-9_.-]*/[A-Za-z0-9_./-]+", str(value)):
        return f"{name}={value}"  # a folder's name that needs no quotes
    # Inside quotes a backslash is one, except before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), str(value))
    return f"{name}='{quoted}'"


def command_line(config: str, *overrides: str) -> str:
    """What to type to train with a YAML of configs/, ``pretrain/tiny_512``."""
    folder, name = config.split("/")
    settings = " ".join(shlex.quote(setting) for setting in overrides)
    configs = "configs" if CONFIGS.name == "configs" else '"$(linformer configs)"'  # from a checkout, or from a wheel
    return f"fairseq-hydra-train --config-dir {configs}/{folder} --config-name {name} {settings}"


def recipe_name(task: str) -> str:
    """The YAML of a task in configs/finetune/recipe: sst_2 for SST-2, own where there is none."""
    name = task.lower().replace("-", "_")
    return name if (CONFIGS / "finetune" / "recipe" / f"{name}.yaml").is_file() else "own"


def fine_tuning_command(task: str, data: Path) -> str:
    """What to type to fine-tune on the prepared folder of a task."""
    start = "checkpoint.finetune_from_model=CHECKPOINT"
    return command_line(FINE_TUNING, f"recipe={recipe_name(task)}", override("task.data", data), start)


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
        where = override("checkpoint.save_dir", self.folder)
        return [where, f"optimization.max_update={self.updates}", *self.overrides]

    @cached_property
    def provenance(self) -> Provenance:
        """What it is made of, as the files are when this is asked first: before it begins."""
        return Provenance.of(self.config, self.settings)

    def check(self) -> None:
        """Reads what the run is made of, once.

        Raises:
            ValueError: Hydra does not compose its settings; the folder holds a run that is made of something else,
                which the message names, or of nobody knows what.
            FileNotFoundError: the data, or the checkpoint that it starts from, does not exist.
        """
        now, state = self.provenance, read_run(self.folder)
        if not ((state and state.complete) or any(self.folder.glob("*.pt"))):
            return  # a run that failed at its start is no hindrance
        remedy = "remove it, or name another folder"
        if state is None or state.provenance is None:
            raise UserError(f"{self.folder} holds a run, but no {RUN_FILE} that says what it is made of: {remedy}")
        if changes := state.provenance.changes(now):
            raise UserError(f"{self.folder} holds a run with other settings ({changes}): {remedy}")

    def is_complete(self) -> bool:
        """Whether the folder holds this run, and all of it; ValueError as ``check`` raises it."""
        self.check()
        state = read_run(self.folder)
        return state is not None and state.complete

    def run(self, launcher: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Trains from where an interrupted run stopped; a complete one is not run again.

        Args:
            launcher: Hydra's overrides that choose what starts the run, ``hydra/launcher=slurm``; this process by
                default.

        Returns:
            What fairseq logged, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
            ``valid_loss`` and ``valid_num_updates``, numbers as numbers.

        Raises:
            ValueError: the folder holds a run with other settings, or another process is at work in it; or the data or
                the checkpoint was replaced while it trained.
            OSError: the run failed; the message ends with the last lines that it printed.
        """
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "train.log").open("a", buffering=1, encoding="utf-8") as log:
            # The training inherits it: where this process alone is killed, no second one starts beside the first.
            lock(log, f"{self.folder}: another process is training there", inherited=True)
            if not self.is_complete():
                self._write(complete=False)
                _run(self.config, self.settings, self.folder, log, self.updates, launcher)
                self._check_sources()
                self._write(complete=True)
        return list(logged_rows((self.folder / LOG_FILE).read_text(encoding="utf-8").splitlines()))

    def _check_sources(self) -> None:
        """A configuration was read when the run began, but nobody knows which part of replaced data it was given."""
        made, now = self.provenance, Provenance.of(self.config, self.settings)
        if changes := made.changes(replace(now, configuration=made.configuration)):
            raise UserError(f"{self.folder}: since the run began, {changes}: put the former one back, and repeat")

    def _write(self, complete: bool) -> None:
        content = {**self.provenance.as_json(), "complete": complete}
        write_whole(self.folder / RUN_FILE, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class RunState:
    """What a run's folder says of it; no provenance where it does not say what the run is made of."""

    provenance: Provenance | None
    complete: bool


def read_run(folder: Path) -> RunState | None:
    """What a folder's run.json says, or None where there is none.

    Raises:
        ValueError: the file is damaged.
    """
    file = folder / RUN_FILE
    if not file.is_file():
        return None
    try:
        content: Any = read_state(file, _RunFile)
        if content.get("configuration", {}).get("optimization.lr") == []:
            raise UserError(f"{file} is damaged: /configuration/optimization.lr is empty")
    except ValueError as error:
        raise UserError(f"{error}: remove its folder, or name another one") from error
    parts = ("config", "configuration", "data", "checkpoint")
    made = Provenance(*(content[name] for name in parts)) if content.keys() >= {*parts} else None
    return RunState(made, content["complete"])


def train(
    config: str, overrides: Sequence[str], folder: Path, updates: int, launcher: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Runs a ``Training`` in `folder`, unless it is complete there, and returns what fairseq logged."""
    return Training(config, tuple(overrides), folder, updates).run(launcher)


def _run(config: str, settings: list[str], folder: Path, log: IO[str], updates: int, launcher: Sequence[str]) -> None:
    """Runs fairseq-hydra-train to its end; whatever ends this function ends it too."""
    directory, name = config.split("/")
    program = str(Path(sys.executable).with_name("fairseq-hydra-train"))
    command = [program, "--config-dir", str(CONFIGS / directory), "--config-name", name, "common.log_format=json"]
    before = log.tell()
    (folder / LOG_FILE).parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        (folder / LOG_FILE).open("a+", encoding="utf-8") as rows,
        tqdm(total=updates, unit="update", desc="/".join(folder.parts[-3:])) as bar,
    ):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if launcher:
            where = [override("hydra.sweep.dir", folder), f"hydra.sweep.subdir={LOG_FILE.parent}"]
            settings = [*settings, *where, *launcher, "--multirun"]
        else:  # its temporary files are gone with it: workers that PyTorch ends in mid-epoch leave folders behind
            environment |= {"TMPDIR": temporary, **getattr(_job, "environment", {})}
        process = _start([*command, *settings], environment, log)
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                _show(rows, bar)
            _show(rows, bar)
        finally:
            _running.discard(process)
            _end(process)
    if process.returncode != 0:
        with Path(log.name).open(encoding="utf-8", errors="replace") as printed:
            printed.seek(before)
            lines = printed.read().rstrip().splitlines()
        if lines and lines[-1].startswith("error: "):
            raise OSError(f"fairseq-hydra-train: {lines[-1].removeprefix('error: ')}")
        tail = "\n".join(lines[-15:])
        raise OSError(f"fairseq-hydra-train ended with status {process.returncode}{LAST_LINES}{tail}")


def _start(command: list[str], environment: dict[str, str], log: IO[str]) -> "subprocess.Popen[str]":
    with _starting:
        if getattr(_job, "stop", threading.Event()).is_set():
            raise OSError("interrupted before it began")
        output = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env=environment, **output)  # type: ignore[call-overload]
        _running.add(process)
    return process


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends a training with its workers, which would live on for seconds, and hold its lock."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def _show(log: IO[str], bar: tqdm) -> None:
    """Moves a progress bar on to what has been logged since the last time."""
    for row in logged_rows(log):
        bar.update(int(row.get("num_updates", bar.n)) - bar.n)
        bar.set_postfix({key: row[key] for key in ("loss", "valid_loss") if key in row})


def side_by_side(calls: Sequence[Callable[[], T]], jobs: int) -> list[T | Exception]:
    """Calls functions that train, `jobs` at a time, which share the cores, and the GPUs, each by turns one.

    A call that failed gives its error in place of a result; the others go on. An interruption ends them all: their
    checkpoints stay, and the runs go on from there when repeated.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(jobs, initializer=_begin_job, initargs=(itertools.count(), jobs, stop)) as pool:
        try:
            return [future.result() for future in [pool.submit(_result_or_error, call) for call in calls]]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with _starting:
                stop.set()
                for process in list(_running):
                    _end(process)
            raise


def _begin_job(numbers: Iterator[int], jobs: int, stop: threading.Event) -> None:
    """Gives a thread of ``side_by_side`` its share of the machine, for what it will start."""
    _job.stop = stop
    _job.environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))}
    if devices := torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))
        number = next(numbers) % devices
        _job.environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number]
        _job.device = f"cuda:{number}"


def job_device() -> str:
    """The device on which this thread computes: in ``side_by_side`` the one that its trainings have."""
    return getattr(_job, "device", "cuda" if torch.cuda.is_available() else "cpu")


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # a GPU without memory, say: whatever it was, the other trainings are not to blame
        return error


def logged_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines of a log, their numbers read."""
    for line in lines:
        start = line.find('{"epoch": ')
        if start >= 0:
            try:
                row = json.loads(line[start:])
            except json.JSONDecodeError:
                continue  # cut off when the run was
            yield {key: _number(value) for key, value in row.items()}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
