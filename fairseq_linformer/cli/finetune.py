"""What `linformer finetune` does: runs over tasks and seeds, and their table."""

import shlex
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..finetune.results import PICTURE_FILE, check_beside, write_results
from ..finetune.tuning import FineTuning


def run(
    model: Path,
    overrides: list[str],
    learning_rates: list[float],
    batch_sizes: list[int],
    jobs: int,
    launcher: str | None,
    beside: list[Path],
    **tuning: Any,
) -> None:
    """Trains, prints the table, and ends with an error where a run failed."""
    launching = [word for word in overrides if word.startswith("hydra.launcher.")]
    if launching and not launcher:
        raise UserError(f"{launching[0]} configures a launcher: --launcher names it")
    tuned = FineTuning(
        checkpoint=model,
        rates=learning_rates,
        batch_sizes=batch_sizes,
        overrides=[word for word in overrides if word not in launching],
        **tuning,
    )
    check_beside(beside, tuned.scored_rows)
    _finetune(tuned, jobs, [f"hydra/launcher={launcher}", *launching] if launcher else [], beside)


def _finetune(tuning: FineTuning, jobs: int, launcher: list[str], beside: list[Path]) -> None:
    results, search = tuning.run(jobs, launcher)
    table = write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, results, search, beside)
    picture = f" and {PICTURE_FILE}" if (tuning.out / PICTURE_FILE).is_file() else ""
    print(f"\n{table}\nruns, predictions, results.json, results.md{picture}: {tuning.out}")
    complete = [result.run for result in results if not result.error]
    chosen = {(run.task.name, run.train_rows): run.setting for run in complete}
    for (task, count), setting in chosen.items():
        rows = "" if count is None else f", {count:,} rows"
        print(f"{task}{rows}: lr {setting.rate}, batches of {setting.batch_size}")
    trained = {run.task.name: run.folder for run in reversed(complete)}
    for folder in reversed(trained.values()):  # the first run of each task
        print(f"next: linformer predict {shlex.quote(str(folder))} --input FILE")
    failed = [result for result in (*results, *search) if result.error]
    for result in failed:
        print(f"\n{result.run} failed: {result.error}", file=sys.stderr)
    if failed:
        runs = len(results) + len(search)
        raise UserError(f"{len(failed)} of {runs} runs failed; repeat the command to run them again")
