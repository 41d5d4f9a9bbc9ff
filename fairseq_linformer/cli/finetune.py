"""`linformer finetune`: runs over tasks and seeds, and their table."""

import shlex
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..finetune.report import write_results
from ..finetune.sweep import Sweep


def run(
    model: Path,
    overrides: list[str],
    learning_rates: list[float],
    batch_sizes: list[int],
    jobs: int,
    launcher: str | None,
    **options: Any,
) -> None:
    """Train, print the table, and end with an error if a run failed."""
    of_launcher = [word for word in overrides if launcher and word.startswith("hydra.launcher.")]
    sweep = Sweep(
        checkpoint=model,
        rates=learning_rates,
        batch_sizes=batch_sizes,
        overrides=[word for word in overrides if word not in of_launcher],
        **options,
    )
    results, search = sweep.run(jobs, [f"hydra/launcher={launcher}", *of_launcher] if launcher else [])
    print(f"\n{write_results(sweep, results, search)}\nruns, predictions, results.json, results.md: {sweep.out}")

    complete = {result.run.task.name: result.run for result in reversed(results) if not result.error}
    first_runs = [complete[task] for task in sweep.summaries if task in complete]
    for run in first_runs:
        print(f"{run.task.name}: lr {run.setting.rate}, batches of {run.setting.batch_size}")
    for run in first_runs:
        print(f"next: linformer predict {shlex.quote(str(run.folder))} --input FILE")

    failed = [result for result in (*results, *search) if result.error]
    for result in failed:
        print(f"\n{result.run} failed: {result.error}", file=sys.stderr)
    if failed:
        runs = len(results) + len(search)
        raise UserError(f"{len(failed)} of {runs} runs failed; repeat the command to run them again")
