"""What a prepared folder of a task holds, and its file, task.json."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from ..errors import MOST_NAMED, UserError, join_truncated
from ..system.files import A_NAME, is_name
from ..system.state import read_state
from .dictionaries import Unknown
from .task_record import KINDS, Task, TaskJson

SUMMARY_FILE = "task.json"  # until it is whole, the mark of a folder of ours


@dataclass
class SplitCounts:
    """Rows of a split, their tokens as the model sees them (with <s>, </s> and separators), and how many are long.

    `unknown`: tokens that are <unk>.
    """

    examples: int = 0
    tokens: int = 0
    long: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Summary:
    """What a prepared folder holds: the task's record, counts by split, and the length called long.

    Not kept in the folder: `unknown`, what the vocabulary lacks; and `by_class`, by split with labels how many rows, or
    words of a token-label task, each class has.
    """

    task: Task
    splits: Mapping[str, SplitCounts]
    long_length: int
    unknown: Unknown = field(default_factory=Unknown, compare=False)
    by_class: Mapping[str, Counter[str]] = field(default_factory=dict, compare=False)

    def as_json(self) -> dict[str, Any]:
        splits = {split: asdict(counts) for split, counts in self.splits.items()}
        return {"task": self.task.as_json(), "splits": splits, "long_length": self.long_length}

    def lines(self) -> Iterator[str]:
        """The summary for people, a line at a time."""
        names = ", ".join(f"{number} = {name}" for number, name in enumerate(self.task.classes))
        yield f"{self.task.kind}: {names or 'scores'}"
        for split, counts in self.splits.items():
            yield (
                f"{split}: {counts.examples:,} examples, {counts.tokens / counts.examples:.0f} tokens on average, "
                f"{100 * counts.long / counts.examples:.1f} % longer than {self.long_length}, "
                f"{counts.unknown / counts.tokens:.3%} unknown"
            )
        yield from self._class_lines()

    def _class_lines(self) -> Iterator[str]:
        """How often each class stands in train, the commonest first, and which are missing in a split."""
        train = self.by_class.get("train", Counter[str]())
        if train:
            unit = "words" if self.task.kind == "token-label" else "rows"
            ordered = train.most_common()
            rest = [count for _, count in ordered[MOST_NAMED:]]
            more = f", and {len(rest):,} classes with {rest[-1]:,} to {rest[0]:,}" if rest else ""
            counts = [f"{name} ({count:,})" for name, count in ordered]
            yield f"{unit} of train by class: {join_truncated(counts, more)}"
        for split, by_class in self.by_class.items():
            if missing := sorted(set(self.task.classes) - set(by_class), key=lambda name: (train[name], name)):
                named = join_truncated([f"{name} ({train[name]:,} in train)" for name in missing])
                yield f"warning: {len(missing):,} classes are not in {split}: {named}"


class _Summary(TypedDict):
    """Summary in its file."""

    task: TaskJson
    splits: dict[str, dict[str, int]]
    long_length: int


def read_summary(folder: Path) -> Summary:
    """The summary of a prepared folder.

    Raises:
        FileNotFoundError: it is none.
        UserError: its summary is damaged.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no prepared task: it holds no {SUMMARY_FILE}")
    content = read_state(path, _Summary)
    if problem := next(_problems(content), None):
        raise UserError(f"{path} is damaged{problem}")
    task = {name: tuple(value) if isinstance(value, list) else value for name, value in content["task"].items()}
    splits = {split: SplitCounts(**counts) for split, counts in content["splits"].items()}
    return Summary(Task(**task), splits, content["long_length"])  # type: ignore[arg-type]


def has_pairs(folder: Path) -> bool:
    """Whether the rows of a prepared folder are two texts."""
    return (folder / "input1").is_dir()


def _problems(content: _Summary) -> Iterator[str]:
    """What no preparation writes; the end of a message."""
    task, splits = content["task"], content["splits"]
    if task["kind"] not in KINDS:
        yield f": /task/kind is {task['kind']}, it must be one of {', '.join(KINDS)}"
    if not task["scale"] > 0:
        yield f": /task/scale is {task['scale']}, it must be above 0"
    if (not task["classes"]) != (task["kind"] == "regression"):
        yield f": /task/classes has {len(task['classes'])} names, but it is a {task['kind']} task"
    names = [task["name"], *task["metrics"], *task["headline"], *splits, *task["dev_sets"], *task["test_sets"]]
    yield from (f": the name {name!r} must be {A_NAME}" for name in names if not is_name(name))
    counts = [field.name for field in fields(SplitCounts)]
    for split, found in splits.items():
        yield from (f": /splits/{split} has no {name}" for name in counts if name not in found)
    places = {"/task": task.keys() - TaskJson.__annotations__.keys()}
    places |= {f"/splits/{split}": found.keys() - set(counts) for split, found in splits.items()}
    for place, unknown in places.items():
        yield from (f", or of a later version: {place} has {name!r}, which is not known" for name in sorted(unknown))
