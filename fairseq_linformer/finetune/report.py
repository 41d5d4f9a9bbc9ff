"""Report of a sweep, OUT/results.json and OUT/results.md, and the submission to GLUE's leaderboard.

A row of the table has the mean and deviation of one metric over the seeds of the command that trained them last. Rows
of other tasks stay while the checkpoint is the same.
"""

import contextlib
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint_files import BEST
from ..data.task_record import Summary, read_summary
from ..data.tasks import TASKS
from ..errors import UserError
from ..files import write_whole
from .baseline import Baselines
from .metrics import METRICS
from .sweep import Result, Sweep

RESULTS_FILE = "results.json"
COLUMNS = ["task", "metric", "mean ± deviation", "median", "runs", "rows, train / scored", "setting"]
COLUMNS += ["majority class", "TF-IDF + linear SVM"]


def write_results(sweep: Sweep, results: Sequence[Result], search: Sequence[Result]) -> str:
    """Write the report of a sweep, and return its table in Markdown; `results` and `search` are those of its run."""
    table: list[dict[str, Any]] = []
    for name, summary in sweep.summaries.items():
        of_task = [result for result in results if result.run.task.name == name]
        table += table_rows(summary, of_task, sweep.baselines.get(name))
    new = {"table": table, "runs": _as_rows(results, sweep.out), "search": _as_rows(search, sweep.out)}

    old = _read_previous(sweep.out, sweep.digest)
    checkpoint = {"path": str(sweep.checkpoint), "sha256": sweep.digest}
    content: dict[str, Any] = {"checkpoint": checkpoint, "model": vars(sweep.model)}
    for section, rows in new.items():
        previous = [row for row in old.get(section, ()) if row["task"] not in sweep.summaries]
        content[section] = sorted(previous + rows, key=_task_order)
    write_whole(sweep.out / RESULTS_FILE, json.dumps(content, indent=1, default=str) + "\n")

    text = f"{as_markdown(content['table'])}\nCheckpoint: {sweep.checkpoint} (SHA-256 {sweep.digest[:12]}…)\n"
    write_whole(sweep.out / "results.md", text)
    return text


def _read_previous(out: Path, digest: str) -> dict[str, Any]:
    """Return the results of the same checkpoint in a folder of runs; empty if there are none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        content = json.loads((out / RESULTS_FILE).read_text(encoding="utf-8"))
        return content if content["checkpoint"]["sha256"] == digest else {}
    return {}


def _task_order(row: Mapping[str, Any]) -> tuple[int, str]:
    """Return the sort key of GLUE's order, and of the alphabet for other tasks."""
    names = [*TASKS]
    return (names.index(row["task"]), "") if row["task"] in names else (len(names), row["task"])


def _as_rows(results: Sequence[Result], out: Path) -> list[dict[str, Any]]:
    return [
        {
            **vars(result.run),
            "task": result.run.task.name,
            "setting": asdict(result.run.setting),
            "folder": result.run.folder.relative_to(out),
            "made_by": result.made_by,
            "scores": result.scores,
            "score": None if result.error else result.value,
            "error": result.error,
        }
        for result in results
    ]


def table_rows(summary: Summary, results: Sequence[Result], baselines: Baselines | None) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each scored split and metric of a task, from its runs over seeds."""
    task, complete = summary.task, [result for result in results if not result.error]
    for split, title in task.scored.items():
        rows = [summary.splits[name].examples for name in ("train", split)]
        for metric in task.metrics:
            values = [result.scores[split][metric] for result in complete]
            majority, tf_idf = (
                (baselines.majority[split][metric], baselines.tf_idf[split][metric]) if baselines else (None, None)
            )
            yield {
                "task": task.name,
                "split": split,
                "title": title,
                "metric": METRICS[metric].title,
                "mean": statistics.mean(values) if values else None,
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "median": statistics.median(values) if values else None,
                "values": values,
                "rows": rows,
                "settings": sorted({str(result.run.setting) for result in results}),
                "majority": majority,
                "baseline": tf_idf,
            }


def as_markdown(table: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows of ``table_rows`` as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in table:
        cells = ["failed", "", "0"]
        if row["values"]:
            spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
            cells = [f"{row['mean']:.1f}{spread}", f"{row['median']:.1f}", str(len(row["values"]))]

        name = f"{row['task']} ({row['title']})" if row["title"] else row["task"]
        baselines = ["" if row[name] is None else f"{row[name]:.1f}" for name in ("majority", "baseline")]
        rows = " / ".join(f"{count:,}" for count in row["rows"])
        cells = [name, row["metric"], *cells, rows, ", ".join(row["settings"]), *baselines]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def best_checkpoints(out: Path) -> dict[str, Path]:
    """Return by task the checkpoint of the run that is best on the dev set, from the report in a folder of runs."""
    file = out / RESULTS_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{out} holds no {RESULTS_FILE}: linformer finetune writes it there")
    runs = [run for run in json.loads(file.read_text(encoding="utf-8"))["runs"] if run["score"] is not None]
    return {run["task"]: out / run["folder"] / BEST for run in sorted(runs, key=lambda run: run["score"])}


# The files of a submission (gluebenchmark.com/faq), and the task and the split that each predicts.
FILES: Mapping[str, tuple[str, str]] = {
    file: (task.name, split) for task in TASKS.values() for split, file in task.leaderboard.items()
}


def check_test_set(data: Path, name: str) -> None:
    """Raise a UserError unless a prepared task has the official labels and test set for a file of the submission."""
    task, split = TASKS[FILES[name][0]], FILES[name][1]
    summary = read_summary(data)
    if sorted(summary.task.classes) != sorted(task.classes):
        labels, official = (", ".join(names) or "scores" for names in (summary.task.classes, task.classes))
        raise UserError(f"{data}: its labels are {labels}, the official ones of {task.name} are {official}")
    rows = summary.splits[split].examples if split in summary.splits else 0
    official_rows = task.source.files[split].rows if task.source else 0
    if rows != official_rows:
        raise UserError(f"{data}: its split {split} has {rows} rows, the official test set of {name} {official_rows}")


def write_submission_file(folder: Path, name: str, predictions: Sequence[str]) -> None:
    """Write a file of the submission: the number of each row, from 0 on, and its class or score."""
    task = TASKS[FILES[name][0]]
    if task.kind == "regression":  # which may exceed the range of the scores
        predictions = [f"{np.clip(float(score), 0.0, task.scale):.3f}" for score in predictions]
    rows = ["index\tprediction", *(f"{number}\t{prediction}" for number, prediction in enumerate(predictions))]
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
