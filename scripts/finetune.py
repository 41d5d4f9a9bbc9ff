#!/usr/bin/env python3
"""Fine-tunes a pretrained checkpoint on GLUE and IMDB over seeds, and prints the table that papers print.

    python scripts/finetune.py --checkpoint runs/tiny_512/checkpoint_best.pt --data data-bin/tasks \\
        --tasks rte,mrpc,sst_2 --seeds 1,2,3

The data is a folder with a folder a task, as scripts/prepare_glue.py and prepare_imdb.py write them with the
checkpoint's tokenizer. Each run is fairseq-hydra-train with the task's YAML of configs/finetune and the checkpoint's
model; its best checkpoint predicts the dev set, and the official metrics are computed from the saved predictions.
Runs that are complete are not run again, an interrupted one goes on, a failed one is named at the end; one whose
checkpoint, data or configuration has other content by now is refused. The table is of all runs of the checkpoint that
OUT holds, of a task those that differ in the seed alone. Words at the end are Hydra's overrides for every run:
optimization.clip_norm=1.0

--jobs runs several side by side here, each on a GPU of its own where there are any. --launcher submits every run by a
launcher of Hydra's, which overrides configure:
    --launcher slurm --jobs 30 hydra.launcher.partition=gpu
The dev sets are predicted where this command runs. Ending it does not cancel what Slurm runs: scancel does, and should
before the command is repeated.
"""

import argparse
import logging
import math
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout, installed or not

from fairseq_linformer.errors import UserError, one_line_errors
from fairseq_linformer.finetune.metrics import TASK_METRICS
from fairseq_linformer.finetune.results import write_results
from fairseq_linformer.finetune.runner import BATCH_SIZES, RATES, FineTuning


def finetune(tuning: FineTuning, jobs: int, launcher: list[str]) -> None:
    results, search = tuning.run(jobs, launcher)
    table = write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, results, search)
    print(f"\n{table}\nruns, predictions, results.json and results.md: {tuning.out}")
    for task, setting in {result.run.task: result.run.setting for result in results}.items():
        print(f"{task}: lr {setting.rate}, batches of {setting.batch_size}")
    failed = [result for result in (*results, *search) if result.error]
    for result in failed:
        run = result.run
        print(f"\n{run.task}, {run.setting}, seed {run.seed} failed: {result.error}", file=sys.stderr)
    if failed:
        runs = len(results) + len(search)
        raise UserError(f"{len(failed)} of {runs} runs failed; repeat the command to run them again")


def numbers(kind: type, least: float):
    """A parser of distinct numbers, separated by commas, above `least`."""

    def parse(text: str) -> list:
        try:
            values = [kind(word) for word in text.split(",")]
        except ValueError:
            values = []
        if not values or not all(least < value < math.inf for value in values) or len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{text} is not allowed: numbers above {least:g}, each once, with commas")
        return values

    return parse


def number(kind: type):
    """A parser of one number above 0."""

    def parse(text: str):
        values = numbers(kind, 0)(text)
        if len(values) > 1:
            raise argparse.ArgumentTypeError(f"{text} is not allowed: one number")
        return values[0]

    return parse


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    from_where = "of a pretrained model, or its run's folder (checkpoint_best.pt)"
    add("--checkpoint", metavar="FILE|DIR", type=Path, required=True, help=from_where)
    add("--data", metavar="DIR", type=Path, required=True, help="holds a prepared folder a task: DIR/RTE, DIR/IMDB")
    add("--tasks", metavar="A,B,…", required=True, help=f"of {', '.join(TASK_METRICS)}")
    add("--seeds", metavar="N,N,…", type=numbers(int, -1), default=[1, 2, 3], help="default: 1,2,3")
    add("--out", metavar="DIR", type=Path, default=Path("runs/finetune"), help="default: runs/finetune")
    add("--epochs", metavar="N", type=number(float), help="default: the updates of the task's YAML")
    add("--learning-rates", metavar="X,X,…", type=numbers(float, 0), default=[], help="default: the task's YAML")
    add("--batch-sizes", metavar="N,N,…", type=numbers(int, 0), default=[], help="default: the task's YAML")
    grid = f"{', '.join(map(str, RATES))} and {', '.join(map(str, BATCH_SIZES))}"
    add("--search", action="store_true", help=f"try RoBERTa's grid where none is named: {grid}")
    add("--jobs", metavar="N", type=number(int), default=1, help="runs side by side (default 1)")
    add("--launcher", metavar="NAME", help="of Hydra: slurm, or another that is installed (default: none)")
    add("overrides", metavar="OVERRIDE", nargs="*", help="Hydra's overrides for every run")
    return parser.parse_args()


def main(arguments: argparse.Namespace) -> None:
    options = vars(arguments)
    search, jobs, launcher = options.pop("search"), options.pop("jobs"), options.pop("launcher")
    settings = [word for word in options["overrides"] if word.startswith("hydra.launcher.")]
    if settings and not launcher:
        raise UserError(f"{settings[0]} configures a launcher: --launcher names it")
    options["overrides"] = [word for word in options["overrides"] if word not in settings]
    options["rates"] = options.pop("learning_rates") or (RATES if search else ())
    options["batch_sizes"] = options.pop("batch_sizes") or (BATCH_SIZES if search else ())
    launching = [f"hydra/launcher={launcher}", *settings] if launcher else []
    finetune(FineTuning(**{**options, "tasks": options["tasks"].split(",")}), jobs, launching)


if __name__ == "__main__":
    arguments = parse_arguments()
    logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets it to DEBUG, for every library
    warnings.filterwarnings("ignore", message=".*pin_memory")  # fairseq asks for it on machines without a GPU too
    with one_line_errors():
        main(arguments)
