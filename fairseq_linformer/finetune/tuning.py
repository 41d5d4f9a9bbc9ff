"""Fine-tuning over tasks and seeds: one run after another, or side by side.

Every run is fairseq-hydra-train with configs/finetune/finetune.yaml and a recipe. When it is complete, its best
checkpoint predicts the dev sets, and an own test set that has labels; the predictions are saved, and the metrics are
computed from those files.

::

    OUT/TASK/baseline.json                                       what TF-IDF and the majority class reach
    OUT/TASK/seed1/{checkpoint_best.pt,train.log,...}            as fairseq writes them
    OUT/TASK/seed1/run.json                                      what the run is made of, by content
    OUT/TASK/seed1/task.json                                     the task's record, as the data has it
    OUT/TASK/seed1/predictions-valid.tsv                         label, prediction, probability of each class
    OUT/TASK/seed1/scores.json                                   their metrics, once they are found to be fairseq's
    OUT/TASK/lr0.0003-batch32/seed1/...                          one folder per setting, where several are tried
    OUT/TASK/rows200/seed1/...                                   one folder per number of training rows, likewise
    OUT/TASK/rows200/baseline-seed1.json                         the baseline on the same rows
    OUT/results.json, OUT/results.md, OUT/labels.png             every run, the table, and scores against rows
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from tqdm import tqdm

from ..checkpoints.reading import checkpoint_file, read_checkpoint, vocabulary_folder
from ..checkpoints.task_state import read_task_state
from ..checkpoints.vocabulary import check_same_vocabulary, digest_vocabulary
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary
from ..data.task_record import SUMMARY_FILE, Task, letters_of, read_summary
from ..data.tasks import is_whole
from ..errors import UserError, check
from ..model.config import ResolvedConfig
from ..model.roberta import LinformerRobertaModel
from ..system.digests import digest_file
from ..system.files import LOCK_FILE, check_data_path, check_path, lock
from ..training.commands import FINE_TUNING, override, recipe_name
from ..training.configuration import compose_configuration
from ..training.jobs import side_by_side
from ..training.launch import Training
from ..training.run_length import WARM_UP, updates_of, updates_of_epochs
from .kept_baselines import keep_baselines
from .metrics import SCORE
from .overrides import check_override
from .scored_runs import Result, Setting, TaskRun, train_and_score

logger = logging.getLogger(__name__)

LEAST_UPDATES = 200  # of runs on fewer rows than train has
VALIDATIONS = 10  # of such runs, at most, as of a recipe's 10 epochs
RATES = (1e-5, 2e-5, 3e-5)  # RoBERTa's grid (Liu et al. 2019, table 10)
BATCH_SIZES = (16, 32)
# Models narrower than those that are published learn little with these: up to 2e-3 for d = 128
# (docs/experiments/when.md).
NARROW, NARROW_RATES = 384, (1e-4, 5e-4, 2e-3)
ONE_PROCESS = "distributed_training.distributed_world_size=1"  # otherwise every GPU in sight, and batches of that many


@dataclass
class FineTuning:
    """What a checkpoint reaches on tasks, over seeds.

    Attributes:
        checkpoint: a pretrained model, or the folder of its run, whose checkpoint_best.pt is meant.
        data: folder with a prepared folder per task, named as the task.
        out: folder of the runs and the results.
        tasks: names of folders in `data`; sst_2 and sst-2 stand for SST-2.
        seeds: each a run of every task.
        rates, batch_sizes: by default those of the task's recipe. Where there are several, the first seed tries each
            pair of them, and the other seeds train with the best.
        search: by default a grid of them, of rates that suit the model's width.
        epochs: how often the training rows are seen; by default as the recipe says. Its updates and warm-up are scaled.
        train_rows: numbers of training rows, each with runs of its own; by default all rows. The first of a stratified
            order, another one for each seed, so that the deviation over seeds is also that of the choice of rows; of
            one seed, fewer rows are among more. The epochs are the recipe's, or as many more as LEAST_UPDATES take:
            what is too short for few rows is the number of updates, not of epochs (Mosbach et al. 2021, arXiv
            2006.04884; Zhang et al. 2021, arXiv 2006.05987, where the 96 of three epochs of 1,000 rows are too few).
        metric: that chooses the checkpoint, and the setting; by default the mean of the task's headline metrics.
        overrides: Hydra's, for every run.
        digest: of the checkpoint's file, as it was at the start.
        model: the configuration of the checkpoint's model.
        records: the tasks, by name.

    Raises:
        UserError, FileNotFoundError: there is no such task, or metric of it; data that is not prepared, or not with the
            checkpoint's vocabulary; a checkpoint that cannot be read.
    """

    checkpoint: Path
    data: Path
    out: Path
    tasks: Sequence[str]
    seeds: Sequence[int]
    rates: Sequence[float] = ()
    batch_sizes: Sequence[int] = ()
    epochs: float | None = None
    train_rows: Sequence[int] = ()
    metric: str | None = None
    overrides: Sequence[str] = ()
    search: bool = False
    digest: str = field(init=False)
    model: ResolvedConfig = field(init=False)
    records: dict[str, Task] = field(init=False, default_factory=dict)
    _folders: dict[str, Path] = field(init=False, default_factory=dict)  # of the data, by task
    _trainings: dict[Path, Training] = field(init=False, default_factory=dict, repr=False)  # by folder

    def __post_init__(self) -> None:
        self.checkpoint, self.data, self.out = (path.absolute() for path in (self.checkpoint, self.data, self.out))
        check_data_path(self.data)
        for path in (self.checkpoint, self.out):
            check_path(path)
        self.checkpoint = checkpoint_file(self.checkpoint)
        for word in self.overrides:
            check_override(word)
        for name in self.tasks:
            folder = find_folder(self.data, name)
            task = read_task(folder)
            if self.metric is not None:
                allowed = f"one of {', '.join(task.metrics)}, which {task.name} has"
                check("metric", self.metric, self.metric in task.metrics, allowed)
            if self._folders.setdefault(task.name, folder) != folder:
                raise UserError(f"{folder} and {self._folders[task.name]} are both the task {task.name}")
            self.records[task.name] = task
            rows = self._rows_of(task.name)
            for count in self.train_rows:
                check("train_rows", count, 1 <= count <= rows, f"from 1 to {rows:,}, the rows of train in {folder}")
        self.model = read_model_config(self.checkpoint, [*self._folders.values()])
        self.digest = digest_file(self.checkpoint)
        if self.search:
            self.rates = self.rates or (NARROW_RATES if self._is_narrow else RATES)
            self.batch_sizes = self.batch_sizes or BATCH_SIZES

    def run(self, jobs: int = 1, launcher: Sequence[str] = ()) -> tuple[list[Result], list[Result]]:
        """Trains what is not yet complete, `jobs` runs at a time.

        Returns:
            The results of every seed, and those of settings that were tried and are not the best.

        Raises:
            UserError: an override does not fit; a folder holds a run with other settings, or of a checkpoint or data
                of other content; another process is at work in the folder, or in that of a run.
        """
        runs = [
            self._run(task, seed, setting, count)
            for seed in self.seeds
            for task, count in self._parts
            for setting in self._settings(task)
        ]
        missing = [run for run in runs if not self._training(run).is_complete()]
        for run in {run.task.name: run for run in missing}.values():
            self._check(run)
        self._take_folder()
        for run in runs:
            self._training(run).check_idle()
        self._warn_of_slow_rates(runs)
        self._warn_of_few_updates(runs)
        self._keep_baselines()
        train = partial(self._train, jobs=jobs, launcher=launcher)
        return self._tune(train) if self._several else (train(runs), [])

    def _warn_of_slow_rates(self, runs: Sequence[TaskRun]) -> None:
        highest = max(run.setting.rate for run in runs)
        if self._is_narrow and highest < min(NARROW_RATES):
            logger.warning(
                f"lr {highest:g} is for models of d = {NARROW} and more; one of d = {self.model.encoder_embed_dim} "
                "learns little with it: --learning-rates 5e-4 2e-3 tries larger ones"
            )

    def _warn_of_few_updates(self, runs: Sequence[TaskRun]) -> None:
        least = min(runs, key=lambda run: run.updates)
        if self.epochs is not None and least.train_rows is not None and least.updates < LEAST_UPDATES:
            logger.warning(
                f"--epochs {self.epochs:g} makes {least.updates:,} updates of {least.train_rows:,} rows, which are few"
                f": without it a run has at least {LEAST_UPDATES}"
            )

    def _tune(self, train: Callable[[list[TaskRun]], list[Result]]) -> tuple[list[Result], list[Result]]:
        """Tries every setting with the first seed, and trains the other seeds with the best one of each part."""
        first, *others = self.seeds
        of_part = {
            part: [self._run(part[0], first, one, part[1]) for one in self._settings(part[0])] for part in self._parts
        }
        tried = {result.run.folder: result for result in train(list(chain.from_iterable(of_part.values())))}
        best = {
            part: max(
                (tried[run.folder] for run in runs),
                key=lambda result: (not result.error, result.value),  # a failed one only where all failed
            )
            for part, runs in of_part.items()
        }
        rest = train(
            [self._run(task, seed, best[task, count].run.setting, count) for task, count in best for seed in others]
        )
        return [*best.values(), *rest], [result for result in tried.values() if result not in best.values()]

    def _take_folder(self) -> None:
        """Keeps other processes from writing results there as long as this one lives."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._lock = (self.out / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.out}: another process is fine-tuning there")

    def _keep_baselines(self) -> None:
        for name, folder in tqdm(self._folders.items(), desc="TF-IDF baseline", unit="task"):
            try:
                keep_baselines(self.out, folder, self.records[name], self.train_rows, self.seeds)
            except (UserError, OSError) as error:  # the runs may do without
                logger.warning(f"{name}: no baseline: {error}")

    @property
    def _is_narrow(self) -> bool:
        return self.model.encoder_embed_dim < NARROW

    @property
    def _several(self) -> bool:
        """Whether there is more than one setting to choose from."""
        return len(self.rates) > 1 or len(self.batch_sizes) > 1

    @property
    def _parts(self) -> list[tuple[str, int | None]]:
        """The tasks, and the numbers of rows of each: what has a best setting of its own."""
        return [(task, count) for task in self.records for count in (self.train_rows or (None,))]

    @property
    def scored_rows(self) -> dict[str, dict[str, int]]:
        """How many rows are scored, by task and split."""
        splits = {name: read_summary(folder).splits for name, folder in self._folders.items()}
        return {name: {one: splits[name][one].examples for one in task.scored} for name, task in self.records.items()}

    def _rows_of(self, task: str) -> int:
        return read_summary(self._folders[task]).splits["train"].examples

    def _settings(self, task: str) -> list[Setting]:
        recipe = read_recipe(recipe_name(task))
        rates = self.rates or recipe["optimization"]["lr"]
        batch_sizes = self.batch_sizes or [recipe["dataset"]["batch_size"]]
        return [Setting(rate, batch_size) for rate in rates for batch_size in batch_sizes]

    def _run(self, task: str, seed: int, setting: Setting, train_rows: int | None = None) -> TaskRun:
        """One run, which sees the training rows as often as the recipe has it, or `epochs` times."""
        recipe, epochs = read_recipe(recipe_name(task)), self._epochs(task)
        batch_size = setting.batch_size * self._batches_per_update(task)
        if epochs is None:
            updates = updates_of(recipe["optimization"]["max_update"] * recipe["dataset"]["batch_size"], batch_size)
        else:
            updates = updates_of_epochs(epochs, train_rows or self._rows_of(task), batch_size)
        folder = self.out / task / ("" if train_rows is None else f"rows{train_rows}")
        folder = folder / (str(setting) if self._several else "") / f"seed{seed}"
        if train_rows is not None and self.epochs is None:
            updates = max(updates, LEAST_UPDATES)
        return TaskRun(self.records[task], seed, setting, updates, folder, self.metric or SCORE, train_rows)

    def _batches_per_update(self, task: str) -> int:
        """Of all processes, and those whose gradients are summed."""
        summed = self._recipe(task)["optimization"]["update_freq"]
        allowed = "one number, at least 1, in brackets"
        check("optimization.update_freq", summed, len(summed) == 1 and summed[0] >= 1, allowed)
        return self._processes(task) * summed[0]

    def _processes(self, task: str) -> int:
        processes: int = self._recipe(task)["distributed_training"]["distributed_world_size"]
        check("distributed_training.distributed_world_size", processes, processes >= 1, "at least 1")
        return processes

    def _recipe(self, task: str) -> Mapping[str, Any]:
        """What the runs of a task are given."""
        return read_recipe(recipe_name(task), str(self._folders[task]), (ONE_PROCESS, *self.overrides))

    def _epochs(self, task: str) -> float | None:
        """How often the training rows are seen; None where the recipe has a number of updates, which is of all rows."""
        length = read_recipe(recipe_name(task))["optimization"]
        by_updates = length["max_update"] and not self.train_rows and is_whole(task, self._rows_of(task))
        return self.epochs or (None if by_updates else length["max_epoch"])

    def _training(self, run: TaskRun) -> Training:
        """How a run is trained: always the same object, which holds what the run's files were when it was asked."""
        if run.folder not in self._trainings:
            overrides = tuple(self._overrides(run))
            self._trainings[run.folder] = Training(FINE_TUNING, overrides, run.folder, run.updates)
        return self._trainings[run.folder]

    def _check(self, run: TaskRun) -> None:
        """Sets up the run's task, which refuses options that cannot work: before the baselines, which take longer."""
        setup_task(OmegaConf.create(compose_configuration(FINE_TUNING, self._training(run).settings)).task)

    def _overrides(self, run: TaskRun) -> Iterator[str]:
        """What a run changes of the recipe; a longer or shorter one than there has its share of warm-up."""
        task = run.task.name
        recipe = read_recipe(recipe_name(task))
        updates, warm_up = recipe["optimization"]["max_update"], recipe["lr_scheduler"]["warmup_updates"]
        yield f"recipe={recipe_name(task)}"
        yield override("task.data", self._folders[task])
        yield override("checkpoint.finetune_from_model", self.checkpoint)
        yield ONE_PROCESS
        yield f"common.seed={run.seed}"
        yield f"optimization.lr=[{run.setting.rate}]"
        yield f"dataset.batch_size={run.setting.batch_size}"
        yield f"lr_scheduler.warmup_updates={round(run.updates * (warm_up / updates if updates else WARM_UP))}"
        if self._epochs(task) is not None:
            yield "optimization.max_epoch=0"
        if run.train_rows is not None:
            yield f"task.train_rows={run.train_rows}"
            # An epoch of few rows takes seconds, all of the dev set much longer.
            per_epoch = updates_of(run.train_rows, run.setting.batch_size * self._batches_per_update(task))
            interval = max(1, run.updates // (per_epoch * VALIDATIONS))
            yield f"dataset.validate_interval={interval}"
            yield f"checkpoint.save_interval={interval}"
        if self.metric is not None:
            yield f"checkpoint.best_checkpoint_metric={self.metric}"
        yield from self.overrides

    def _train(self, runs: Sequence[TaskRun], jobs: int, launcher: Sequence[str]) -> list[Result]:
        calls: list[Callable[[], Result]] = [
            partial(train_and_score, run, self._training(run), self._folders[run.task.name], launcher) for run in runs
        ]
        gpus = max((self._processes(run.task.name) for run in runs), default=1)
        return [
            Result(run, error=str(result)) if isinstance(result, Exception) else result
            for run, result in zip(runs, side_by_side(calls, jobs, gpus), strict=True)
        ]


@cache
def read_recipe(name: str, data: str = "DATA", overrides: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """What Hydra composes of a recipe in configs/finetune/recipe, a folder of data and overrides."""
    return compose_configuration(FINE_TUNING, [f"recipe={name}", override("task.data", data), *overrides])


def find_folder(data: Path, name: str) -> Path:
    """The folder of a task in `data`: SST-2 for sst_2, sst-2 or sst2.

    Raises:
        FileNotFoundError: there is no folder `data`.
        UserError: it holds no such task, or several.
    """
    if not data.is_dir():
        raise FileNotFoundError(f"there is no folder {data}")
    if (data / SUMMARY_FILE).is_file():
        raise UserError(f"{data} is itself a prepared task: --data names the folder that it lies in")
    folders = sorted(folder for folder in data.iterdir() if folder.is_dir())
    alike = [folder for folder in folders if letters_of(folder.name) == letters_of(name)]
    found = [folder for folder in alike if folder.name == name] or alike
    if len(found) != 1:
        known = ", ".join(folder.name for folder in found or folders if (folder / SUMMARY_FILE).is_file())
        raise UserError(f"{data} holds {'several tasks' if found else 'no task'} {name}: it has {known or 'none'}")
    return found[0]


def read_task(folder: Path) -> Task:
    """The task of a prepared folder, which has the splits to train on and to score.

    Raises:
        FileNotFoundError, UserError: as ``read_summary``; or a split is missing.
    """
    summary = read_summary(folder)
    for split in ("train", *summary.task.scored):
        if split not in summary.splits:
            raise UserError(f"{folder} has no split {split}: it has {', '.join(summary.splits)}")
    return summary.task


def read_model_config(checkpoint: Path, prepared: Sequence[Path]) -> ResolvedConfig:
    """The configuration of a checkpoint's model, whose vocabulary must be that of all prepared folders."""
    state = read_checkpoint(checkpoint)
    carried = read_task_state(state.get("task_state"))["vocabulary"]
    vocabulary = carried or _vocabulary_of_its_data(checkpoint, state["cfg"])
    sizes = {
        len(tensor) for name, tensor in state["model"].items() if name.endswith("embed_tokens.weight") and tensor.dim()
    }
    for data in prepared:
        dictionary = load_dictionary(data / DICTIONARY_FILE)
        if sizes and sizes != {len(dictionary) + 1}:  # the task adds <mask>
            raise UserError(
                f"{checkpoint} has {max(sizes)} tokens, the vocabulary of {data} {len(dictionary) + 1}: prepare it "
                f"again with --tokenizer {checkpoint.parent}"
            )
        check_same_vocabulary(digest_vocabulary(dictionary, data), vocabulary, str(data), str(checkpoint))
    return LinformerRobertaModel.resolve(state["cfg"])


def _vocabulary_of_its_data(checkpoint: Path, cfg: Any) -> dict[str, str]:
    """The digests for a checkpoint that carries none; empty where its data is not here."""
    try:
        data = vocabulary_folder(checkpoint, cfg)
        return digest_vocabulary(load_dictionary(data / DICTIONARY_FILE), data)
    except FileNotFoundError:  # pretrained elsewhere: that the sizes agree is all that can be told
        return {}
