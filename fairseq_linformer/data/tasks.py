"""The tasks of fine-tuning, one record each, which reading, scoring, configuration, results and submission all read.

GLUE's nine, its diagnostic set AX, and IMDB are instances here; an own task is the record that ``linformer prepare
table`` writes into the folder that it prepares, as every preparation does (``Summary``).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from fairseq.data import Dictionary

from ..errors import UserError, check
from ..system.files import A_NAME, is_name
from ..system.state import read_state
from .tokenizer import Unknown

MOST_NAMED = 10  # classes in a line
SUMMARY_FILE = "task.json"  # until it is whole, the mark of a folder of ours
RESERVED = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # fairseq's own entries of every label dictionary
EARLIER_SUMMARY_FILE = "classification.json"

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
        dev_sets: splits that are scored and choose, and what tables call each beside the task's name.
        test_sets: splits that are scored and choose nothing, in the same way.
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
    source: Source | None = None
    leaderboard: Mapping[str, str] = field(default_factory=dict)
    trained_as: str | None = None

    @property
    def scored(self) -> dict[str, str]:
        """All splits that are scored."""
        return {**self.dev_sets, **self.test_sets}

    def as_json(self) -> dict[str, Any]:
        """What a prepared folder keeps of it: all but what its official files and submission are."""
        return {name: getattr(self, name) for name in _Task.__annotations__}


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


class _EarlierTask(TypedDict):
    """Task in a summary's file, as earlier versions wrote it."""

    name: str
    kind: str
    classes: list[str]
    metrics: list[str]
    headline: list[str]
    scale: float
    dev_sets: dict[str, str]


class _Task(_EarlierTask, total=False):
    """Task in a summary's file."""

    test_sets: dict[str, str]


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
            listed = ", ".join(f"{name} ({count:,})" for name, count in train.most_common(MOST_NAMED))
            rest = [count for _, count in train.most_common()[MOST_NAMED:]]
            more = f", and {len(rest):,} classes with {rest[-1]:,} to {rest[0]:,}" if rest else ""
            yield f"{unit} of train by class: {listed}{more}"
        for split, counts in self.by_class.items():
            if missing := sorted(set(self.task.classes) - set(counts), key=lambda name: (train[name], name)):
                named = ", ".join(f"{name} ({train[name]:,} in train)" for name in missing[:MOST_NAMED])
                more = ", …" if len(missing) > MOST_NAMED else ""
                yield f"warning: {len(missing):,} classes are not in {split}: {named}{more}"


class _SplitCounts(TypedDict):
    """SplitCounts in the summary's file."""

    examples: int
    tokens: int
    long: int
    unknown: int


class _Summary(TypedDict):
    """Summary in its file."""

    task: _Task
    splits: dict[str, _SplitCounts]
    long_length: int


def read_summary(folder: Path) -> Summary:
    """The summary of a prepared folder.

    Raises:
        FileNotFoundError: it is none.
        UserError: its summary is damaged, or an earlier version prepared it.
    """
    path = folder / SUMMARY_FILE
    if not path.is_file():
        if (folder / EARLIER_SUMMARY_FILE).is_file():
            raise UserError(f"{folder} was prepared by an earlier version: prepare it again, under another name")
        raise FileNotFoundError(f"{folder} is no prepared task: it holds no {SUMMARY_FILE}")
    content = read_state(path, _Summary)
    task = content["task"]
    if task["kind"] not in KINDS:
        raise UserError(f"{path} is damaged: /task/kind is {task['kind']}, it must be one of {', '.join(KINDS)}")
    if not task["scale"] > 0:
        raise UserError(f"{path} is damaged: /task/scale is {task['scale']}, it must be above 0")
    if (not task["classes"]) != (task["kind"] == "regression"):
        raise UserError(
            f"{path} is damaged: /task/classes has {len(task['classes'])} names, but it is a {task['kind']} task"
        )
    texts = [task["name"], *task["metrics"], *task["headline"], *content["splits"]]
    for name in (*texts, *task["dev_sets"], *task.get("test_sets", {})):
        if not is_name(name):
            raise UserError(f"{path} is damaged: the name {name!r} must be {A_NAME}")
    for place, known, found in [
        ("/task", Task, task),
        *((f"/splits/{k}", SplitCounts, v) for k, v in content["splits"].items()),
    ]:
        if unknown := sorted(found.keys() - {each.name for each in fields(known)}):
            raise UserError(f"{path} is damaged, or of a later version: {place} has {unknown[0]!r}, which is not known")
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in task.items()}
    splits = {split: SplitCounts(**counts) for split, counts in content["splits"].items()}
    return Summary(Task(**lists), splits, content["long_length"])  # type: ignore[arg-type]


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


