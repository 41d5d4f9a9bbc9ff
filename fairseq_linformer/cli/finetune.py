"""Fine-tune a pretrained model on tasks over seeds, and print a table of results.

    linformer finetune runs/tiny_512 --data data-bin/tasks --tasks rte mrpc sst_2 --seeds 1 2 3

The data is a folder with a folder per task, written by `linformer prepare` with the model's tokenizer. Each run is
fairseq-hydra-train with configs/finetune/finetune.yaml, the recipe of the task (recipe/own.yaml for your own task) and
the checkpoint's model. Its best checkpoint, by the task's headline metrics or --metric, predicts the dev sets, and your
own test set if it has labels; the metrics are computed from the saved predictions. Completed runs are skipped,
interrupted ones resume, failed ones are listed at the end, and those whose checkpoint, data or configuration has
changed are rejected. The table contains the results over the seeds of this command, the rows of earlier commands for
other tasks, and two baselines: the majority class, and TF-IDF with a linear SVM. Words at the end are Hydra's overrides
for every run: optimization.clip_norm=1.0

--jobs starts several runs in parallel, one per GPU if there are GPUs. --launcher submits every run by a launcher of
Hydra, which is configured by overrides:
    --launcher slurm --jobs 30 hydra.launcher.partition=gpu
Predictions are made on the machine of this command. If you stop it, runs in Slurm continue: cancel them by scancel
before you repeat the command.
"""

import shlex
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .arguments import Distinct, Parser, number


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    parser.add_shared("model", help="pretrained checkpoint, or the folder of its run (its best checkpoint)")
    parser.take_overrides("MODEL --data DIR --tasks TASK ... [options] [NAME=VALUE ...]")
    parser.add_shared("--data", required=True, help="folder with a prepared folder per task: DIR/RTE, DIR/mine")
    parser.add_shared("--tasks", required=True, help="folders in DIR, in upper or lower case")
    parser.add_shared("--seeds", help="seeds of the runs: every task is run with each")
    parser.add_shared("--out", required=False, default=Path("runs/finetune"), help="folder of the runs and the results")
    list_arguments: dict[str, Any] = {"nargs": "+", "action": Distinct, "default": []}
    list_arguments["help"] = "of several, the best one with the first seed is chosen (default: the task's recipe)"
    add("--learning-rates", metavar="X", type=number(float, above=0), **list_arguments)
    add("--batch-sizes", metavar="N", type=number(int, minimum=1), **list_arguments)
    epochs_help = "passes over the rows of train (default: as in the task's recipe)"
    add("--epochs", metavar="N", type=number(float, above=0), help=epochs_help)
    metric = "metric of the task that chooses checkpoint and setting (default: the mean of the headline metrics)"
    add("--metric", metavar="METRIC", help=metric)
    grid = "rates 1e-5 2e-5 3e-5 (models narrower than d = 384: 1e-4 5e-4 2e-3), batches of 16 32"
    add("--search", action="store_true", help=f"choose from a grid of settings (default: {grid})")
    add("--jobs", metavar="N", type=number(int, minimum=1), default=1, help="number of runs at a time")
    add("--launcher", metavar="NAME", help="Hydra's launcher: slurm, or another installed one (default: none)")


def run(
    model: Path,
    overrides: list[str],
    learning_rates: list[float],
    batch_sizes: list[int],
    jobs: int,
    launcher: str | None,
    **options: Any,
) -> None:
    """Train, print the table, and raise an error if a run failed."""
    from ..finetune.report import write_results
    from ..finetune.sweep import Sweep

    launcher_options = [word for word in overrides if launcher and word.startswith("hydra.launcher.")]
    sweep = Sweep(
        checkpoint=model,
        rates=learning_rates,
        batch_sizes=batch_sizes,
        overrides=[word for word in overrides if word not in launcher_options],
        **options,
    )
    results, search = sweep.run(jobs, [f"hydra/launcher={launcher}", *launcher_options] if launcher else [])
    print(f"\n{write_results(sweep, results, search)}\nruns, predictions, results.json, results.md: {sweep.out}")

    completed = {result.run.task.name: result.run for result in reversed(results) if not result.error}
    first_runs = [completed[task] for task in sweep.summaries if task in completed]
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
