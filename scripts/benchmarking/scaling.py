"""Tokens per second of a pretraining by its number of processes (scripts/benchmark_scaling.py)."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from fairseq_linformer.errors import LAST_LINES
from fairseq_linformer.training.commands import override
from fairseq_linformer.training.configuration import CONFIGS
from fairseq_linformer.training.launch import logged_rows

LOG_INTERVAL = 5  # updates
WARM_UP = 0.4  # of the rows that are logged: the first ones read the data and warm up


def measure_scaling(
    data: Path, config: str, ranks: Sequence[int], updates: int, rounds: int, overrides: Sequence[str]
) -> dict[int, list[float]]:
    """Trains for some updates on each number of processes in turn, round by round.

    Args:
        data: a prepared corpus.
        config: a YAML of configs/pretrain.
        ranks: numbers of processes, each started by torchrun on this machine.
        updates: of each run.
        overrides: Hydra's.

    Returns:
        For each number of processes its tokens per second in each round.

    Raises:
        OSError: a run failed; the message ends with the last lines that it printed.
    """
    settings = [override("task.data", data.resolve()), f"optimization.max_update={updates}", *overrides]
    speeds: dict[int, list[float]] = {number: [] for number in ranks}
    for number in tqdm([*speeds] * rounds, unit="run"):
        speeds[number].append(tokens_per_second(config, number, settings))
    return speeds


def tokens_per_second(config: str, ranks: int, settings: Sequence[str]) -> float:
    """Of all processes together, after the warm-up, as fairseq logs it."""
    programs = Path(sys.executable).parent
    launcher = [programs / "torchrun", "--standalone", "--nproc-per-node", ranks, "--no-python"]
    command = [programs / "fairseq-hydra-train", "--config-dir", CONFIGS / "pretrain", "--config-name", config]
    with tempfile.TemporaryDirectory(prefix="scaling") as folder:
        run = [override("checkpoint.save_dir", folder), "checkpoint.no_save=true", "dataset.disable_validation=true"]
        log = ["common.log_format=json", f"common.log_interval={LOG_INTERVAL}", "+distributed=torchrun"]
        words = [str(word) for word in [*launcher, *command, *run, *log, *settings]]
        threads = os.environ.get("OMP_NUM_THREADS", "1")  # torchrun's default, also for one process
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
    speeds = [row["wps"] for row in logged_rows(done.stdout.splitlines()) if row.get("wps")]
    if done.returncode != 0 or not speeds:
        tail = "\n".join((done.stdout + done.stderr).rstrip().splitlines()[-15:])
        raise OSError(f"{ranks} processes ended with status {done.returncode}{LAST_LINES}{tail}")
    return statistics.median(speeds[int(WARM_UP * len(speeds)) :])


def as_table(speeds: Mapping[int, Sequence[float]]) -> str:
    """A row per number of processes; efficiency is per process, beside the fewest processes."""
    fewest = min(speeds)
    one = statistics.median(speeds[fewest]) / fewest
    lines = ["| processes | tokens/s | from, to | efficiency |", "|---|---|---|---|"]
    for number, measured in sorted(speeds.items()):
        median = statistics.median(measured)
        spread = f"{min(measured):,.0f}, {max(measured):,.0f}"
        lines.append(f"| {number} | {median:,.0f} | {spread} | {median / number / one:.0%} |")
    return "\n".join(lines)
