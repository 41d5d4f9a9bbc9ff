"""Named tasks: GLUE's nine, its diagnostic set AX, and IMDB, a record each.

The record of any other task is in its prepared folder (``Summary``).
"""

from collections.abc import Mapping
from typing import Any

from .task_record import KINDS, Source, SourceFile, Task

_BINARY = ("0", "1")
_INFERENCE = ("contradiction", "entailment", "neutral")
_ENTAILMENT = ("entailment", "not_entailment")
_TWO = ("accuracy", "f1")
_PAIR = ("sentence1", "sentence2")

# Columns of official files.
_COLA = "source,label,star,sentence"
_MRPC = "#1 ID,#2 ID,#1 String,#2 String"
_STS_B = "index,genre,filename,year,old_index,source1,source2,sentence1,sentence2"
_MNLI = (
    "index,promptID,pairID,genre,sentence1_binary_parse,sentence2_binary_parse,sentence1_parse,sentence2_parse,"
    "sentence1,sentence2"
)
_MNLI_DEV = f"{_MNLI},label1,label2,label3,label4,label5,gold_label"
_INDEXED_PAIR = "index,sentence1,sentence2"
_LABELLED_PAIR = f"{_INDEXED_PAIR},label"


def _file(name: str, columns: str, rows: int, header: bool = True) -> SourceFile:
    return SourceFile(name, tuple(columns.split(",")), rows, header)


def _three(columns: str, test_columns: str, train: int, dev: int, test: int) -> dict[str, SourceFile]:
    """Return the files of a task that has one of each split."""
    return {
        "train": _file("train.tsv", columns, train),
        "valid": _file("dev.tsv", columns, dev),
        "test": _file("test.tsv", test_columns, test),
    }


def _glue(
    name: str,
    files: Mapping[str, SourceFile],
    texts: tuple[str, ...],
    label: str,
    classes: tuple[str, ...] = _BINARY,
    metrics: tuple[str, ...] = ("accuracy",),
    *,
    label_type: str = "single-label",
    skips_broken: bool = False,
    **attributes: Any,
) -> Task:
    """Return a task of GLUE, with all metrics in the headline; `attributes` are those of the record."""
    source = Source(files, texts, label, skips_broken)
    attributes.setdefault("leaderboard", {"test": f"{name}.tsv"})
    return Task(name, label_type, classes, metrics, metrics, columns=texts, source=source, **attributes)


_COLA_FILES = {
    "train": _file("train.tsv", _COLA, 8551, header=False),
    "valid": _file("dev.tsv", _COLA, 1043, header=False),
    "test": _file("test.tsv", "index,sentence", 1063),
}
_SST_2_FILES = _three("sentence,label", "index,sentence", 67349, 872, 1821)
_MRPC_FILES = _three(f"Quality,{_MRPC}", f"index,{_MRPC}", 3668, 408, 1725)
_QQP_FILES = _three("id,qid1,qid2,question1,question2,is_duplicate", "id,question1,question2", 363846, 40430, 390965)
_MNLI_FILES = {
    "train": _file("train.tsv", f"{_MNLI},label1,gold_label", 392702),
    "valid": _file("dev_matched.tsv", _MNLI_DEV, 9815),
    "valid1": _file("dev_mismatched.tsv", _MNLI_DEV, 9832),
    "test": _file("test_matched.tsv", _MNLI, 9796),
    "test1": _file("test_mismatched.tsv", _MNLI, 9847),
}
_MNLI_DEV_SETS = {"valid": "", "valid1": "mismatched"}
_MNLI_BOARD = {"test": "MNLI-m.tsv", "test1": "MNLI-mm.tsv"}
_QNLI_FILES = _three("index,question,sentence,label", "index,question,sentence", 104743, 5463, 5463)
_RTE_FILES = _three(_LABELLED_PAIR, _INDEXED_PAIR, 2490, 277, 3000)
_WNLI_FILES = _three(_LABELLED_PAIR, _INDEXED_PAIR, 635, 71, 146)
_STS_B_FILES = _three(f"{_STS_B},score", _STS_B, 5749, 1500, 1379)
_AX_FILES = {"test": _file("AX.tsv", _INDEXED_PAIR, 1104)}


def is_whole(name: str, rows: int) -> bool:
    """Return True if `rows` are all of the official train set, except the few that some copies of QQP lack.

    The number of updates in a task's recipe is for all rows. Return True for a task that is not in TASKS.
    """
    source = TASKS[name].source if name in TASKS else None
    official_rows = 25_000 if name == "IMDB" else source.files["train"].rows if source is not None else 0
    return rows >= 0.999 * official_rows


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        _glue("CoLA", _COLA_FILES, ("sentence",), "label", metrics=("mcc",)),
        _glue("SST-2", _SST_2_FILES, ("sentence",), "label"),
        _glue("MRPC", _MRPC_FILES, ("#1 String", "#2 String"), "Quality", metrics=_TWO),
        _glue("QQP", _QQP_FILES, ("question1", "question2"), "is_duplicate", metrics=_TWO, skips_broken=True),
        _glue("STS-B", _STS_B_FILES, _PAIR, "score", (), KINDS["regression"][0], label_type="regression", scale=5.0),
        _glue("MNLI", _MNLI_FILES, _PAIR, "gold_label", _INFERENCE, dev_sets=_MNLI_DEV_SETS, leaderboard=_MNLI_BOARD),
        _glue("QNLI", _QNLI_FILES, ("question", "sentence"), "label", _ENTAILMENT),
        _glue("RTE", _RTE_FILES, _PAIR, "label", _ENTAILMENT),
        _glue("WNLI", _WNLI_FILES, _PAIR, "label"),
        _glue("AX", _AX_FILES, _PAIR, "gold_label", _INFERENCE, ("mcc",), trained_as="MNLI"),
        Task("IMDB", "single-label", ("negative", "positive"), ("accuracy",), ("accuracy",)),
    )
}
