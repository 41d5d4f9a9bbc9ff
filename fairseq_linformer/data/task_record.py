"""Record of a task, for preparation, scoring, configuration, results and submission.

A prepared folder has it in task.json, with counts of its splits.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from ..errors import UserError, check, join_truncated

SUMMARY_FILE = "task.json"  # marks an incomplete folder of ours
RESERVED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # fairseq's own entries of every label dictionary

# The types of label, and the metrics of a task that names none (``finetune.metrics.METRICS``), the headline's first.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "single-label": (("accuracy", "macro_f1", "mcc"), ("accuracy",)),
    "multi-label": (("micro_f1", "macro_f1", "accuracy"), ("micro_f1",)),
    "regression": (("pearson", "spearman"), ("pearson", "spearman")),
    "token-label": (("accuracy", "macro_f1"), ("accuracy",)),
}
ENTITY_METRICS = (("entity_f1", "accuracy"), ("entity_f1",))  # of token labels that mark entities


@dataclass(frozen=True)
class SourceFile:
    """File of an official download: its name, all of its columns, its rows, and True if it has a header."""

    name: str
    columns: tuple[str, ...]
    rows: int
    header: bool = True


@dataclass(frozen=True)
class Source:
    """Files of a task by fairseq's names of splits, and their columns.

    `texts` are the columns of the text or the two texts, `label` the column of the label, in the files that have it.
    `skips_broken`: rows with another number of fields, known in the official file, are left out and counted.
    """

    files: Mapping[str, SourceFile]
    texts: tuple[str, ...]
    label: str
    skips_broken: bool = False


@dataclass(frozen=True)
class Task:
    """Task of fine-tuning.

    Attributes:
        name: name of the task and its folder; its recipe is ``configs/finetune/recipe/NAME.yaml`` in lower case.
        kind: the type of label, one of KINDS.
        classes: names by number; none for a regression.
        metrics: metrics of predictions, in the order of tables; names of ``finetune.metrics.METRICS``.
        headline: the metrics whose mean chooses checkpoints and settings.
        scale: the highest score; scores of a regression are written divided by it, and predictions multiplied by it.
        dev_sets: splits that are scored and choose, only the first one the checkpoint; and the suffix of the task's
            name for each in tables.
        test_sets: splits that are scored and choose nothing, in the same form.
        columns: columns of the text, or the two texts, in the tables that the data was prepared from.
        source: the official files, for ``linformer prepare glue``.
        leaderboard: the file of GLUE's submission for each test split.
        trained_as: the task whose model predicts this one, if it has no training set.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    headline: tuple[str, ...]
    scale: float = 1.0
    dev_sets: Mapping[str, str] = field(default_factory=lambda: {"valid": ""})
    test_sets: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    source: Source | None = None
    leaderboard: Mapping[str, str] = field(default_factory=dict)
    trained_as: str | None = None

    @property
    def scored(self) -> dict[str, str]:
        """All splits that are scored."""
        return {**self.dev_sets, **self.test_sets}

    def label(self, numbers: Sequence[float]) -> Any:
        """Return the label of a row for metrics: names of classes, or a score.

        `numbers` is the number of the class, a 0 or 1 for each class, the number of each word's class, or the score.
        """
        if self.kind == "regression":
            return numbers[0]
        if self.kind == "multi-label":
            return tuple(itertools.compress(self.classes, numbers))
        names = tuple(self.classes[int(number)] for number in numbers)
        return names if self.kind == "token-label" else names[0]

    def as_json(self) -> dict[str, Any]:
        """Return the entries for task.json: all but the official files and the files of a submission."""
        names = ("name", "kind", "classes", "metrics", "headline", "scale", "dev_sets", "test_sets", "columns")
        return {name: getattr(self, name) for name in names}


def own_task(name: str, label_type: str, classes: Sequence[str] = (), scale: float = 1.0) -> Task:
    """Return the record of a task that is not in TASKS, with the metrics of its type of label, or of entities."""
    metrics = ENTITY_METRICS if label_type == "token-label" and _are_entity_tags(classes) else KINDS[label_type]
    return Task(name, label_type, tuple(classes), *metrics, scale=scale)


