"""Fine-tuning over tasks and seeds: one run after another, or side by side.

Every run is fairseq-hydra-train with a YAML of configs/finetune. When it is complete, its best checkpoint predicts the
dev set; the predictions are saved, and the metrics are computed from that file.

::

    OUT/TASK/seed1/{checkpoint_best.pt,train.log,...}            as fairseq writes them
    OUT/TASK/seed1/run.json                                      what the run is made of, by content
    OUT/TASK/seed1/predictions-valid.tsv                         label, prediction, probability of each class
    OUT/TASK/seed1/scores.json                                   their metrics, once they are found to be fairseq's
    OUT/TASK/lr0.0003-batch32/seed1/...                          one folder a setting, where several are tried
    OUT/results.json, OUT/results.md                             every run, and the table
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ..checkpoint import checkpoint_file, data_folder, read_checkpoint
from ..config import ResolvedConfig
from ..data.tasks import read_summary
from ..data.tokenizer import DICTIONARY_FILE, load_dictionary
from ..errors import UserError
from ..model import LinformerRobertaModel
from ..system.files import (
    LOCK_FILE,
    check_data_path,
    check_path,
    lock,
    write_whole,
)
from ..training.launch import (
    CONFIGS,
    Training,
    config_name,
    job_device,
    override,
    side_by_side,
)
from ..training.provenance import digest_file
from ..training.vocabulary import carried_fingerprint, check_same_vocabulary, fingerprint
from .metrics import TASK_METRICS, score
from .overrides import check_override
from .prediction import Predictor
from .results import (
    PREDICTIONS,
    SCORES_FILE,
    Result,
    Run,
    Setting,
    mean_score,
    read_scores,
    write_scores,
)

RATES = (1e-5, 2e-5, 3e-5)  # RoBERTa's grid (Liu et al. 2019, table 10)
BATCH_SIZES = (16, 32)


@dataclass
class FineTuning:
    """What a checkpoint reaches on tasks, over seeds.

    Attributes:
        checkpoint: a pretrained model, or the folder of its run, whose checkpoint_best.pt is meant.
        data: folder with a prepared folder a task, named as the task.
        out: folder of the runs and the results.
        tasks: names, see ``scores.TASK_METRICS``.
        seeds: each a run of every task.
        rates, batch_sizes: by default those of the task's YAML. Where there are several, the first seed tries each pair
            of them, and the other seeds train with the best.
        epochs: how often the training rows are seen; by default as the YAML says. Its updates and warm-up are scaled.
        overrides: Hydra's, for every run.
        digest: of the checkpoint's file, as it was at the start.
        model: the configuration of the checkpoint's model.

    Raises:
        ValueError, FileNotFoundError: an unknown task, data that is not prepared or not with the checkpoint's
            vocabulary, a checkpoint that cannot be read.
    """

    checkpoint: Path
    data: Path
    out: Path
    tasks: Sequence[str]
    seeds: Sequence[int]
    rates: Sequence[float] = ()
    batch_sizes: Sequence[int] = ()
    epochs: float | None = None
    overrides: Sequence[str] = ()
    digest: str = field(init=False)
    model: ResolvedConfig = field(init=False)
    _trainings: dict[Run, Training] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.checkpoint, self.data, self.out = (path.absolute() for path in (self.checkpoint, self.data, self.out))
        check_data_path(self.data)
        for path in (self.checkpoint, self.out):
            check_path(path)
        self.checkpoint = checkpoint_file(self.checkpoint)
        self.tasks = list(dict.fromkeys(map(official_name, self.tasks)))
        for word in self.overrides:
            check_override(word)
        for task in self.tasks:
            read_summary(self.data / task)  # says so where it is not prepared
        self.model = read_model(self.checkpoint, [self.data / task for task in self.tasks])
        self.digest = digest_file(self.checkpoint)

    def run(self, jobs: int = 1, launcher: Sequence[str] = ()) -> tuple[list[Result], list[Result]]:
        """Trains what is not yet complete, `jobs` runs at a time.

        Returns:
            The results of every seed, and those of settings that were tried and are not the best.

        Raises:
            ValueError: an override does not fit; a folder holds a run with other settings, or of a checkpoint or data
                of other content; another process is at work in the folder.
        """
        for task, seed in itertools.product(self.tasks, self.seeds):
            for setting in self._settings(task):
                self._training(self._run(task, seed, setting)).check()
        self._take_folder()
        execute = partial(self._execute, jobs=jobs, launcher=launcher)
        first, *others = self.seeds
        if not self._several():
            runs = [self._run(task, seed, self._settings(task)[0]) for seed in self.seeds for task in self.tasks]
            return execute(runs), []
        grid = execute([self._run(task, first, setting) for task in self.tasks for setting in self._settings(task)])
        chosen = {task: _best([result for result in grid if result.run.task == task]) for task in self.tasks}
        rest = execute([self._run(task, seed, chosen[task].run.setting) for task in self.tasks for seed in others])
        return [*chosen.values(), *rest], [result for result in grid if result not in chosen.values()]

    def _take_folder(self) -> None:
        """Keeps other processes from writing results there as long as this one lives."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._lock = (self.out / LOCK_FILE).open("a", encoding="utf-8")
        lock(self._lock, f"{self.out}: another process is fine-tuning there")

    def _several(self) -> bool:
        """Whether there is more than one setting to choose from."""
        return len(self.rates) > 1 or len(self.batch_sizes) > 1

    def _settings(self, task: str) -> list[Setting]:
        recipe = read_recipe(task)
        rates, batch_sizes = self.rates or recipe.optimization.lr, self.batch_sizes or [recipe.dataset.batch_size]
        return [Setting(rate, batch_size) for rate in rates for batch_size in batch_sizes]

    def _run(self, task: str, seed: int, setting: Setting) -> Run:
        """One run, which sees the training rows as often as the recipe has it, or `epochs` times."""
        recipe = read_recipe(task)
        length = recipe.optimization.max_update * recipe.dataset.batch_size / setting.batch_size
        if self.epochs is not None:
            rows = read_summary(self.data / task).splits["train"].examples
            length = self.epochs * rows / setting.batch_size
        folder = self.out / task / (str(setting) if self._several() else "") / f"seed{seed}"
        return Run(task, seed, setting, max(1, math.ceil(length)), folder)

    def _training(self, run: Run) -> Training:
        """How a run is trained: always the same object, which holds what the run's files were when it was asked."""
        if run not in self._trainings:
            overrides = tuple(self._overrides(run))
            self._trainings[run] = Training(f"finetune/{config_name(run.task)}", overrides, run.folder, run.updates)
        return self._trainings[run]

    def _overrides(self, run: Run) -> Iterator[str]:
        """What a run changes of the task's YAML; a longer or shorter one than there has its share of warm-up."""
        recipe = read_recipe(run.task)
        warm_up = recipe.lr_scheduler.warmup_updates / recipe.optimization.max_update
        yield override("task.data", self.data / run.task)
        yield override("checkpoint.finetune_from_model", self.checkpoint)
        # Otherwise every GPU in sight, and batches of that many.
        yield "distributed_training.distributed_world_size=1"
        yield f"common.seed={run.seed}"
        yield f"optimization.lr=[{run.setting.rate}]"
        yield f"dataset.batch_size={run.setting.batch_size}"
        yield f"lr_scheduler.warmup_updates={round(run.updates * warm_up)}"
        if self.epochs is not None:
            yield "optimization.max_epoch=0"
        yield from self.overrides

    def _execute(self, runs: Sequence[Run], jobs: int, launcher: Sequence[str]) -> list[Result]:
        calls: list[Callable[[], Result]] = [
            partial(train_and_score, run, self._training(run), self.data / run.task, launcher) for run in runs
        ]
        return [
            Result(run, error=str(result)) if isinstance(result, Exception) else result
            for run, result in zip(runs, side_by_side(calls, jobs), strict=True)
        ]


