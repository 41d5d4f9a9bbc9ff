"""The record of a task, which preparation, scoring, configuration, results and submission all read."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from fairseq.data import Dictionary

from ..errors import UserError, check

RESERVED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # fairseq's own entries of every label dictionary

# What a label is, and the metrics of a task that names none (``finetune.metrics.METRICS``), the headline's first.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "single-label": (("accuracy", "macro_f1", "mcc"), ("accuracy",)),
    "multi-label": (("micro_f1", "macro_f1", "accuracy"), ("micro_f1",)),
    "regression": (("pearson", "spearman"), ("pearson", "spearman")),
    "token-label": (("accuracy", "macro_f1"), ("accuracy",)),
}
ENTITY_METRICS = (("entity_f1", "accuracy"), ("entity_f1",))  # of token labels that mark entities


@dataclass(frozen=True)
class SourceFile:
    """A file of an official download: its name, all of its columns, its rows, and whether it names its columns."""

    name: str
    columns: tuple[str, ...]
    rows: int
    header: bool = True


@dataclass(frozen=True)
class Source:
    """The files of a task by fairseq's names of splits, and what stands in them.

    `texts` are the columns of the text or the two texts, `label` the column of the label, in the files that have it.
    `skips_broken`: rows with another number of fields are left out and counted, where the official file is known to
    have some.
    """

    files: Mapping[str, SourceFile]
    texts: tuple[str, ...]
    label: str
    skips_broken: bool = False


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: of the task and its folder; its recipe is ``configs/finetune/recipe/NAME.yaml`` in small letters.
        kind: one of KINDS.
        classes: names by number; none for a regression.
        metrics: what is computed of predictions, in the order of tables; names of ``finetune.metrics.METRICS``.
        headline: those whose mean chooses checkpoints and settings.
        scale: scores of a regression are written divided by it, and predictions multiplied back: the highest score.
        dev_sets: splits that are scored and choose, the first alone the checkpoint; and what tables call each beside
            the task's name.
        test_sets: splits that are scored and choose nothing, in the same way.
        columns: of the text, or the two texts, in the tables that the data was prepared from.
        source: the official files, for ``linformer prepare glue``.
        leaderboard: the file of GLUE's submission for each test split.
        trained_as: the task whose model predicts this one, where it has no training set.
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
        """The label of a row, as metrics take it, by its numbers.

        A class by its number, several by a 0 or 1 for each class, those of words by their numbers; a score is itself.
        """
        if self.kind == "regression":
            return numbers[0]
        if self.kind == "multi-label":
            return tuple(itertools.compress(self.classes, numbers))
        names = tuple(self.classes[int(number)] for number in numbers)
        return names if self.kind == "token-label" else names[0]

    def as_json(self) -> dict[str, Any]:
        """What a prepared folder keeps of it: all but what its official files and submission are."""
        return {name: getattr(self, name) for name in TaskJson.__annotations__}


def own_task(name: str, kind: str, classes: Sequence[str] = (), scale: float = 1.0) -> Task:
    """The record of a task that is none of TASKS, with the metrics of its kind; entities are scored as entities.

    Raises:
        UserError: there is no such kind.
    """
    check("kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}")
    metrics = ENTITY_METRICS if kind == "token-label" and _are_entity_tags(classes) else KINDS[kind]
    return Task(name, kind, tuple(classes), *metrics, scale=scale)


def _are_entity_tags(classes: Sequence[str]) -> bool:
    """Whether the classes are IOB2 tags: O, B-PER where a person begins, I-PER inside."""
    begins = any(name.startswith("B-") for name in classes)
    return begins and all(name == "O" or name.startswith(("B-", "I-")) for name in classes)


def letters_of(name: str) -> str:
    """What is the same in every spelling of a task's name: sst2 of SST-2 and sst_2."""
    return name.lower().replace("-", "").replace("_", "")


class _Later(TypedDict, total=False):
    columns: list[str]  # which earlier versions did not write


class TaskJson(_Later):
    """What a summary's file keeps of a Task."""

    name: str
    kind: str
    classes: list[str]
    metrics: list[str]
    headline: list[str]
    scale: float
    dev_sets: dict[str, str]
    test_sets: dict[str, str]


def check_label(name: str, where: str = "") -> None:
    """Refuses a class whose name would break a line, a table or a terminal, or is one of fairseq's own.

    Raises:
        UserError: it has other than printable characters, space at its ends, or none at all. The message begins with
            `where`.
    """
    if not name or name != name.strip() or not name.isprintable() or name in RESERVED:
        allowed = f"a name is printable, without space at its ends, and none of {', '.join(RESERVED)}"
        raise UserError(f"{where}label {name!r}: {allowed}")


def label_names(dictionary: Dictionary) -> tuple[str, ...]:
    """The classes of a label dictionary, by number."""
    return tuple(dictionary.symbols[dictionary.nspecial :])
