"""The table of results, and GLUE's submission in the official sizes."""

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.task_record import SplitCounts, Summary, own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.baseline import Baselines
from fairseq_linformer.finetune.report import (
    FILES,
    as_markdown,
    check_test_set,
    table_rows,
)
from fairseq_linformer.finetune.sweep import Result, Run, Setting
from tests.helpers.inputs import Numbers


def summary_of(task) -> Summary:
    splits = zip(("train", *task.scored), (2490, 277, 30), strict=False)
    return Summary(task, {split: SplitCounts(rows, 1) for split, rows in splits}, 512)


def result_of(task, scores, seed=1, metric="score", error="", folder="run"):
    return Result(Run(task, seed, Setting(0.01, 16), 6, Path(folder), metric), scores, error)


def test_a_row_has_the_mean_and_the_deviation_over_seeds_beside_the_baselines():
    results = [result_of(TASKS["RTE"], {"valid": {"accuracy": value}}, seed) for seed, value in enumerate((60.0, 64.0))]
    results.append(result_of(TASKS["RTE"], {}, 3, error="out of memory"))
    baselines = Baselines({"valid": {"accuracy": 66.6}}, {"valid": {"accuracy": 52.7}})
    (row,) = table_rows(summary_of(TASKS["RTE"]), results, baselines)
    assert (row["mean"], row["median"], row["values"]) == (62.0, 62.0, [60.0, 64.0])
    assert row["deviation"] == pytest.approx(math.sqrt(8)) and (row["majority"], row["baseline"]) == (52.7, 66.6)
    cells = "| RTE | accuracy | 62.0 ± 2.8 | 62.0 | 2 | 2,490 / 277 | lr0.01-batch16 | 52.7 | 66.6 |"
    assert as_markdown([row]).splitlines()[2:] == [cells]
    rows = table_rows(summary_of(TASKS["RTE"]), results[2:], None)
    assert as_markdown([*rows]).splitlines()[2].startswith("| RTE | accuracy | failed |  | 0 |")


def test_the_value_of_a_run_is_of_its_metric():
    """The mean of the record's headline metrics over dev sets, not test sets; or the metric of the option."""
    task = replace(own_task("own", "single-label"), test_sets={"test": "test"})
    scores = {"valid": {"accuracy": 60.0, "macro_f1": 30.0, "mcc": 10.0}}
    scores["test"] = dict.fromkeys(scores["valid"], 90.0)
    assert result_of(task, scores).value == 60.0 and result_of(task, scores, metric="mcc").value == 10.0
    both = {"valid": {"accuracy": 80.0}, "valid1": {"accuracy": 70.0}}
    assert result_of(TASKS["MNLI"], both).value == 75.0
    assert result_of(TASKS["STS-B"], {"valid": {"pearson": 80.0, "spearman": 90.0}}).value == 85.0
    assert result_of(task, {}).value == -math.inf


ROWS = {"CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "STS-B": 1379, "QQP": 390965, "MNLI-m": 9796, "MNLI-mm": 9847}
ROWS |= {"QNLI": 5463, "RTE": 3000, "WNLI": 146, "AX": 1104}


def test_the_files_are_those_of_the_leaderboard():
    rows = {name: TASKS[task].source.files[split].rows for name, (task, split) in FILES.items()}
    assert {name.removesuffix(".tsv"): number for name, number in rows.items()} == ROWS
    assert FILES["MNLI-mm.tsv"] == ("MNLI", "test1") and FILES["AX.tsv"] == ("AX", "test")
    assert TASKS["AX"].classes == TASKS["MNLI"].classes
    assert TASKS["QNLI"].classes == TASKS["RTE"].classes == ("entailment", "not_entailment")


@pytest.mark.parametrize(
    ("labels", "rows", "named"),
    [(("0", "1"), 146, None), (("0", "1"), 145, "145 rows"), (("no", "yes"), 146, "labels")],
)
def test_a_test_set_that_is_not_the_official_one_is_named(tmp_path, labels, rows, named):
    task = own_task("own", "single-label", labels)
    write_labelled(tmp_path / "own", task, {"test": [Example("1", None, "2")] * rows}, Numbers())
    with contextlib.nullcontext() if named is None else pytest.raises(UserError, match=named):
        check_test_set(tmp_path / "own", "WNLI.tsv")
