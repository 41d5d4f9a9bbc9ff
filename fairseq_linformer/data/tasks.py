"""The tasks that are known by name: GLUE's nine, its diagnostic set AX, and IMDB, a record each.

Any other task is the record in the folder that was prepared for it (``Summary``).
"""

from collections.abc import Mapping

from .task_record import KINDS, Source, SourceFile, Task

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
