"""Sweeps: fine-tuning of a checkpoint on tasks, over settings and seeds.

Each run is fairseq-hydra-train with configs/finetune/finetune.yaml and the task's recipe. Its best checkpoint predicts
the dev sets, and the task's own test set if that has labels. Metrics are computed from the saved predictions.

::

    OUT/TASK/seed1/{checkpoint_best.pt,train.log,...}    as fairseq writes them
    OUT/TASK/seed1/run.json                              digests of the run's configuration, data and checkpoint
    OUT/TASK/seed1/predictions-valid.tsv                 label, prediction, probability of each class
    OUT/TASK/seed1/scores.json                           metrics of the predictions
    OUT/TASK/lr0.0003-batch32/seed1/...                  one folder per setting, if several are tried
    OUT/results.json, OUT/results.md                     the report of all runs
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from tqdm import tqdm

from ..checkpoint import check_vocabulary_of, checkpoint_file, digest_vocabulary, read_checkpoint
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.task_record import SUMMARY_FILE, Summary, Task, letters_of, read_summary
from ..data.tasks import is_whole
from ..digests import digest_file
from ..errors import UserError, check
from ..files import LOCK_FILE, check_data_path, lock, write_whole
from ..model.options import ResolvedConfig
from ..model.roberta import LinformerRobertaModel
from ..training.configuration import compose_configuration, flat
from ..training.launch import FINE_TUNING, Training, job_device, override, recipe_name, side_by_side
from ..training.options import WARM_UP, updates_of, updates_of_epochs
from .baseline import Baselines, fit_baselines
from .metrics import SCORE, score, value_of
from .prediction import Predictor, read_predictions, write_predictions

logger = logging.getLogger(__name__)

SCORES_FILE = "scores.json"
PREDICTIONS = "predictions-{}.tsv"  # of a split

RATES = (1e-5, 2e-5, 3e-5)  # RoBERTa's grid (Liu et al. 2019, table 10)
BATCH_SIZES = (16, 32)
# Models narrower than those that are published learn little with these: up to 2e-3 for d = 128
# (docs/experiments/when.md).
NARROW, NARROW_RATES = 384, (1e-4, 5e-4, 2e-3)

ONE_PROCESS = "distributed_training.distributed_world_size=1"  # without it every visible GPU adds a batch
SET_BY_SWEEP: tuple[str, ...] = ("task.data", "common.seed", "dataset.batch_size", "dataset.max_tokens")
SET_BY_SWEEP += ("optimization.lr", "optimization.max_update", "optimization.max_epoch")
SET_BY_SWEEP += ("checkpoint.save_dir", "checkpoint.finetune_from_model", "checkpoint.restore_file")
SET_BY_SWEEP += ("checkpoint.best_checkpoint_metric",)
SET_BY_SWEEP += ("task.seed", "optimizer.lr", "lr_scheduler.lr")  # by default the constants above


@dataclass(frozen=True)
class Setting:
    """Hyperparameters that a sweep searches over."""

    rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"lr{self.rate}-batch{self.batch_size}"


@dataclass(frozen=True)
class Run:
    """One training, its folder, and the metric that chooses its checkpoint (``metrics.value_of``)."""

    task: Task
    seed: int
    setting: Setting
    updates: int
    folder: Path
    metric: str = SCORE

    def __str__(self) -> str:
        return f"{self.task.name}, {self.setting}, seed {self.seed}"


@dataclass
class Result:
    """Metrics of a run by split, ``{"valid": {"accuracy": 93.2}}``, or the `error` by which it failed.

    `made_by` has the digests of the run's configuration, data and checkpoint.
    """

    run: Run
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""
    made_by: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Value that chooses settings; minus infinity without scores."""
        return value_of(self.run.metric, self.run.task, self.scores)


