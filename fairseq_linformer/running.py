"""Runs fairseq-hydra-train as a user would, with a progress bar, reads what it logged, and writes its command lines."""

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
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypedDict, TypeVar

import torch
from tqdm import tqdm

from .data.encoding import available_cores
from .data.staging import lock, write_whole
from .data.state import read_state

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RUN_FILE = "run.json"  # in a run's folder: its settings, and whether it is complete
LOG_FILE = Path("hydra", "hydra_train.log")  # what fairseq logs, written by Hydra where the configs say

POLL_SECONDS = 0.2

T = TypeVar("T")


class _RunFile(TypedDict):
    settings: list[str]
    complete: bool


_running: set["subprocess.Popen[str]"] = set()
_starting = threading.Lock()  # held while a process is started, and while all are stopped
_job = threading.local()  # what a thread of side_by_side passes to the processes that it starts


def override(name: str, value: object) -> str:
    """``name=value`` as Hydra reads it, whatever characters the value holds (a folder's name, say)."""
    if re.fullmatch(r"[A-Za-z0-9_.-]*/[A-Za-z0-9_./-]+", str(value)):
        return f"{name}={value}"  # a folder's name that needs no quotes
    # Inside quotes a backslash is one, except before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), str(value))
    return f"{name}='{quoted}'"


def command_line(config: str, *overrides: str) -> str:
    """What to type to train with a YAML of configs/, ``pretrain/tiny_512``."""
    folder, name = config.split("/")
    settings = " ".join(shlex.quote(setting) for setting in overrides)
    return f"fairseq-hydra-train --config-dir configs/{folder} --config-name {name} {settings}"


def config_name(task: str) -> str:
    """The name of a task's YAML in configs/finetune: sst_2 for SST-2."""
    return task.lower().replace("-", "_")


def fine_tuning_command(config: str, data: Path) -> str:
    """What to type to fine-tune with a folder that was prepared for a YAML of configs/finetune."""
    start = ("model=MODEL", "checkpoint.finetune_from_model=CHECKPOINT")
    return command_line(f"finetune/{config}", override("task.data", data), *start)


def train(
    config: str, overrides: Sequence[str], folder: Path, updates: int, launcher: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Trains with a YAML of configs/, from where an interrupted run stopped; a complete one is not run again.

    Args:
        config: folder and name, ``pretrain/tiny_512``.
        overrides: Hydra's, ``task.data=…``.
        folder: of the checkpoints; what the command prints is added to its ``train.log``.
        updates: length of the run.
        launcher: Hydra's overrides that choose what starts the run, ``hydra/launcher=slurm``; this process by default.

    Returns:
        What fairseq logged, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
        ``valid_loss`` and ``valid_num_updates``, numbers as numbers.

    Raises:
        ValueError: the folder holds a run with other settings, or another process is at work in it.
        OSError: the run failed; the message ends with the last lines that it printed.
    """
    settings = _settings(overrides, folder, updates)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.log").open("a", buffering=1, encoding="utf-8") as log:
        # The training inherits it: where this process alone is killed, no second one starts beside the first.
        lock(log, f"{folder}: another process is training there", inherited=True)
        if not _is_complete(folder, settings):
            _write_run(folder, settings, complete=False)
            _run(config, settings, folder, log, updates, launcher)
            _write_run(folder, settings, complete=True)
    return list(_rows((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()))


def check_settings(overrides: Sequence[str], folder: Path, updates: int) -> None:
    """Raises the ValueError with which ``train`` refuses a folder that holds a run with other settings."""
    _is_complete(folder, _settings(overrides, folder, updates))


def _settings(overrides: Sequence[str], folder: Path, updates: int) -> list[str]:
    return [override("checkpoint.save_dir", folder), f"optimization.max_update={updates}", *overrides]


def _is_complete(folder: Path, settings: list[str]) -> bool:
    if not (folder / RUN_FILE).is_file():
        return False
    run = read_state(folder / RUN_FILE, _RunFile)
    holds_work = run["complete"] or any(folder.glob("*.pt"))  # a run that failed at its start is no hindrance
    if run["settings"] != settings and holds_work:
        differing = sorted(set(run["settings"]) ^ set(settings))
        raise ValueError(
            f"{folder} holds a run with other settings ({', '.join(differing)}): remove it, or name another folder"
        )
    return bool(run["complete"])


def _write_run(folder: Path, settings: list[str], complete: bool) -> None:
    write_whole(folder / RUN_FILE, json.dumps({"settings": settings, "complete": complete}, indent=1))


def _run(config: str, settings: list[str], folder: Path, log: IO[str], updates: int, launcher: Sequence[str]) -> None:
    """Runs fairseq-hydra-train to its end; whatever ends this function ends it too."""
    directory, name = config.split("/")
    program = str(Path(sys.executable).with_name("fairseq-hydra-train"))
    command = [program, "--config-dir", str(CONFIGS / directory), "--config-name", name, "common.log_format=json"]
    _mend_last_checkpoint(folder)
    before = log.tell()
    (folder / LOG_FILE).parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        (folder / LOG_FILE).open("a+", encoding="utf-8") as rows,
        tqdm(total=updates, unit="update", desc=f"{name}, {folder.name}") as bar,
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
            tail = "".join(printed.readlines()[-15:])
        raise OSError(f"fairseq-hydra-train ended with status {process.returncode}; its last lines:\n{tail}")


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


def _mend_last_checkpoint(folder: Path) -> None:
    """fairseq copies its best checkpoint to the last one: a kill meanwhile leaves half a file, on which it fails."""
    last, best = folder / "checkpoint_last.pt", folder / "checkpoint_best.pt"
    if last.is_file() and not zipfile.is_zipfile(last):
        last.unlink()
        if best.is_file():
            shutil.copyfile(best, last)


def _show(log: IO[str], bar: tqdm) -> None:
    """Moves a progress bar on to what has been logged since the last time."""
    for row in _rows(log):
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
        _job.environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[next(numbers) % devices]


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # a GPU without memory, say: whatever it was, the other trainings are not to blame
        return error


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
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
