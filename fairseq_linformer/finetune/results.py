"""What runs of fine-tuning gave, and the table that papers print: OUT/results.json and OUT/results.md.

Both are derived from the folders of the runs, each of which says by content what made it, and what it scored.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from ..config import ResolvedConfig
from ..system.files import write_whole
from ..system.state import read_state
from ..training.launch import RUN_FILE, config_name, read_run
from ..training.provenance import Provenance, digest_file
from .metrics import NAMES, TASK_METRICS, paper_score

RESULTS_FILE = "results.json"
SCORES_FILE = "scores.json"  # in a run's folder: its metrics, and what made them
PREDICTIONS = "predictions-{}.tsv"  # likewise, of a split
_TASKS = {f"finetune/{config_name(task)}": task for task in TASK_METRICS}  # by the YAML that trains on each


class _RunRow(TypedDict):
    """What ``best_checkpoints`` reads of a run."""

    task: str
    folder: str
    scores: dict[str, dict[str, float]]
    error: str


class _Runs(TypedDict):
    runs: list[_RunRow]


class _Scores(TypedDict):
    """What a run's folder keeps of its metrics."""

    made_by: dict[str, str | None]
    predictions: dict[str, str]
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Setting:
    """What may differ between the runs of a task, beside the seed."""

    rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"lr{self.rate}-batch{self.batch_size}"


@dataclass(frozen=True)
class Run:
    """One training, and where it lies."""

    task: str
    seed: int
    setting: Setting
    updates: int
    folder: Path


@dataclass
class Result:
    """A run's metrics by split, ``{"valid": {"accuracy": 93.2}}``; `error` instead where there are none.

    `made` says what the run is made of, where its folder does.
    """

    run: Run
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""
    made: Provenance | None = None


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


def write_scores(folder: Path, made: Provenance, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Keeps the scores of a run in its folder, with what made them and the predictions that they were computed from."""
    content = {"made_by": made.digests(), "predictions": _predictions(folder, scores), "scores": scores}
    write_whole(folder / SCORES_FILE, json.dumps(content, indent=1) + "\n")


def read_scores(folder: Path, made: Provenance) -> dict[str, dict[str, float]] | None:
    """The scores in a run's folder; None where there are none of that run, or its predictions are not those scored."""
    try:
        content = read_state(folder / SCORES_FILE, _Scores)
        digests = _predictions(folder, content["scores"])
    except (OSError, ValueError):  # none, or damaged: they are computed again
        return None
    named = all(metrics.keys() == {*TASK_METRICS[_TASKS[made.config]]} for metrics in content["scores"].values())
    valid = named and content["made_by"] == made.digests() and digests == content["predictions"]
    return content["scores"] if valid and content["scores"] else None


def _predictions(folder: Path, splits: Iterable[str]) -> dict[str, str]:
    """The digests of the files that the scores of these splits are computed from."""
    return {file.name: digest_file(file) for file in (folder / PREDICTIONS.format(split) for split in splits)}


def _find_runs(out: Path, checkpoint: str) -> list[Result]:
    """What the folders of runs below `out` say of those that start from the checkpoint with that digest."""
    found = []
    for file in sorted(out.rglob(RUN_FILE)):
        state = read_run(file.parent)
        made = state.provenance if state else None
        if state is None or made is None or made.config not in _TASKS or made.checkpoint != checkpoint:
            continue
        options = made.configuration
        setting = Setting(options["optimization.lr"][0], options["dataset.batch_size"])
        task, seed, updates = _TASKS[made.config], options["common.seed"], options["optimization.max_update"]
        scores = read_scores(file.parent, made) if state.complete else None
        error = "" if scores else "not complete: repeat its command"
        found.append(Result(Run(task, seed, setting, updates, file.parent), scores or {}, error, made))
    return found


def _recipe(results: Sequence[Result]) -> str | None:
    """Of a task's runs, the recipe that most seeds were trained with; of equal ones that with the best mean."""

    def worth(recipe: str) -> tuple[int, float]:
        means = [mean_score(one.scores) for one in results if _has_recipe(one, recipe) and not one.error]
        return len(means), statistics.mean(means) if means else -math.inf

    return max(dict.fromkeys(one.made.recipe() for one in results if one.made), key=worth, default=None)


def _has_recipe(result: Result, recipe: str | None) -> bool:
    return result.made is not None and result.made.recipe() == recipe


def _shown(found: Sequence[Result], own: Sequence[Result]) -> list[Result]:
    """The runs of a task that its row is of: one a seed, with the recipe of this command's `own` where it has any."""
    folders = {result.run.folder for result in own}
    mine = [result for result in found if result.run.folder in folders]
    recipe = _recipe(mine or found)
    # A seed may have been trained in two folders, by a search and without one: this command's is meant.
    ordered = [*sorted(found, key=lambda result: not result.error), *mine]
    by_seed = {result.run.seed: result for result in ordered if _has_recipe(result, recipe)}
    by_seed |= {result.run.seed: result for result in own if result.error and result.run.seed not in by_seed}
    return [result for _, result in sorted(by_seed.items())]


def write_results(
    out: Path,
    checkpoint: Path,
    digest: str,
    model: ResolvedConfig,
    results: Sequence[Result],
    search: Sequence[Result],
) -> str:
    """Writes `out`/results.json and `out`/results.md, and returns the table.

    They hold what the folders below `out` say of all runs of the checkpoint with that digest, whichever command trained
    them, and why runs of this command failed: its `results`, and those of `search`, whose settings were not chosen. A
    task's row in the table is of runs that share all but the seed: this command's, or for other tasks the most.
    """
    found = _find_runs(out, digest)
    failures = {result.run.folder: result.error for result in (*results, *search) if result.error}
    for result in found:
        if result.error:
            result.error = failures.get(result.run.folder, result.error)
    shown: list[Result] = []
    for task in TASK_METRICS:
        of_task = ([result for result in part if result.run.task == task] for part in (found, results))
        shown += _shown(*of_task)
    folders = {result.run.folder for result in shown}
    others = [result for result in found if result.run.folder not in folders]
    content: dict[str, Any] = {
        "checkpoint": {"path": str(checkpoint), "sha256": digest},
        "model": vars(model),
        "table": summarise(shown, model),
        "runs": [_as_row(result, out) for result in shown],
        "search": [_as_row(result, out) for result in others],
    }
    table = as_table(content["table"])
    write_whole(out / RESULTS_FILE, json.dumps(content, indent=1, default=str) + "\n")
    write_whole(out / "results.md", table)
    return table


def _as_row(result: Result, out: Path) -> dict[str, Any]:
    run = {**asdict(result.run), "folder": result.run.folder.relative_to(out)}
    made = result.made.digests() if result.made else {}
    return {**run, "made_by": made, "scores": result.scores, "error": result.error}