@dataclass
class Sweep:
    """Fine-tuning of a checkpoint on tasks, over seeds.

    If there are several rates or batch sizes, the first seed tries each pair of them, and the other seeds train with
    the best pair.

    Raises:
        UserError, FileNotFoundError: a task, a metric or the checkpoint does not exist, or the data has another
            vocabulary than the checkpoint.
    """

    checkpoint: Path  # a pretrained model; for the folder of a run its best checkpoint
    data: Path  # folder with a prepared folder per task
    out: Path  # folder of the runs and the report
    tasks: Sequence[str]  # names of folders in `data`; sst_2 and sst-2 are SST-2
    seeds: Sequence[int]  # one run of every task for each
    rates: Sequence[float] = ()  # by default those of the task's recipe
    batch_sizes: Sequence[int] = ()  # by default that of the task's recipe
    epochs: float | None = None  # passes over the training rows, by default those of the recipe
    metric: str | None = None  # chooses checkpoint and setting; by default the mean of the task's headline metrics
    overrides: Sequence[str] = ()  # of Hydra, for every run
    search: bool = False  # use a grid by default, with rates that suit the model's width
    digest: str = field(init=False)  # of the checkpoint's file, at the start
    model: ResolvedConfig = field(init=False)  # of the checkpoint
    folders: dict[str, Path] = field(init=False, default_factory=dict)  # of the prepared data, by task
    summaries: dict[str, Summary] = field(init=False, default_factory=dict)  # by task
    baselines: dict[str, Baselines] = field(init=False, default_factory=dict)  # by task, after ``run``
    _trainings: dict[Path, Training] = field(init=False, default_factory=dict, repr=False)  # by folder

    def __post_init__(self) -> None:
        self.checkpoint, self.data, self.out = (path.absolute() for path in (self.checkpoint, self.data, self.out))
        check_data_path(self.data)
        self.checkpoint = checkpoint_file(self.checkpoint)

        for name in self.tasks:
            self._add_task(find_folder(self.data, name))

        self.model = self._read_model()
        self.digest = digest_file(self.checkpoint)

        if self.search:
            self.rates = self.rates or (NARROW_RATES if self._is_narrow else RATES)
            self.batch_sizes = self.batch_sizes or BATCH_SIZES

    def _add_task(self, folder: Path) -> None:
        summary = read_task(folder)
        task = summary.task
        if self.metric is not None:
            allowed = f"one of {', '.join(task.metrics)}, which {task.name} has"
            check("metric", self.metric, self.metric in task.metrics, allowed)
        if self.folders.setdefault(task.name, folder) != folder:
            raise UserError(f"{folder} and {self.folders[task.name]} are both the task {task.name}")
        self.summaries[task.name] = summary

    def _read_model(self) -> ResolvedConfig:
        """Return the configuration of the checkpoint's model, whose vocabulary the data must have."""
        state = read_checkpoint(self.checkpoint)
        for folder in self.folders.values():
            vocabulary = digest_vocabulary(load_dictionary(folder / DICTIONARY_FILE), folder)
            check_vocabulary_of(state, vocabulary, str(folder), str(self.checkpoint))
        return LinformerRobertaModel.resolve(state["cfg"])

    def run(self, jobs: int = 1, launcher: Sequence[str] = ()) -> tuple[list[Result], list[Result]]:
        """Train the incomplete runs, `jobs` at a time, by a `launcher` of Hydra's overrides.

        Returns:
            The results of every seed, and those of settings that were tried and not chosen.
        """
        tasks = [(task, setting) for task in self.summaries for setting in self.settings(task)]
        runs = [self.plan(task, seed, setting) for seed in self.seeds for task, setting in tasks]
        self._check(runs)
        self._lock_folder()
        self._fit_baselines()
        train = partial(self._train, jobs=jobs, launcher=launcher)
        return self._search(runs, train) if self._has_several_settings else (train(runs), [])

    def settings(self, task: str) -> list[Setting]:
        """Return every setting of a task, by default its recipe's alone."""
        recipe = read_recipe(recipe_name(task))
        rates = self.rates or recipe["optimization"]["lr"]
        batch_sizes = self.batch_sizes or [recipe["dataset"]["batch_size"]]
        return [Setting(rate, batch_size) for rate in rates for batch_size in batch_sizes]

    def plan(self, task: str, seed: int, setting: Setting) -> Run:
        """Return a run that passes over the training rows as often as the recipe does, or `epochs` times."""
        recipe, epochs = read_recipe(recipe_name(task)), self._epochs(task)
        rows_per_update = setting.batch_size * math.prod(self._processes_and_accumulation(task))
        if epochs is None:
            rows = recipe["optimization"]["max_update"] * recipe["dataset"]["batch_size"]
            updates = updates_of(rows, rows_per_update)
        else:
            updates = updates_of_epochs(epochs, self.summaries[task].splits["train"].examples, rows_per_update)

        folder = self.out / task / (str(setting) if self._has_several_settings else "") / f"seed{seed}"
        return Run(self.summaries[task].task, seed, setting, updates, folder, self.metric or SCORE)

    def training(self, run: Run) -> Training:
        """Return the training of a run, always the same object, as it digests the files once."""
        training = Training(FINE_TUNING, (*self._overrides(run), *self.overrides), run.folder, run.updates)
        return self._trainings.setdefault(run.folder, training)

    @property
    def _has_several_settings(self) -> bool:
        return len(self.rates) > 1 or len(self.batch_sizes) > 1

    @property
    def _is_narrow(self) -> bool:
        return self.model.encoder_embed_dim < NARROW

    def _epochs(self, task: str) -> float | None:
        """Return the passes over the training rows; None if the recipe has a number of updates, which is for all."""
        length = read_recipe(recipe_name(task))["optimization"]
        by_updates = length["max_update"] and is_whole(task, self.summaries[task].splits["train"].examples)
        return self.epochs or (None if by_updates else length["max_epoch"])

    def _processes_and_accumulation(self, task: str) -> tuple[int, int]:
        """Return the processes of a run, and the batches that each of them accumulates in one update."""
        options = read_recipe(recipe_name(task), str(self.folders[task]), (ONE_PROCESS, *self.overrides))
        accumulated = options["optimization"]["update_freq"]
        is_one_number = len(accumulated) == 1 and accumulated[0] >= 1
        check("optimization.update_freq", accumulated, is_one_number, "one number, at least 1, in brackets")
        return options["distributed_training"]["distributed_world_size"], accumulated[0]

    def _overrides(self, run: Run) -> Iterator[str]:
        """Yield a run's differences from the recipe. The warm-up keeps its share of the updates."""
        task = run.task.name
        recipe = read_recipe(recipe_name(task))
        updates, warm_up = recipe["optimization"]["max_update"], recipe["lr_scheduler"]["warmup_updates"]
        share = warm_up / updates if updates else WARM_UP

        yield f"recipe={recipe_name(task)}"
        yield override("task.data", self.folders[task])
        yield override("checkpoint.finetune_from_model", self.checkpoint)
        yield ONE_PROCESS
        yield f"common.seed={run.seed}"
        yield f"optimization.lr=[{run.setting.rate}]"
        yield f"dataset.batch_size={run.setting.batch_size}"
        yield f"lr_scheduler.warmup_updates={round(run.updates * share)}"
        if self._epochs(task) is not None:
            yield "optimization.max_epoch=0"
        if self.metric is not None:
            yield f"checkpoint.best_checkpoint_metric={self.metric}"

    def _check(self, runs: Sequence[Run]) -> None:
        """Raise an error for invalid options before any work."""
        composed = {task: self._check_overrides(run) for task, run in {run.task.name: run for run in runs}.items()}
        for task in dict.fromkeys(run.task.name for run in runs if not self.training(run).is_complete()):
            setup_task(OmegaConf.create(composed[task]).task)

        highest = max(run.setting.rate for run in runs)
        if self._is_narrow and highest < min(NARROW_RATES):
            logger.warning(
                f"lr {highest:g} suits models of d = {NARROW} and more, and is too low for one of "
                f"d = {self.model.encoder_embed_dim}: --learning-rates 5e-4 2e-3 tries higher ones"
            )

    def _check_overrides(self, run: Run) -> dict[str, Any]:
        """Return a run's configuration; raise an error if overrides change folders or options that distinguish runs."""
        words = self.training(run).settings
        composed = compose_configuration(FINE_TUNING, words)
        options = dict(flat(composed))
        expected = dict(flat(compose_configuration(FINE_TUNING, words[: len(words) - len(self.overrides)])))
        for name in SET_BY_SWEEP:
            allowed = expected.get(name)
            value = options.get(name, allowed)
            check(name, value, value == allowed, f"{allowed}, by the flags of linformer finetune")
        return composed

    def _lock_folder(self) -> None:
        """Keep other processes from writing a report to this folder while this one lives."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._lock = (self.out / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.out}: another process is fine-tuning there")

    def _fit_baselines(self) -> None:
        for name, folder in tqdm(self.folders.items(), desc="TF-IDF baseline", unit="task"):
            try:
                self.baselines[name] = fit_baselines(folder)
            except (UserError, OSError) as error:  # the runs do not need it
                logger.warning(f"{name}: no baseline: {error}")

    def _search(self, runs: list[Run], train: Callable[[list[Run]], list[Result]]) -> tuple[list[Result], list[Result]]:
        """Try every setting with the first seed, and train the other seeds with the best one of each task."""
        tried = train([run for run in runs if run.seed == self.seeds[0]])
        best: dict[str, Result] = {}
        for result in sorted(tried, key=lambda result: (bool(result.error), -result.value)):
            best.setdefault(result.run.task.name, result)  # a failed one only if all failed
        chosen = [best[task] for task in self.summaries]
        settings = {result.run.task.name: result.run.setting for result in chosen}
        remaining = [run for run in runs if run.seed != self.seeds[0] and run.setting == settings[run.task.name]]
        return [*chosen, *train(remaining)], [result for result in tried if result not in chosen]

    def _train(self, runs: Sequence[Run], jobs: int, launcher: Sequence[str]) -> list[Result]:
        calls: list[Callable[[], Result]] = [
            partial(train_and_score, run, self.training(run), self.folders[run.task.name], launcher) for run in runs
        ]
        gpus = max((self._processes_and_accumulation(run.task.name)[0] for run in runs), default=1)
        return [
            Result(run, error=str(result)) if isinstance(result, Exception) else result
            for run, result in zip(runs, side_by_side(calls, jobs, gpus), strict=True)
        ]


@cache
def read_recipe(name: str, data: str = "DATA", overrides: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """Return the configuration of a recipe in configs/finetune/recipe, with a folder of data and overrides."""
    return compose_configuration(FINE_TUNING, [f"recipe={name}", override("task.data", data), *overrides])


def find_folder(data: Path, name: str) -> Path:
    """Return the folder of a task in `data`: SST-2 for sst_2, sst-2 or sst2."""
    if (data / SUMMARY_FILE).is_file():
        raise UserError(f"{data} is itself a prepared task: --data names the folder that it lies in")
    folders = sorted(file.parent for file in data.glob(f"*/{SUMMARY_FILE}"))
    alike = [folder for folder in folders if letters_of(folder.name) == letters_of(name)]
    exact = [folder for folder in alike if folder.name == name] or alike
    if len(exact) != 1:
        names = ", ".join(folder.name for folder in exact or folders)
        raise UserError(f"{data} holds {'several tasks' if exact else 'no task'} {name}: it has {names or 'none'}")
    return exact[0]


def read_task(folder: Path) -> Summary:
    """Return the summary of a prepared folder, which must have the splits for training and scoring."""
    summary = read_summary(folder)
    for split in ("train", *summary.task.scored):
        if split not in summary.splits:
            raise UserError(f"{folder} has no split {split}: it has {', '.join(summary.splits)}")
    return summary


def train_and_score(run: Run, training: Training, data: Path, launcher: Sequence[str] = ()) -> Result:
    """Train a run to its end, predict with its best checkpoint, and score the saved predictions."""
    training.run(launcher)
    made_by = training.fingerprint.digests()
    if scores := read_scores(run, made_by):
        return Result(run, scores, made_by=made_by)

    checkpoint = checkpoint_file(run.folder)
    on_cpu = read_checkpoint(checkpoint)["cfg"].common.cpu
    predictor = Predictor(checkpoint, data, "cpu" if on_cpu else job_device())
    result = Result(run, made_by=made_by)
    for split in run.task.scored:
        file = run.folder / PREDICTIONS.format(split)
        write_predictions(predictor, split, file)
        result.scores[split] = score(run.task, *read_predictions(run.task, file))

    content = {"made_by": made_by, "scores": result.scores}
    write_whole(run.folder / SCORES_FILE, json.dumps(content, indent=1) + "\n")
    return result


def read_scores(run: Run, made_by: Mapping[str, str | None]) -> dict[str, dict[str, float]] | None:
    """Return the scores in a run's folder; None if they are missing, or of another run or other metrics."""
    try:
        content = json.loads((run.folder / SCORES_FILE).read_text(encoding="utf-8"))
        names = {(split, name) for split, metrics in content["scores"].items() for name in metrics}
    except (OSError, ValueError, KeyError):
        return None
    is_of_run = content["made_by"] == made_by and names == {*product(run.task.scored, run.task.metrics)}
    return content["scores"] if is_of_run else None
