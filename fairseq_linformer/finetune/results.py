"""What runs of fine-tuning gave, and the table that papers print: OUT/results.json and OUT/results.md.

Both are derived from the folders of the runs, each of which says of which task it is, by content what made it, and
what it scored.
"""

import contextlib
import json
import logging
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from ..checkpoints.files import BEST
from ..data.task_record import SUMMARY_FILE, read_summary
from ..data.tasks import TASKS
from ..errors import UserError
from ..model.config import ResolvedConfig
from ..system.files import leaves_folder, write_whole
from ..system.state import Shape, read_state
from ..training.commands import FINE_TUNING
from ..training.launch import RUN_FILE, read_run
from .results_table import TableRow, as_table, in_order, summarise
from .scored_runs import Result, Setting, TaskRun, read_scores

logger = logging.getLogger(__name__)

RESULTS_FILE = "results.json"
PICTURE_FILE = "labels.png"


class _RunRow(TypedDict):
    """What ``best_checkpoints`` reads of a run."""

    task: str
    folder: str
    score: float | None


class _Runs(TypedDict):
    runs: list[_RunRow]


class _Checkpoint(TypedDict):
    path: str
    sha256: str


class _Table(TypedDict):
    """What ``read_tables`` reads of results."""

    checkpoint: _Checkpoint
    table: list[TableRow]


def best_checkpoints(out: Path) -> dict[str, Path]:
    """The checkpoint of each task's run that is best on the dev set, from the results in a folder of runs.

    Raises:
        FileNotFoundError: the folder holds no results.
        UserError: they are damaged.
    """
    best: dict[str, Path] = {}
    runs = _read(out, _Runs)["runs"]
    for run in sorted(runs, key=lambda run: -math.inf if run["score"] is None else run["score"], reverse=True):
        if leaves_folder(run["folder"]):
            raise UserError(f"{out / RESULTS_FILE} is damaged: the run {run['folder']!r} lies outside of its folder")
        if run["score"] is not None:
            best.setdefault(run["task"], out / run["folder"] / BEST)
    return best


def _read(folder: Path, shape: type[Shape]) -> Shape:
    """What a reader needs of the results in a folder of runs."""
    file = folder / RESULTS_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no {RESULTS_FILE}: linformer finetune writes it there")
    return read_state(file, shape)


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
        metric, train_rows = options["checkpoint.best_checkpoint_metric"], options.get("task.train_rows")
        run = TaskRun(task, seed, setting, updates, folder, metric, train_rows)
        rows |= {} if train_rows is None else {"train": train_rows}
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


def _shown(found: Sequence[Result], own: Sequence[Result], before: Collection[Path]) -> list[Result]:
    """The runs that a row of the table is of: one per seed, with one recipe.

    That of this command's `own` runs, or where it has none of those whose folders the table was of `before`.
    """
    folders = {result.run.folder for result in own} or before
    meant = [result for result in found if result.run.folder in folders]
    recipe = _recipe(meant or found)
    # A seed may have been trained in two folders, by a search and without one.
    ordered = [*sorted(found, key=lambda result: not result.error), *meant]
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
    beside: Sequence[Path] = (),
) -> str:
    """Writes `out`/results.json, `out`/results.md and, of several numbers of rows, `out`/labels.png; returns the table.

    They hold what the folders below `out` say of all runs of the checkpoint with that digest, whichever command trained
    them, and why runs of this command failed: its `results`, and those of `search`, whose settings were not chosen. A
    task's row in the table is of runs that share all but the seed: this command's; those of other tasks stay. The
    table and the picture have what the results in the folders `beside` say of other models, too.

    Raises:
        FileNotFoundError, UserError: there are no results beside, or they are damaged.
    """
    found = _find_runs(out, digest)
    failures = {result.run.folder: result.error for result in (*results, *search) if result.error}
    for result in found:
        if result.error:
            result.error = failures.get(result.run.folder, result.error)
    before: set[Path] = set()
    with contextlib.suppress(FileNotFoundError, UserError):  # none yet, or damaged
        before = {out / run["folder"] for run in _read(out, _Runs)["runs"]}
    shown: list[Result] = []
    parts = {(result.run.task.name, result.run.train_rows) for result in (*found, *results)}
    names = [*TASKS, *sorted({name for name, _ in parts} - TASKS.keys())]
    for part in sorted(parts, key=lambda part: (names.index(part[0]), in_order(part[1]))):
        of_part, own = (
            [one for one in some if (one.run.task.name, one.run.train_rows) == part] for some in (found, results)
        )
        shown += _shown(of_part, own, before)
    folders = {result.run.folder for result in shown}
    others = [result for result in found if result.run.folder not in folders]
    content: dict[str, Any] = {
        "checkpoint": {"path": str(checkpoint), "sha256": digest},
        "model": vars(model),
        "table": summarise(shown, model, out),
        "runs": [_as_row(result, out) for result in shown],
        "search": [_as_row(result, out) for result in others],
    }
    write_whole(out / RESULTS_FILE, json.dumps(content, indent=1, default=str) + "\n")
    tables, checkpoints = read_tables([out, *beside])
    more = f"Runs of other settings, options or data, in {RESULTS_FILE} as `search`: {len(others)}\n\n"
    table = f"{as_table(tables)}\n{more * bool(others)}{''.join(f'Checkpoint: {line}' for line in checkpoints)}"
    write_whole(out / "results.md", table)
    _draw(tables, out / PICTURE_FILE)
    return table


