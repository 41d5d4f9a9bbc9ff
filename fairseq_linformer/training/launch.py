"""Runs fairseq-hydra-train as a user would, with a progress bar, and reads what it logged."""

import contextlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from ..errors import LAST_LINES, UserError
from ..files import lock, read_json, write_whole
from .commands import override
from .configuration import CONFIGS
from .jobs import job_environment, started
from .provenance import Provenance

RUN_FILE = "run.json"  # in a run's folder: what it is made of, and whether it is complete
TRAIN_LOG = "train.log"  # what the command prints
LOG_FILE = Path("hydra", "hydra_train.log")  # what fairseq logs, written by Hydra where the configs say

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class RunState:
    """What a run's folder says of it."""

    provenance: Provenance
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
        where = override("checkpoint.save_dir", self.folder)
        return [where, f"optimization.max_update={self.updates}", *self.overrides]

    @cached_property
    def provenance(self) -> Provenance:
        """What it is made of, as the files are when this is asked first: before it begins."""
        return Provenance.of(self.config, self.settings)

    def is_complete(self) -> bool:
        """Whether the folder holds this run, and all of it.

        Raises:
            UserError: Hydra does not compose its settings; the folder holds a run that is made of something else,
                which the message names, or of nobody knows what.
            FileNotFoundError: the data, or the checkpoint that it starts from, does not exist.
        """
        now, state = self.provenance, read_run(self.folder)
        if not ((state and state.complete) or any(self.folder.glob("*.pt"))):
            return False  # a run that failed at its start is no hindrance
        remedy = "remove it, or give another --out"
        if state is None:
            raise UserError(f"{self.folder} holds a run, but no {RUN_FILE} that says what it is made of: {remedy}")
        if changes := state.provenance.changes(now):
            raise UserError(f"{self.folder} holds a run with other settings ({changes}): {remedy}")
        return state.complete

    def check_idle(self) -> None:
        """Refuses a folder where a training is at work, which may have outlived the command that started it.

        Raises:
            UserError: there is one.
        """
        with contextlib.suppress(FileNotFoundError), (self.folder / TRAIN_LOG).open("r+", encoding="utf-8") as log:
            self._lock(log)

    def run(self, launcher: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Trains from where an interrupted run stopped; a complete one is not run again.

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
        self.is_complete()  # refuses another run's folder before anything is written into it
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / TRAIN_LOG).open("a", buffering=1, encoding="utf-8") as log:
            self._lock(log)
            if not self.is_complete():
                self._write(complete=False)
                self._train(log, launcher)
                self._check_sources()
                self._write(complete=True)
        return list(logged_rows((self.folder / LOG_FILE).read_text(encoding="utf-8").splitlines()))

    def _lock(self, log: IO[str]) -> None:
        """The training inherits it: where this process alone is killed, no second one starts beside the first."""
        lock(log, f"{self.folder}: another process is training there", inherited=True)

    def _train(self, log: IO[str], launcher: Sequence[str]) -> None:
        """Runs fairseq-hydra-train to its end; whatever ends this function ends it too."""
        begin, fairseqs_log, environment = log.tell(), self.folder / LOG_FILE, {**os.environ, "PYTHONUNBUFFERED": "1"}
        directory, name = self.config.split("/")
        command = [
            _program(),
            "--config-dir",
            str(CONFIGS / directory),
            "--config-name",
            name,
            "common.log_format=json",
        ]
        command += self.settings
        fairseqs_log.parent.mkdir(exist_ok=True)
        with (
            tempfile.TemporaryDirectory() as temporary,
            fairseqs_log.open("a+", encoding="utf-8") as rows,
            tqdm(total=self.updates, unit="update", desc="/".join(self.folder.parts[-3:])) as bar,
        ):
            if launcher:
                where = [override("hydra.sweep.dir", self.folder), f"hydra.sweep.subdir={LOG_FILE.parent}"]
                command += [*where, *launcher, "--multirun"]
            else:  # its temporary files are gone with it: workers that PyTorch ends in mid-epoch leave folders behind
                environment |= {"TMPDIR": temporary, **job_environment()}
            with started(command, environment, log) as process:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    _show(rows, bar)
                _show(rows, bar)
        if process.returncode != 0:
            raise _failure(Path(log.name), begin, process.returncode)

    def _check_sources(self) -> None:
        """A configuration was read when the run began, but nobody knows which part of replaced data it was given."""
        made, now = self.provenance, Provenance.of(self.config, self.settings)
        if changes := made.changes(replace(now, configuration=made.configuration)):
            raise UserError(f"{self.folder}: since the run began, {changes}: put the former one back, and repeat")

    def _write(self, complete: bool) -> None:
        content = {**self.provenance.as_json(), "complete": complete}
        write_whole(self.folder / RUN_FILE, json.dumps(content, indent=1) + "\n")


def read_run(folder: Path) -> RunState | None:
    """What a folder's run.json says, or None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / RUN_FILE
    if not file.is_file():
        return None
    try:
        content = read_json(file)
        return RunState(Provenance.of_json(content), bool(content["complete"]))
    except (UserError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): remove its folder, or name another one") from error


def _program() -> str:
    """fairseq-hydra-train of this Python's environment: beside it, where pip puts scripts, or in PATH.

    Raises:
        FileNotFoundError: it is in none of them.
    """
    places = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    found = shutil.which("fairseq-hydra-train", path=os.pathsep.join(places))
    if found is None:
        raise FileNotFoundError(
            f"fairseq-hydra-train is not beside {sys.executable} nor in PATH: install fairseq-fixed"
        )
    return found


def train(
    config: str, overrides: Sequence[str], folder: Path, updates: int, launcher: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Runs a ``Training`` in `folder`, unless it is complete there, and returns what fairseq logged."""
    return Training(config, tuple(overrides), folder, updates).run(launcher)


def _failure(log: Path, begin: int, status: int) -> OSError:
    """What a training said last that ended with an error; its output begins at that place of the log."""
    with log.open(encoding="utf-8", errors="replace") as printed:
        printed.seek(begin)
        lines = printed.read().rstrip().splitlines()
    if lines and lines[-1].startswith("error: "):
        return OSError(f"fairseq-hydra-train: {lines[-1].removeprefix('error: ')}")
    tail = "\n".join(lines[-15:])
    return OSError(f"fairseq-hydra-train ended with status {status}{LAST_LINES}{tail}")


def _show(log: IO[str], bar: tqdm) -> None:
    """Moves a progress bar on to what has been logged since the last time."""
    for row in logged_rows(log):
        bar.update(int(row.get("num_updates", bar.n)) - bar.n)
        bar.set_postfix({key: row[key] for key in ("loss", "valid_loss") if key in row})


def logged_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines of a log, their numbers read."""
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
