"""What runs of fine-tuning gave, and the table that papers print: OUT/results.json and OUT/results.md.

Both are derived from the folders of the runs, each of which says of which task it is, by content what made it, and
what it scored.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from ..data.summary import SUMMARY_FILE, read_summary
from ..data.tasks import TASKS
from ..errors import UserError
from ..model.config import ResolvedConfig
from ..system.digests import digest_folder
from ..system.files import leaves_folder, write_whole
from ..system.markdown import cell
from ..system.state import read_state
from ..training.commands import FINE_TUNING
from ..training.launch import RUN_FILE, read_run
from .metrics import METRICS, is_at_chance, paper_score
from .scored_runs import Result, Setting, TaskRun, read_scores

RESULTS_FILE = "results.json"
BASELINE_FILE = "baseline.json"  # in the folder of a task's runs: what no neural network reaches on the same data
AT_CHANCE = (
    "† At chance: no more than two standard errors above the majority class (the commonest label of train, or the mean "
    "of scores, for every row)."
)
WNLI = (
    "WNLI's dev set is adversarial: its sentences stand in train with the other answer, so that what has learned words "
    "is wrong there, TF-IDF first of all: it may be far below the majority class."
)


class _RunRow(TypedDict):
    """What ``best_checkpoints`` reads of a run."""

    task: str
    folder: str
    score: float | None


class _Runs(TypedDict):
    runs: list[_RunRow]


class _Baseline(TypedDict):
    """Metrics by split of TF-IDF and of the majority class, and the digest of the data's folder that they are of."""

    data: str
    scores: dict[str, dict[str, float]]
    majority: dict[str, dict[str, float]]


def summarise(results: Sequence[Result], config: ResolvedConfig, out: Path) -> list[dict[str, Any]]:
    """A row of the table for each task, split that is scored, and metric."""
    rows = []
    for task in {result.run.task.name: result.run.task for result in results}.values():
        of_task = [result for result in results if result.run.task.name == task.name]
        done = [result for result in of_task if not result.error]
        words, majority = read_baseline(out / task.name, {result.made.data for result in of_task if result.made})
        settings = sorted({str(result.run.setting) for result in of_task})
        counts = next((result.rows for result in of_task if result.rows), {})
        for split, title in task.scored.items():
            for name in task.metrics:
                values = [result.scores[split][name] for result in done]
                rows.append(
                    {
                        "task": task.name,
                        "split": split,
                        "title": title,
                        "metric": METRICS[name].title,
                        "mean": statistics.mean(values) if values else None,
                        "deviation": statistics.stdev(values) if len(values) > 1 else None,
                        "median": statistics.median(values) if values else None,
                        "values": values,
                        "rows": [counts[part] for part in ("train", split) if part in counts],
                        "settings": settings,
                        "majority": majority.get(split, {}).get(name),
                        "baseline": words.get(split, {}).get(name),
                        "paper": paper_score(task.name, name, config, counts.get("train", 0)),
                    }
                )
                rows[-1]["at_chance"] = _is_at_chance(name, rows[-1])
    return rows


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown, and below them what their marks mean."""
    columns = ["task", "metric", "mean ± deviation", "median", "runs", "rows, train / scored", "setting"]
    columns += ["majority class", "TF-IDF + linear SVM", "paper, table 2"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = ["failed", "", "0"]
        if row["values"]:
            spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
            mark = " †" if row["at_chance"] else ""
            cells = [f"{row['mean']:.1f}{spread}{mark}", f"{row['median']:.1f}", str(len(row["values"]))]
        name = f"{row['task']} ({cell(row['title'])})" if row["title"] else row["task"]
        cells += [" / ".join(f"{count:,}" for count in row["rows"]), ", ".join(row["settings"])]
        cells += ["" if row[beside] is None else f"{row[beside]:.1f}" for beside in ("majority", "baseline")]
        lines.append("| " + " | ".join([name, row["metric"], *cells, row["paper"]]) + " |")
    notes = [AT_CHANCE] * any(row["at_chance"] for row in rows) + [WNLI] * any(row["task"] == "WNLI" for row in rows)
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def _is_at_chance(metric: str, row: Mapping[str, Any]) -> bool:
    known = row["mean"] is not None and row["majority"] is not None and len(row["rows"]) == 2
    return known and is_at_chance(metric, row["mean"], row["majority"], row["rows"][1])


def best_checkpoints(out: Path) -> dict[str, Path]:
    """The checkpoint of each task's run that is best on the dev set, from the results in a folder of runs.

    Raises:
        FileNotFoundError: the folder holds no results.
        UserError: they are damaged.
    """
    if not (out / RESULTS_FILE).is_file():
        raise FileNotFoundError(f"{out} holds no {RESULTS_FILE}: linformer finetune writes it there")
    best: dict[str, Path] = {}
    runs = read_state(out / RESULTS_FILE, _Runs)["runs"]
    for run in sorted(runs, key=lambda run: -math.inf if run["score"] is None else run["score"], reverse=True):
        if leaves_folder(run["folder"]):
            raise UserError(f"{out / RESULTS_FILE} is damaged: the run {run['folder']!r} lies outside of its folder")
        if run["score"] is not None:
            best.setdefault(run["task"], out / run["folder"] / "checkpoint_best.pt")
    return best


def keep_baseline(folder: Path, data: Path) -> None:
    """Keeps what TF-IDF and the majority class reach on prepared data in the folder of the runs on it."""
    from .baseline import baselines

    digest = digest_folder(data)
    if not any(read_baseline(folder, {digest})):
        words, majority = baselines(data)
        content: _Baseline = {"data": digest, "scores": words, "majority": majority}
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / BASELINE_FILE, json.dumps(content, indent=1) + "\n")


def read_baseline(folder: Path, data: Set[str]) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """TF-IDF's and the majority class's metrics by split, in the folder of a task's runs; empty if of other data."""
    try:
        content = read_state(folder / BASELINE_FILE, _Baseline)
    except (OSError, ValueError):  # none, or damaged: it is computed again
        return {}, {}
    return (content["scores"], content["majority"]) if {content["data"]} == data else ({}, {})


