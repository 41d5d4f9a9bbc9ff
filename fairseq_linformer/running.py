"""Runs fairseq-hydra-train as a user would, with a progress bar, and reads what it logged."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def train(config: str, overrides: Sequence[str], log: Path, updates: int) -> list[dict[str, Any]]:
    """Trains with a YAML of configs/, from where an interrupted run stopped; a complete one is not run again.

    Args:
        config: folder and name, ``pretrain/tiny_512``.
        overrides: Hydra's, ``task.data=…``.
        log: file in the run's folder that fairseq's output is added to.
        updates: length of the run.

    Returns:
        What fairseq logged, oldest first: training rows with ``loss`` and ``num_updates``, validation rows with
        ``valid_loss`` and ``valid_num_updates``, numbers as numbers.

    Raises:
        OSError: the run failed; the message ends with the last lines that it printed.
    """
    rows = _read(log)
    if any(row.get("valid_num_updates", 0) >= updates for row in rows):
        return rows
    folder, name = config.split("/")
    program = str(Path(sys.executable).with_name("fairseq-hydra-train"))
    settings = ["common.log_format=json", f"optimization.max_update={updates}", *overrides]
    command = [program, "--config-dir", str(CONFIGS / folder), "--config-name", name, *settings]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a") as sink,
        tqdm(total=updates, unit="update", desc=name, dynamic_ncols=True) as bar,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        sink.write(" ".join(command) + "\n")
        for line in process.stdout or ():
            sink.write(line)
            for row in _rows([line]):
                bar.update(int(row.get("num_updates", bar.n)) - bar.n)
                bar.set_postfix({key: row[key] for key in ("loss", "valid_loss", "valid_accuracy") if key in row})
    if process.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise OSError(f"fairseq-hydra-train ended with status {process.returncode}; the end of {log}:\n{tail}")
    return _read(log)


def _read(log: Path) -> list[dict[str, Any]]:
    """All rows of a log, none where there is no log yet."""
    return list(_rows(log.read_text().splitlines())) if log.is_file() else []


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines of a log, their numbers read."""
    for line in lines:
        start = line.find('{"epoch": ')
        if start >= 0:
            yield {key: _number(value) for key, value in json.loads(line[start:]).items()}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except ValueError:
        return value