@cache
def read_recipe(task: str) -> Any:
    """The YAML of a task: what every fine-tuning shares, with the task's own over it."""
    files = ("shared.yaml", f"data/{config_name(task)}.yaml")
    return OmegaConf.merge(*(OmegaConf.load(CONFIGS / "finetune" / file) for file in files))


def official_name(task: str) -> str:
    """SST-2 for sst_2, sst-2 or sst2; ValueError where there is no such task."""

    def letters(name: str) -> str:
        return name.lower().replace("-", "").replace("_", "")

    known = {letters(name): name for name in TASK_METRICS}
    if letters(task) not in known:
        raise UserError(f"task {task} is unknown, known are: {', '.join(map(config_name, TASK_METRICS))}")
    return known[letters(task)]


def read_model(checkpoint: Path, prepared: Sequence[Path]) -> ResolvedConfig:
    """The configuration of a checkpoint's model, whose vocabulary must be that of all prepared folders."""
    state = read_checkpoint(checkpoint)
    vocabulary = carried_fingerprint(state.get("task_state")) or _vocabulary_of_its_data(checkpoint, state["cfg"])
    sizes = {
        len(tensor) for name, tensor in state["model"].items() if name.endswith("embed_tokens.weight") and tensor.dim()
    }
    for data in prepared:
        dictionary = load_dictionary(data / DICTIONARY_FILE)
        if sizes and sizes != {len(dictionary) + 1}:  # the task adds <mask>
            raise UserError(f"{checkpoint} has {max(sizes)} tokens, the vocabulary of {data} {len(dictionary) + 1}")
        check_same_vocabulary(fingerprint(dictionary, data), vocabulary, str(data), str(checkpoint))
    return LinformerRobertaModel.resolve(state["cfg"])