def _are_entity_tags(classes: Sequence[str]) -> bool:
    """Return True for IOB2 tags: O, B-PER where a person begins, I-PER inside."""
    begins = any(name.startswith("B-") for name in classes)
    return begins and all(name == "O" or name.startswith(("B-", "I-")) for name in classes)


def letters_of(name: str) -> str:
    """Return the lower-case letters and digits of a task's name: sst2 of SST-2 and sst_2."""
    return name.lower().replace("-", "").replace("_", "")


def check_label(name: str, prefix: str = "") -> None:
    """Check the name of a class, which is written in lines and tables; an error begins with `prefix`."""
    if not name or name != name.strip() or not name.isprintable() or name in RESERVED:
        allowed = f"a name is printable, without space at its ends, and none of {', '.join(RESERVED)}"
        raise UserError(f"{prefix}label {name!r}: {allowed}")


def label_names(dictionary: Dictionary) -> tuple[str, ...]:
    """Return the classes of a label dictionary by number."""
    return tuple(dictionary.symbols[dictionary.nspecial :])


@dataclass
class SplitCounts:
    """Numbers of rows, tokens with <s>, </s> and separators, long rows and <unk> tokens of a split."""

    examples: int = 0
    tokens: int = 0
    long: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Summary:
    """Summary of a prepared folder: the task's record, counts by split, and the length from which rows are long.

    `by_class`, rows (or words of token labels) of each class by split, is not in task.json.
    """

    task: Task
    splits: Mapping[str, SplitCounts]
    long_length: int
    by_class: Mapping[str, Counter[str]] = field(default_factory=dict, compare=False)

    @property
    def unknown_shares(self) -> dict[str, float]:
        """Share of <unk> among the tokens of each split."""
        return {split: counts.unknown / counts.tokens for split, counts in self.splits.items()}

    def as_json(self) -> dict[str, Any]:
        splits = {split: asdict(counts) for split, counts in self.splits.items()}
        return {"task": self.task.as_json(), "splits": splits, "long_length": self.long_length}

    def lines(self, official_rows: Mapping[str, int] | None = None) -> Iterator[str]:
        """Yield the lines of the summary: classes, counts by split, and classes that a split lacks."""
        names = ", ".join(f"{number} = {name}" for number, name in enumerate(self.task.classes))
        yield f"{self.task.kind}: {names or 'scores'}"
        for split, counts in self.splits.items():
            official = f" (officially {official_rows[split]:,})" if official_rows else ""
            yield (
                f"{split}: {counts.examples:,} examples{official}, "
                f"{counts.tokens / counts.examples:.0f} tokens on average, "
                f"{100 * counts.long / counts.examples:.1f} % longer than {self.long_length}, "
                f"{counts.unknown / counts.tokens:.3%} unknown"
            )
        train = self.by_class.get("train", Counter[str]())
        if train:
            unit = "words" if self.task.kind == "token-label" else "rows"
            listed = join_truncated([f"{name} ({count:,})" for name, count in train.most_common()])
            yield f"{unit} of train by class: {listed}"
        for split, by_class in self.by_class.items():
            if missing := sorted(set(self.task.classes) - set(by_class), key=lambda name: (train[name], name)):
                yield f"warning: {len(missing):,} classes are not in {split}: {join_truncated(missing)}"


def read_summary(folder: Path) -> Summary:
    """Read the summary of a prepared folder.

    Raises:
        FileNotFoundError: it is not a prepared folder.
        UserError: its summary is damaged, or of a later version.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no prepared task: it holds no {SUMMARY_FILE}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        task = {name: tuple(value) if isinstance(value, list) else value for name, value in content["task"].items()}
        splits = {split: SplitCounts(**counts) for split, counts in content["splits"].items()}
        summary = Summary(Task(**task), splits, content["long_length"])  # type: ignore[arg-type]
        check("kind", summary.task.kind, summary.task.kind in KINDS, f"one of {', '.join(KINDS)}")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is damaged, or of a later version ({error})") from error
    return summary


def has_pairs(folder: Path) -> bool:
    """Return True if the rows of a prepared folder are two texts."""
    return (folder / "input1").is_dir()
