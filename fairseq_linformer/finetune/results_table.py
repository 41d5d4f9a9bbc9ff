"""The table that papers print: each task, metric and number of training rows, beside what needs no neural network."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ..data.task_record import Task
from ..model.config import ResolvedConfig
from ..system.markdown import cell
from .kept_baselines import Scores, read_baselines
from .metrics import CORRELATIONS, METRICS
from .paper import paper_score
from .scored_runs import PREDICTIONS, Result, read_predictions

BASELINE = "TF-IDF + linear SVM"  # what the tables and the picture call it
AT_CHANCE = (
    "† At chance: no more than two standard errors above the majority class (the commonest label of the rows "
    "trained on, or the mean of their scores, for every row), or above the best F1 of guesses."
)
WNLI = (
    "WNLI's dev set is adversarial: its sentences stand in train with the other answer, so that what has learned words "
    "is wrong there, TF-IDF first of all: it may be far below the majority class."
)


class TableRow(TypedDict):
    """A row of the table, of ``summarise``."""

    task: str
    split: str
    title: str
    metric: str
    mean: float | None
    deviation: float | None
    median: float | None
    values: list[float]
    rows: list[int]
    settings: list[str]
    majority: float | None
    baseline: float | None
    baseline_deviation: float | None
    paper: str
    at_chance: bool


def summarise(results: Sequence[Result], config: ResolvedConfig, out: Path) -> list[dict[str, Any]]:
    """A row of the table for each task, split that is scored, metric, and number of training rows."""
    rows = []
    for task in {result.run.task.name: result.run.task for result in results}.values():
        of_task = [result for result in results if result.run.task.name == task.name]
        counts = sorted({result.run.train_rows for result in of_task}, key=in_order)
        parts = [[result for result in of_task if result.run.train_rows == count] for count in counts]
        beside = [read_baselines(out, part) for part in parts]
        for split, title in task.scored.items():
            for name in task.metrics:
                for part, found in zip(parts, beside, strict=True):
                    own = part[0].run.task  # prepared again since, it may have had other splits with labels
                    if split in own.scored and name in own.metrics:
                        row = _summarise(part, split, name, config, found)
                        rows.append({"task": task.name, "split": split, "title": title, **row})
    return rows


def _summarise(
    part: Sequence[Result], split: str, metric: str, config: ResolvedConfig, beside: Sequence[tuple[Scores, Scores]]
) -> dict[str, Any]:
    """What the runs of one task on so many rows say of a metric, and `beside` the baselines of the same rows."""
    run = part[0].run
    values = [result.scores[split][metric] for result in part if not result.error]
    baseline = _spread([one[split][metric] for one, _ in beside if metric in one.get(split, {})])
    classes = [one[split] for _, one in beside if metric in one.get(split, {})]
    asked = {} if run.train_rows is None else {"train": run.train_rows}
    counts = next((result.rows for result in part if result.rows), asked)
    rows = [counts[name] for name in ("train", split) if name in counts]
    known = bool(values and classes) and len(rows) == 2
    targets = _targets(part, split) if known else []
    guessed = statistics.mean(guess(run.task, metric, one, targets) for one in classes) if known else 0.0
    of_words = run.task.kind == "token-label" and not METRICS[metric].of_rows
    scored = sum(map(len, targets)) if of_words else rows[-1] if rows else 0
    return {
        "metric": METRICS[metric].title,
        **_spread(values),
        "median": statistics.median(values) if values else None,
        "values": values,
        "rows": rows,
        "settings": sorted({str(result.run.setting) for result in part}),
        "majority": statistics.mean(one[metric] for one in classes) if classes else None,
        "baseline": baseline["mean"],
        "baseline_deviation": baseline["deviation"],
        "paper": paper_score(run.task.name, metric, config, counts.get("train", 0)),
        "at_chance": known and is_at_chance(metric, statistics.mean(values), guessed, scored),
    }


def _targets(part: Sequence[Result], split: str) -> list:
    """The labels of the rows of a split, where more is asked of them than their number."""
    run = next(result.run for result in part if not result.error)
    if run.task.kind not in ("multi-label", "token-label"):
        return []
    return read_predictions(run.task, run.folder / PREDICTIONS.format(split))[0]


def guess(task: Task, metric: str, majority: Mapping[str, float], targets: Sequence[Any] = ()) -> float:
    """The most that guesses reach without a look at the texts, given what the majority class does, times 100.

    With the shares p_c of the classes and q_c of the guesses, the F1 of a class is 2 p_c q_c / (p_c + q_c). So that of
    one class is highest where all guesses are it, and the mean over C classes at most 1/C, of guesses by frequency.
    Of a multi-label task each class may be guessed of every row, and is for the best macro F1, while the best micro F1
    is of the j commonest classes for some j: 2 (p_1 + … + p_j) / (j + p_1 + … + p_C), as the `targets` have them.
    """
    if task.kind == "multi-label" and metric in ("macro_f1", "micro_f1"):
        counts = Counter(itertools.chain(*targets))
        shares = [count / len(targets) for _, count in counts.most_common()]
        each = [2 * share / (1 + share) for share in shares]
        sums = enumerate(itertools.accumulate(shares), start=1)
        together = [2 * found / (j + sum(shares)) for j, found in sums]
        return 100 * (statistics.mean(each) if metric == "macro_f1" else max(together)) if shares else 0.0
    if metric == "f1":
        positive = majority["accuracy"] if majority["f1"] else 100 - majority["accuracy"]
        return 200 * positive / (positive + 100)
    if metric == "macro_f1":
        return 100 / len(task.classes)
    return majority[metric]


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean = statistics.mean(values) if values else None
    return {"mean": mean, "deviation": statistics.stdev(values) if len(values) > 1 else None}


def in_order(count: int | None) -> float:
    """By which numbers of training rows are sorted: all of them, None, stand last."""
    return math.inf if count is None else count


def as_table(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The rows of each model in Markdown, and below them what their marks mean."""
    rows = [(name, row) for name, of_model in tables.items() for row in of_model]
    several = len(tables) > 1
    if several:  # the models side by side; a sort keeps what is equal in order
        places = [(row["task"], row["split"], row["metric"]) for _, row in rows]
        rows.sort(key=lambda one: places.index((one[1]["task"], one[1]["split"], one[1]["metric"])))
    columns = [*["model"] * several, "task", "metric", "mean ± deviation", "median", "runs", "rows, train / scored"]
    columns += ["setting", "majority class", BASELINE, "paper, table 2"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for model, row in rows:
        cells = ["failed", "", "0"]
        if row["values"]:
            mark = " †" if row["at_chance"] else ""
            mean = f"{_with_spread(row['mean'], row['deviation'])}{mark}"
            cells = [mean, f"{row['median']:.1f}", str(len(row["values"]))]
        name = f"{row['task']} ({cell(row['title'])})" if row["title"] else row["task"]
        cells += [" / ".join(f"{count:,}" for count in row["rows"]), ", ".join(row["settings"])]
        cells += [_with_spread(row["majority"], None), _with_spread(row["baseline"], row["baseline_deviation"])]
        cells = [*[cell(model)] * several, name, row["metric"], *cells, row["paper"]]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [AT_CHANCE] * any(row["at_chance"] for _, row in rows)
    notes += [WNLI] * any(row["task"] == "WNLI" for _, row in rows)
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def _with_spread(mean: float | None, deviation: float | None) -> str:
    spread = "" if deviation is None else f" ± {deviation:.1f}"
    return "" if mean is None else f"{mean:.1f}{spread}"


def is_at_chance(metric: str, value: float, guessed: float, rows: int) -> bool:
    """Whether a value is no more than two standard errors above that of guesses, on so many rows (or labelled words).

    The error is that of a share of rows, √(p (1 - p) / rows), or of the correlation of what is independent, 1 / √rows.
    """
    share = guessed / 100
    variance = 1.0 if metric in CORRELATIONS else share * (1 - share)
    return value <= guessed + 200 * math.sqrt(variance / rows)