def _vocabulary_of_its_data(checkpoint: Path, cfg: Any) -> dict[str, str]:
    """The fingerprint for a checkpoint that carries none; empty where its data is not here."""
    try:
        data = data_folder(checkpoint, cfg)
        return fingerprint(load_dictionary(data / DICTIONARY_FILE), data)
    except FileNotFoundError:  # pretrained elsewhere: that the sizes agree is all that can be told
        return {}


def train_and_score(run: Run, training: Training, data: Path, launcher: Sequence[str] = ()) -> Result:
    """Trains a run to its end, predicts the dev sets of `data` with its best checkpoint, and scores what was saved.

    Raises:
        OSError: the training failed.
        ValueError: the metrics are not those that fairseq logged.
    """
    if not training.is_complete():
        (run.folder / SCORES_FILE).unlink(missing_ok=True)  # of a training that is not there any more
    log = training.run(launcher)
    scores = read_scores(run.folder, training.provenance)
    if scores is not None:
        return Result(run, scores, made=training.provenance)
    checkpoint = checkpoint_file(run.folder)
    result = Result(run, _predict_and_score(run, checkpoint, data), made=training.provenance)
    state = read_checkpoint(checkpoint)
    if not (state["cfg"].common.fp16 or state["cfg"].common.bf16):  # in which fairseq validates, and this does not
        check_log(result, log, int(state["optimizer_history"][-1]["num_updates"]))
    write_scores(run.folder, training.provenance, result.scores)
    return result


def _predict_and_score(run: Run, checkpoint: Path, data: Path) -> dict[str, dict[str, float]]:
    splits = read_recipe(run.task).dataset.get("valid_subset", "valid").split(",")
    predictor = Predictor(checkpoint, data, job_device())
    scores = {}
    for split in splits:
        file = run.folder / PREDICTIONS.format(split)
        write_predictions(predictor, split, file)
        scores[split] = score(run.task, *read_predictions(run.task, file))
    return scores


def write_predictions(predictor: Predictor, split: str, file: Path) -> None:
    """A line a row of the split: its label, the prediction, and the probability of each class."""
    predictions, targets = predictor.split(split)
    table = io.StringIO()
    writer = csv.writer(table, delimiter="\t", lineterminator="\n")
    writer.writerow(["label", "prediction", *predictor.labels])
    for prediction, target in zip(predictions, targets or (), strict=True):
        writer.writerow([target, prediction.label, *prediction.probabilities.values()])
    write_whole(file, table.getvalue())


def read_predictions(task: str, file: Path) -> tuple[list, list]:
    """The labels and the predictions of a file: class names, or numbers for a regression."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t"))
    kind = float if "pearson" in TASK_METRICS[task] else str
    return [kind(row["label"]) for row in rows], [kind(row["prediction"]) for row in rows]


def check_log(result: Result, log: Sequence[Mapping[str, Any]], update: int) -> None:
    """ValueError where a metric is not what fairseq logged after that update, to its rounding of one digit.

    Ranks of nearly equal predictions, as of a weak model, may differ between batches: correlations have more room.
    """
    for split, scores in result.scores.items():
        for name, value in scores.items():
            logged = [
                row[f"{split}_{name}"]
                for row in log
                if row.get(f"{split}_num_updates") == update and f"{split}_{name}" in row
            ]
            allowed = 0.1 if name in ("pearson", "spearman") else 0.0501
            if logged and value != 0.0 and abs(logged[-1] - value) > allowed:  # 0: a correlation that there is none
                raise UserError(
                    f"{result.run.folder}: {split} {name} is {value:.2f} by the saved predictions, but fairseq logged "
                    f"{logged[-1]} after {update} updates"
                )


def _best(results: Sequence[Result]) -> Result:
    """The result with the highest mean; a failed one only where all failed."""
    return max(results, key=lambda result: (not result.error, mean_score(result.scores)))
