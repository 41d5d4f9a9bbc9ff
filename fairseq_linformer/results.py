"""What runs of fine-tuning gave, and the table that papers print: OUT/results.json and OUT/results.md."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from .config import ResolvedConfig
from .data.staging import write_whole
from .data.state import read_state
from .scores import NAMES, TASK_METRICS, paper_score

RESULTS_FILE = "results.json"


class _TableRow(TypedDict):
    """What ``as_table`` reads of a row."""

    task: str
    split: str
    metric: str
    mean: float | None
    deviation: float | None
    median: float | None
    values: list[float]
    paper: str


class _RunRow(TypedDict):
    """What ``best_checkpoints`` reads of a run."""

    task: str
    folder: str
    scores: dict[str, dict[str, float]]
    error: str


class _Runs(TypedDict):
    runs: list[_RunRow]


class _Results(_Runs):
    checkpoint: str
    table: list[_TableRow]
    search: list[_RunRow]


@dataclass(frozen=True)
class Setting:
    """What may differ between the runs of a task, beside the seed."""

    rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"lr{self.rate:g}-batch{self.batch_size}"


@dataclass(frozen=True)
class Run:
    """One training, and where it lies."""

    task: str
    seed: int
    setting: Setting
    updates: int
    checkpoint: Path
    overrides: tuple[str, ...]
    folder: Path


@dataclass
class Result:
    """A run's metrics by split, ``{"valid": {"accuracy": 93.2}}``; `error` instead where it failed."""

    run: Run
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""


def mean_score(scores: Mapping[str, Mapping[str, float]]) -> float:
    """By which settings and runs are chosen: the mean of all metrics; none is worse than any."""
    values = [value for metrics in scores.values() for value in metrics.values()]
    return statistics.mean(values) if values else -math.inf


def summarise(results: Sequence[Result], config: ResolvedConfig) -> list[dict[str, Any]]:
    """A row of the table for each task, dev set and metric."""
    rows = []
    for task in dict.fromkeys(result.run.task for result in results):
        done = [result for result in results if result.run.task == task and not result.error]
        for split, scores in (done[0].scores if done else {"valid": dict.fromkeys(TASK_METRICS[task])}).items():
            for name in scores:
                values = [result.scores[split][name] for result in done]
                rows.append(
                    {
                        "task": task,
                        "split": split,
                        "metric": NAMES[name],
                        "mean": statistics.mean(values) if values else None,
                        "deviation": statistics.stdev(values) if len(values) > 1 else None,
                        "median": statistics.median(values) if values else None,
                        "values": values,
                        "paper": paper_score(task, name, config),
                    }
                )
    return rows


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = ["| task | metric | mean ± deviation | median | runs | paper, table 2 |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = ["failed", "", "0"]
        if row["values"]:
            spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
            cells = [f"{row['mean']:.1f}{spread}", f"{row['median']:.1f}", str(len(row["values"]))]
        name = row["task"] if row["split"] == "valid" else f"{row['task']} (mismatched)"
        lines.append("| " + " | ".join([name, row["metric"], *cells, row["paper"]]) + " |")
    return "\n".join(lines) + "\n"


def best_checkpoints(out: Path) -> dict[str, Path]:
    """The checkpoint of each task's run that is best on the dev set, from the results in a folder of runs.

    Raises:
        FileNotFoundError: the folder holds no results.
    """
    if not (out / RESULTS_FILE).is_file():
        raise FileNotFoundError(f"{out} holds no {RESULTS_FILE}: scripts/finetune.py writes it there")
    best: dict[str, tuple[float, Path]] = {}
    for run in read_state(out / RESULTS_FILE, _Runs)["runs"]:
        if not run["error"]:
            mean = mean_score(run["scores"])
            if run["task"] not in best or mean > best[run["task"]][0]:
                best[run["task"]] = mean, out / run["folder"] / "checkpoint_best.pt"
    return {task: checkpoint for task, (_, checkpoint) in best.items()}


def write_results(
    out: Path, checkpoint: Path, model: ResolvedConfig, results: Sequence[Result], search: Sequence[Result]
) -> str:
    """Writes `out`/results.json and `out`/results.md, and returns the table; `search` has the settings not chosen.

    What they hold of the checkpoint's other tasks stays, so that tasks can be run one after another.
    """
    content: dict[str, Any] = {"checkpoint": str(checkpoint), "model": vars(model)}
    content["table"] = summarise(results, model)
    content["runs"] = [_as_row(result, out) for result in results]
    content["search"] = [_as_row(result, out) for result in search]
    if (out / RESULTS_FILE).is_file():
        earlier: dict[str, Any] = {**read_state(out / RESULTS_FILE, _Results)}
        tasks = {result.run.task for result in results}
        if earlier["checkpoint"] == content["checkpoint"]:
            for rows in ("table", "runs", "search"):
                content[rows] += [row for row in earlier[rows] if row["task"] not in tasks]
    for rows in ("table", "runs", "search"):
        content[rows].sort(key=lambda row: list(TASK_METRICS).index(row["task"]))
    table = as_table(content["table"])
    write_whole(out / RESULTS_FILE, json.dumps(content, indent=1, default=str) + "\n")
    write_whole(out / "results.md", table)
    return table


def _as_row(result: Result, out: Path) -> dict[str, Any]:
    run = {**asdict(result.run), "folder": result.run.folder.relative_to(out)}
    return {**run, "scores": result.scores, "error": result.error}