def read_tables(folders: Sequence[Path]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """The rows of the tables in several folders of runs, by the names of the models, and what their checkpoints are.

    Of all but the first only tasks that the first has. A name is that of the folder of the model's run; one that
    was there already has a number behind it.

    Raises:
        FileNotFoundError: a folder holds no results.
        UserError: they are damaged.
    """
    tables: dict[str, list[dict[str, Any]]] = {}
    checkpoints = []
    for folder in folders:
        content = _read(folder, _Table)
        path, digest = Path(content["checkpoint"]["path"]), content["checkpoint"]["sha256"]
        name = path.parent.name
        name = f"{name} ({len(tables) + 1})" if name in tables else name
        tasks = {row["task"] for row in next(iter(tables.values()), content["table"])}
        tables[name] = [dict(row) for row in content["table"] if row["task"] in tasks]
        checkpoints.append(f"{path} (SHA-256 {digest[:12]}…)\n")
    return tables, checkpoints


def check_beside(folders: Sequence[Path], rows: Mapping[str, Mapping[str, int]]) -> None:
    """Refuses results of other models that a table cannot have beside its own.

    Args:
        folders: of their runs.
        rows: of the data, by task and split that is scored.

    Raises:
        FileNotFoundError: a folder holds no results.
        UserError: they are damaged, or of a task of `rows` with another number of rows.
    """
    for folder in folders:
        table = _read(folder, _Table)["table"]
        if not any(row["task"] in rows for row in table):
            logger.warning(f"{folder} has no results of {', '.join(rows)}: no row of the table will be of it")
        for row in table:
            own = rows.get(row["task"], {}).get(row["split"])
            scored = row["rows"][1] if len(row["rows"]) > 1 else own
            if own is not None and own != scored:
                raise UserError(
                    f"{folder}: its results of {row['task']} are of {scored:,} rows of {row['split']}, those of the "
                    f"data here would be of {own:,}"
                )


def _draw(tables: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> None:
    """Draws scores against rows, where a task has several numbers of rows."""
    counts = {(row["task"], row["rows"][0]) for rows in tables.values() for row in rows if row["rows"]}
    if len(counts) == len({task for task, _ in counts}):
        return
    try:
        from .label_curves import draw
    except ImportError as error:
        logger.warning(f"no {file}: matplotlib is needed ({error}): pip install 'fairseq-linformer[analysis]'")
        return
    draw(tables, file)


def _as_row(result: Result, out: Path) -> dict[str, Any]:
    run = {**vars(result.run), "task": result.run.task.name, "setting": asdict(result.run.setting)}
    run["folder"] = result.run.folder.relative_to(out)
    made = result.made.digests() if result.made else {}
    value = None if result.error else result.value
    return {**run, "made_by": made, "scores": result.scores, "score": value, "error": result.error}