_TWO = ("accuracy", "f1")
_PAIR = ("sentence1", "sentence2")
_STS_B = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2"
_MNLI = (
    "index,promptID,pairID,genre,sentence1_binary_parse,sentence2_binary_parse,sentence1_parse,sentence2_parse,"
    "sentence1,sentence2"
)
_MNLI_DEV = f"{_MNLI},label1,label2,label3,label4,label5,gold_label"
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_COLA = "source,label,star,sentence"


def _file(name: str, columns: str, rows: int, header: bool = True) -> SourceFile:
    return SourceFile(name, tuple(columns.split(",")), rows, header)


def _three(columns: str, test_columns: str, train: int, dev: int, test: int) -> dict[str, SourceFile]:
    """The files of a task that has one of each split."""
    return {
        "train": _file("train.tsv", columns, train),
        "valid": _file("dev.tsv", columns, dev),
        "test": _file("test.tsv", test_columns, test),
    }


def _glue(
    name: str, source: Source, classes: tuple[str, ...] = ("0", "1"), metrics: tuple[str, ...] = ("accuracy",)
) -> Task:
    """A task of GLUE with one dev set and one test set, whose metrics all count."""
    return Task(name, "single-label", classes, metrics, metrics, source=source, leaderboard={"test": f"{name}.tsv"})


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        _glue(
            "CoLA",
            Source(
                {
                    "train": _file("train.tsv", _COLA, 8551, header=False),
                    "valid": _file("dev.tsv", _COLA, 1043, header=False),
                    "test": _file("test.tsv", "index,sentence", 1063),
                },
                ("sentence",),
                "label",
            ),
            metrics=("mcc",),
        ),
        _glue("SST-2", Source(_three("sentence,label", "index,sentence", 67349, 872, 1821), ("sentence",), "label")),
        _glue(
            "MRPC",
            Source(
                _three(
                    "Quality,#1 ID,#2 ID,#1 String,#2 String", "index,#1 ID,#2 ID,#1 String,#2 String", 3668, 408, 1725
                ),
                ("#1 String", "#2 String"),
                "Quality",
            ),
            metrics=_TWO,
        ),
        _glue(
            "QQP",
            Source(
                _three(
                    "id,qid1,qid2,question1,question2,is_duplicate", "id,question1,question2", 363846, 40430, 390965
                ),
                ("question1", "question2"),
                "is_duplicate",
                skips_broken=True,
            ),
            metrics=_TWO,
        ),
        Task(
            "STS-B",
            "regression",
            (),
            *KINDS["regression"],
            scale=5.0,
            source=Source(_three(f"{_STS_B},score", _STS_B, 5749, 1500, 1379), _PAIR, "score"),
            leaderboard={"test": "STS-B.tsv"},
        ),
        Task(
            "MNLI",
            "single-label",
            _INFERENCE,
            ("accuracy",),
            ("accuracy",),
            dev_sets={"valid": "", "valid1": "mismatched"},
            source=Source(
                {
                    "train": _file("train.tsv", f"{_MNLI},label1,gold_label", 392702),
                    "valid": _file("dev_matched.tsv", _MNLI_DEV, 9815),
                    "valid1": _file("dev_mismatched.tsv", _MNLI_DEV, 9832),
                    "test": _file("test_matched.tsv", _MNLI, 9796),
                    "test1": _file("test_mismatched.tsv", _MNLI, 9847),
                },
                _PAIR,
                "gold_label",
            ),
            leaderboard={"test": "MNLI-m.tsv", "test1": "MNLI-mm.tsv"},
        ),
        _glue(
            "QNLI",
            Source(
                _three("index,question,sentence,label", "index,question,sentence", 104743, 5463, 5463),
                ("question", "sentence"),
                "label",
            ),
            _ENTAILMENT,
        ),
        _glue(
            "RTE",
            Source(
                _three("index,sentence1,sentence2,label", "index,sentence1,sentence2", 2490, 277, 3000), _PAIR, "label"
            ),
            _ENTAILMENT,
        ),
        _glue(
            "WNLI",
            Source(
                _three("index,sentence1,sentence2,label", "index,sentence1,sentence2", 635, 71, 146), _PAIR, "label"
            ),
        ),
        Task(
            "AX",
            "single-label",
            _INFERENCE,
            ("mcc",),
            ("mcc",),
            source=Source({"test": _file("AX.tsv", "index,sentence1,sentence2", 1104)}, _PAIR, "gold_label"),
            leaderboard={"test": "AX.tsv"},
            trained_as="MNLI",
        ),
        Task("IMDB", "single-label", ("negative", "positive"), ("accuracy",), ("accuracy",)),
    )
}
