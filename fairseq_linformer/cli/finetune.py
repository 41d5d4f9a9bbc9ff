"""What `linformer finetune` does: runs over tasks and seeds, and their table."""

import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..finetune.results import write_results
from ..finetune.tuning import BATCH_SIZES, RATES, FineTuning


def run(
    model: Path,
    overrides: list[str],
    learning_rates: list[float],
    batch_sizes: list[int],
    search: bool,
    jobs: int,
    launcher: str | None,
    **tuning: Any,
) -> None:
    """Trains, prints the table, and ends with an error where a run failed."""
    launching = [word for word in overrides if word.startswith("hydra.launcher.")]
    if launching and not launcher:
        raise UserError(f"{launching[0]} configures a launcher: --launcher names it")
    tuned = FineTuning(
        checkpoint=model,
        rates=learning_rates or (RATES if search else ()),
        batch_sizes=batch_sizes or (BATCH_SIZES if search else ()),
        overrides=[word for word in overrides if word not in launching],
        **tuning,
    )
    _finetune(tuned, jobs, [f"hydra/launcher={launcher}", *launching] if launcher else [])


def _finetune(tuning: FineTuning, jobs: int, launcher: list[str]) -> None:
    results, search = tuning.run(jobs, launcher)
    table = write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, results, search)
    print(f"\n{table}\nruns, predictions, results.json and results.md: {tuning.out}")
    for task, setting in {result.run.task.name: result.run.setting for result in results}.items():
        print(f"{task}: lr {setting.rate}, batches of {setting.batch_size}")
    failed = [result for result in (*results, *search) if result.error]
    for result in failed:
        named = result.run
        print(f"\n{named.task.name}, {named.setting}, seed {named.seed} failed: {result.error}", file=sys.stderr)
    if failed:
        runs = len(results) + len(search)
        raise UserError(f"{len(failed)} of {runs} runs failed; repeat the command to run them again")
