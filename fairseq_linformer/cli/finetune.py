"""Fine-tunes a pretrained checkpoint on tasks over seeds, and prints the table that papers print.

    python scripts/finetune.py --checkpoint runs/tiny_512/checkpoint_best.pt --data data-bin/tasks \\
        --tasks rte,mrpc,sst_2 --seeds 1,2,3

The data is a folder with a folder per task, as scripts/prepare_glue.py, prepare_imdb.py and prepare_table.py write
them with the checkpoint's tokenizer. Each run is fairseq-hydra-train with configs/finetune/finetune.yaml, the task's
recipe there (recipe/own.yaml for your own task) and the checkpoint's model. Its best checkpoint, by the task's headline
metrics or --metric, predicts the dev sets, and your own test set where it has labels; the metrics are computed from the
saved predictions. Completed runs are skipped, interrupted ones resume, failed ones are named at the end; one whose
checkpoint, data or configuration has other content by now is refused. The table has all runs of the checkpoint in OUT,
for each task those that differ in the seed alone, beside TF-IDF with a linear SVM on the same data. Words at the end
are Hydra's overrides for every run: optimization.clip_norm=1.0

--jobs runs several side by side here, each on a GPU of its own where there are any. --launcher submits every run by a
launcher of Hydra's, which overrides configure:
    --launcher slurm --jobs 30 hydra.launcher.partition=gpu
Predictions are made where this command runs. Ending it does not cancel what Slurm runs: scancel does, and should
before the command is repeated.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..finetune.metrics import METRICS
from ..finetune.results import write_results
from ..finetune.tuning import BATCH_SIZES, RATES, FineTuning
from .arguments import comma_list, make_parser, number
from .program import program


def finetune(tuning: FineTuning, jobs: int, launcher: list[str]) -> None:
    results, search = tuning.run(jobs, launcher)
    table = write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, results, search)
    print(f"\n{table}\nruns, predictions, results.json and results.md: {tuning.out}")
    for task, setting in {result.run.task.name: result.run.setting for result in results}.items():
        print(f"{task}: lr {setting.rate}, batches of {setting.batch_size}")
    failed = [result for result in (*results, *search) if result.error]
    for result in failed:
        run = result.run
        print(f"\n{run.task.name}, {run.setting}, seed {run.seed} failed: {result.error}", file=sys.stderr)
    if failed:
        runs = len(results) + len(search)
        raise UserError(f"{len(failed)} of {runs} runs failed; repeat the command to run them again")


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    from_where = "of a pretrained model, or its run's folder (checkpoint_best.pt)"
    add("--checkpoint", metavar="FILE|DIR", type=Path, required=True, help=from_where)
    add("--data", metavar="DIR", type=Path, required=True, help="holds a prepared folder per task: DIR/RTE, DIR/mine")
    add("--tasks", metavar="A,B,…", type=comma_list(str), required=True, help="folders in DIR; small letters will do")
    add("--seeds", metavar="N,N,…", type=comma_list(number(int, least=0)), default=[1, 2, 3], help="default: 1,2,3")
    add("--out", metavar="DIR", type=Path, default=Path("runs/finetune"), help="default: runs/finetune")
    add("--epochs", metavar="N", type=number(float, above=0), help="default: the length of the task's recipe")
    add(
        "--learning-rates",
        metavar="X,X,…",
        type=comma_list(number(float, above=0)),
        default=[],
        help="default: the task's recipe",
    )
    add(
        "--batch-sizes",
        metavar="N,N,…",
        type=comma_list(number(int, least=1)),
        default=[],
        help="default: the task's recipe",
    )
    grid = f"{', '.join(map(str, RATES))} and {', '.join(map(str, BATCH_SIZES))}"
    add("--metric", choices=METRICS, help="chooses checkpoint and setting (default: the mean of the headline metrics)")
    add("--search", action="store_true", help=f"try RoBERTa's grid where none is named: {grid}")
    add("--jobs", metavar="N", type=number(int, least=1), default=1, help="runs side by side (default 1)")
    add("--launcher", metavar="NAME", help="of Hydra: slurm, or another that is installed (default: none)")
    add("overrides", metavar="OVERRIDE", nargs="*", help="Hydra's overrides for every run")
    return parser.parse_intermixed_args(words)  # overrides may stand anywhere


def finetune_from(options: dict[str, Any]) -> None:
    search, jobs, launcher = options.pop("search"), options.pop("jobs"), options.pop("launcher")
    settings = [word for word in options["overrides"] if word.startswith("hydra.launcher.")]
    if settings and not launcher:
        raise UserError(f"{settings[0]} configures a launcher: --launcher names it")
    options["overrides"] = [word for word in options["overrides"] if word not in settings]
    options["rates"] = options.pop("learning_rates") or (RATES if search else ())
    options["batch_sizes"] = options.pop("batch_sizes") or (BATCH_SIZES if search else ())
    launching = [f"hydra/launcher={launcher}", *settings] if launcher else []
    finetune(FineTuning(**options), jobs, launching)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(words)
    with program():
        finetune_from(vars(arguments))
