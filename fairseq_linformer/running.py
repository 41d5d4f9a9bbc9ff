"""Runs fairseq-hydra-train as a user would, with a progress bar, reads what it logged, and writes its command lines."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from .data.staging import lock

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RUN_FILE = "run.json"  # in a run's folder: its settings, and whether it is complete

_running: set["subprocess.Popen[str]"] = set()


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


def fine_tuning_command(config: str, data: Path) -> str:
    """What to type to fine-tune with a folder that was prepared for a YAML of configs/finetune."""
    start = ("model=MODEL", "checkpoint.finetune_from_model=CHECKPOINT")
    return command_line(f"finetune/{config}", override("task.data", data), *start)


def train(config: str, overrides: Sequence[str], folder: Path, updates: int) -> list[dict[str, Any]]:
    """Trains with a YAML of configs/, from where an interrupted run stopped; a complete one is not run again.

    Args:
        config: folder and name, ``pretrain/tiny_512``.
        overrides: Hydra's, ``task.data=…``.
        folder: of the checkpoints; fairseq's output is added to its ``train.log``.
        updates: length of the run.

    Returns:
        What fairseq logged, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
        ``valid_loss`` and ``valid_num_updates``, numbers as numbers.

    Raises:
        ValueError: the folder holds a run with other settings, or another process is at work in it.
        OSError: the run failed; the message ends with the last lines that it printed.
    """
    settings = [override("checkpoint.save_dir", folder), f"optimization.max_update={updates}", *overrides]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.log").open("a", buffering=1, encoding="utf-8") as log:
        lock(log, f"{folder}: another process is training there")
        if not _is_complete(folder, settings):
            _write_run(folder, settings, complete=False)
            _run(config, settings, log, updates)
            _write_run(folder, settings, complete=True)
    return list(_rows((folder / "train.log").read_text(encoding="utf-8").splitlines()))


def _is_complete(folder: Path, settings: list[str]) -> bool:
    if not (folder / RUN_FILE).is_file():
        return False
    run = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    if run["settings"] != settings:
        differing = sorted(set(run["settings"]) ^ set(settings))
        raise ValueError(
            f"{folder} holds a run with other settings ({', '.join(differing)}): remove it, or name another folder"
        )
    return bool(run["complete"])


def _write_run(folder: Path, settings: list[str], complete: bool) -> None:
    (folder / RUN_FILE).write_text(json.dumps({"settings": settings, "complete": complete}, indent=1), encoding="utf-8")


def _run(config: str, settings: list[str], log: IO[str], updates: int) -> None:
    """Runs fairseq-hydra-train to its end; whatever ends this function ends it too."""
    directory, name = config.split("/")
    program = str(Path(sys.executable).with_name("fairseq-hydra-train"))
    command = [program, "--config-dir", str(CONFIGS / directory), "--config-name", name, "common.log_format=json"]
    tail: list[str] = []
    # Its temporary files are gone with it: workers that PyTorch ends in mid-epoch leave folders behind.
    with tempfile.TemporaryDirectory() as temporary, tqdm(total=updates, unit="update", desc=name) as bar:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": temporary}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen([*command, *settings], env=environment, **output)  # type: ignore[call-overload]
        _running.add(process)
        try:
            for line in process.stdout or ():
                log.write(line)
                tail = [*tail[-14:], line]
                for row in _rows([line]):
                    bar.update(int(row.get("num_updates", bar.n)) - bar.n)
                    bar.set_postfix({key: row[key] for key in ("loss", "valid_loss", "valid_accuracy") if key in row})
            process.wait()
        finally:
            _running.discard(process)
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise OSError(f"fairseq-hydra-train ended with status {process.returncode}; its last lines:\n{''.join(tail)}")


def stop_all() -> None:
    """Ends what other threads are training; their checkpoints stay, and the runs go on from there when repeated."""
    for process in list(_running):
        process.terminate()


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
