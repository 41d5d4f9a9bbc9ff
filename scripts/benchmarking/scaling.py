"""The study ``scaling``: tokens per second of a pretraining by its number of processes."""

import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from fairseq_linformer.errors import LAST_LINES
from fairseq_linformer.training.commands import override
from fairseq_linformer.training.configuration import CONFIGS
from fairseq_linformer.training.launch import logged_rows
from linformer_cli.arguments import number

from .flags import Flag, count
from .tables import table

FLAGS = {
    "config": Flag("of configs/pretrain", metavar="NAME", default="tiny_512"),
    "ranks": Flag(
        "processes", count, several=True, default=[n for n in (1, 2, 4) if n <= (torch.cuda.device_count() or 4)]
    ),
    "updates": Flag("of each run", number(int, least=20), default=60),
}
LOG_INTERVAL = 5  # updates
WARM_UP = 0.4  # of the rows that are logged: the first ones read the data and warm up


def measure_scaling(options: Namespace) -> str:
    """Trains for some updates on each number of processes in turn, round by round.

    Returns:
        A table: for each number of processes its tokens per second.

    Raises:
        OSError: a run failed; the message ends with the last lines that it printed.
    """
    settings = [override("task.data", options.data.resolve()), f"optimization.max_update={options.updates}"]
    speeds: dict[int, list[float]] = {ranks: [] for ranks in options.ranks}
    for ranks in tqdm([*speeds] * options.rounds, unit="run"):
        speeds[ranks].append(tokens_per_second(options.config, ranks, [*settings, *options.overrides]))
    return as_table(speeds)


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
    medians = {number: statistics.median(measured) for number, measured in speeds.items()}
    one = medians[min(speeds)] / min(speeds)
    columns: dict[str, Callable[[int], str]] = {
        "processes": str,
        "tokens/s": lambda number: f"{medians[number]:,.0f}",
        "from, to": lambda number: f"{min(speeds[number]):,.0f}, {max(speeds[number]):,.0f}",
        "efficiency": lambda number: f"{medians[number] / number / one:.0%}",
    }
    return table(columns, sorted(speeds))