def _find_runs(out: Path, checkpoint: str) -> list[Result]:
    """What the folders of runs below `out` say of those that start from the checkpoint with that digest."""
    found = []
    for file in sorted(out.rglob(RUN_FILE)):
        folder, state = file.parent, read_run(file.parent)
        made = state.provenance if state else None
        if state is None or made is None or made.config != FINE_TUNING or made.checkpoint != checkpoint:
            continue
        if not (folder / SUMMARY_FILE).is_file():
            continue  # trained by hand
        summary, options = read_summary(folder), made.configuration
        task, rows = summary.task, {split: counts.examples for split, counts in summary.splits.items()}
        setting = Setting(options["optimization.lr"][0], options["dataset.batch_size"])
        seed, updates = options["common.seed"], options["optimization.max_update"]
        run = TaskRun(task, seed, setting, updates, folder, options["checkpoint.best_checkpoint_metric"])
        scores = read_scores(folder, made, task) if state.complete else None
        found.append(Result(run, scores or {}, "" if scores else "not complete: repeat its command", made, rows))
    return found


def _recipe(results: Sequence[Result]) -> str | None:
    """Of a task's runs, the recipe that most seeds were trained with; of equal ones that with the best mean."""

    def worth(recipe: str) -> tuple[int, float]:
        means = [one.value for one in results if _has_recipe(one, recipe) and not one.error]
        return len(means), statistics.mean(means) if means else -math.inf

    return max(dict.fromkeys(one.made.recipe() for one in results if one.made), key=worth, default=None)


def _has_recipe(result: Result, recipe: str | None) -> bool:
    return result.made is not None and result.made.recipe() == recipe


def _shown(found: Sequence[Result], own: Sequence[Result]) -> list[Result]:
    """The runs of a task that its row is of: one per seed, with the recipe of this command's `own` where it has any."""
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
    names = {result.run.task.name for result in (*found, *results)}
    for task in [*(name for name in TASKS if name in names), *sorted(names - TASKS.keys())]:
        of_task = ([result for result in part if result.run.task.name == task] for part in (found, results))
        shown += _shown(*of_task)
    folders = {result.run.folder for result in shown}
    others = [result for result in found if result.run.folder not in folders]
    content: dict[str, Any] = {
        "checkpoint": {"path": str(checkpoint), "sha256": digest},
        "model": vars(model),
        "table": summarise(shown, model, out),
        "runs": [_as_row(result, out) for result in shown],
        "search": [_as_row(result, out) for result in others],
    }
    table = f"{as_table(content['table'])}\nCheckpoint: {checkpoint} (SHA-256 {digest[:12]}…)\n"
    write_whole(out / RESULTS_FILE, json.dumps(content, indent=1, default=str) + "\n")
    write_whole(out / "results.md", table)
    return table


def _as_row(result: Result, out: Path) -> dict[str, Any]:
    run = {**vars(result.run), "task": result.run.task.name, "setting": asdict(result.run.setting)}
    run["folder"] = result.run.folder.relative_to(out)
    made = result.made.digests() if result.made else {}
    value = None if result.error else result.value
    return {**run, "made_by": made, "scores": result.scores, "score": value, "error": result.error}
