"""One run of fine-tuning: its training, its saved predictions, and the scores computed from these."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from ..checkpoints.reading import checkpoint_file, read_checkpoint
from ..checkpoints.resuming import updates_of_training
from ..data.task_record import SUMMARY_FILE, Task
from ..errors import UserError
from ..system.digests import digest_file
from ..system.files import write_whole
from ..system.state import read_state
from ..training.jobs import job_device
from ..training.launch import Training
from ..training.provenance import Provenance
from .metrics import CORRELATIONS, METRICS, SCORE, score, value_of
from .prediction import Predictor

SCORES_FILE = "scores.json"  # in a run's folder: its metrics, and what made them
PREDICTIONS = "predictions-{}.tsv"  # likewise, of a split


class _Scores(TypedDict):
    """What a run's folder keeps of its metrics."""

    made_by: dict[str, str | None]
    predictions: dict[str, str]
    scores: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Setting:
    """What may differ between the runs of a task, beside the seed."""

    rate: float
    batch_size: int

    def __str__(self) -> str:
        return f"lr{self.rate}-batch{self.batch_size}"


@dataclass(frozen=True)
class TaskRun:
    """One training, where it lies, and the metric that chooses its checkpoint (``metrics.value_of``).

    `train_rows`: of train, those that it sees, where these are not all.
    """

    task: Task
    seed: int
    setting: Setting
    updates: int
    folder: Path
    metric: str = SCORE
    train_rows: int | None = None

    def __str__(self) -> str:
        rows = "" if self.train_rows is None else f"{self.train_rows:,} rows, "
        return f"{self.task.name}, {rows}{self.setting}, seed {self.seed}"


@dataclass
class Result:
    """A run's metrics by split, ``{"valid": {"accuracy": 93.2}}``; `error` instead where there are none.

    `made` says what the run is made of, where its folder does, and `rows` how many rows its data has by split.
    """

    run: TaskRun
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""
    made: Provenance | None = None
    rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """By which settings and runs are chosen; minus infinity where there are no scores."""
        return value_of(self.run.metric, self.run.task, self.scores)


def write_scores(folder: Path, made: Provenance, scores: Mapping[str, Mapping[str, float]]) -> None:
    """Keeps the scores of a run in its folder, with what made them and the predictions that they were computed from."""
    content = {"made_by": made.digests(), "predictions": _predictions(folder, scores), "scores": scores}
    write_whole(folder / SCORES_FILE, json.dumps(content, indent=1) + "\n")


def read_scores(folder: Path, made: Provenance, task: Task) -> dict[str, dict[str, float]] | None:
    """The scores in a run's folder; None where there are none of that run, or its predictions are not those scored."""
    try:
        content = read_state(folder / SCORES_FILE, _Scores)
        digests = _predictions(folder, content["scores"])
    except (OSError, ValueError):  # none, or damaged: they are computed again
        return None
    whole = content["scores"].keys() == task.scored.keys()
    named = all(metrics.keys() == {*task.metrics} for metrics in content["scores"].values())
    valid = content["made_by"] == made.digests() and digests == content["predictions"]
    return content["scores"] if whole and named and valid else None


def _predictions(folder: Path, splits: Iterable[str]) -> dict[str, str]:
    """The digests of the files that the scores of these splits are computed from."""
    return {file.name: digest_file(file) for file in (folder / PREDICTIONS.format(split) for split in splits)}


def train_and_score(run: TaskRun, training: Training, data: Path, launcher: Sequence[str] = ()) -> Result:
    """Trains a run to its end, predicts what is scored of `data` with its best checkpoint, and scores what was saved.

    Raises:
        OSError: the training failed.
        UserError: the metrics are not those that fairseq logged.
    """
    if not training.is_complete():
        (run.folder / SCORES_FILE).unlink(missing_ok=True)  # of a training that is not there any more
    run.folder.mkdir(parents=True, exist_ok=True)
    write_whole(run.folder / SUMMARY_FILE, (data / SUMMARY_FILE).read_text(encoding="utf-8"))
    log = training.run(launcher)
    scores = read_scores(run.folder, training.provenance, run.task)
    if scores is not None:
        return Result(run, scores, made=training.provenance)
    checkpoint = checkpoint_file(run.folder)
    state = read_checkpoint(checkpoint)
    predictor = Predictor(checkpoint, data, "cpu" if state["cfg"].common.cpu else job_device())
    result = Result(run, _predict_and_score(run, predictor), made=training.provenance)
    if not (state["cfg"].common.fp16 or state["cfg"].common.bf16):  # in which fairseq validates, and this does not
        check_log(result, log, updates_of_training(state))
    write_scores(run.folder, training.provenance, result.scores)
    return result


def _predict_and_score(run: TaskRun, predictor: Predictor) -> dict[str, dict[str, float]]:
    scores = {}
    for split in run.task.scored:
        file = run.folder / PREDICTIONS.format(split)
        write_predictions(predictor, split, file)
        scores[split] = score(run.task, *read_predictions(run.task, file))
    return scores


def write_predictions(predictor: Predictor, split: str, file: Path) -> None:
    """A line per row of the split: its label, the prediction, and the probability of each class.

    Several classes, and the tags of words, are JSON lists; of words there are no probabilities.
    """
    predictions, targets = predictor.split(split)
    table = io.StringIO()
    writer = csv.writer(table, delimiter="\t", lineterminator="\n")
    writer.writerow(["label", "prediction", *(predictions[0].probabilities if predictions else ())])
    for prediction, target in zip(predictions, targets or (), strict=True):
        writer.writerow([_cell(target), _cell(prediction.label), *prediction.probabilities.values()])
    write_whole(file, table.getvalue())


def _cell(label: str | Sequence[str]) -> str:
    return label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)


def read_predictions(task: Task, file: Path) -> tuple[list, list]:
    """The labels and the predictions of a file, as the task's metrics take them."""
    csv.field_size_limit(sys.maxsize)  # the tags of a long row stand in one cell
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t"))[1:]
    parse: Callable[[str], Any] = {"single-label": str, "regression": float}.get(
        task.kind, lambda cell: tuple(json.loads(cell))
    )
    # By position: a class, whose probabilities stand behind them, may be called "label" or "prediction".
    return [parse(row[0]) for row in rows], [parse(row[1]) for row in rows]


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
            allowed = 0.1 if METRICS[name].of_scores else 0.0501
            none = name in CORRELATIONS and value == 0.0  # of predictions that are all alike
            if logged and not none and abs(logged[-1] - value) > allowed:
                raise UserError(
                    f"{result.run.folder}: {split} {name} is {value:.2f} by the saved predictions, but fairseq logged "
                    f"{logged[-1]} after {update} updates"
                )
