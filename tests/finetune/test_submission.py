"""The files of GLUE's leaderboard in their official sizes, and what is refused before it is sent there."""

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.finetune.submission import FILES, check_test_set, write_submission_file
from tests.helpers.inputs import Numbers

ENTAILMENT = ("entailment", "not_entailment")
ROWS = {"CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "STS-B": 1379, "QQP": 390965, "MNLI-m": 9796, "MNLI-mm": 9847}
ROWS |= {"QNLI": 5463, "RTE": 3000, "WNLI": 146, "AX": 1104}
ALLOWED = {"QNLI": ENTAILMENT, "RTE": ENTAILMENT, **dict.fromkeys(("MNLI-m", "MNLI-mm", "AX"), TASKS["MNLI"].classes)}


@pytest.mark.parametrize(("name", "rows"), [(name, rows) for name, rows in ROWS.items() if rows < 2000])
def test_a_file_that_is_written_is_right(tmp_path, name, rows):
    labels = ALLOWED.get(name, ("0", "1"))
    predictions = [labels[number % len(labels)] for number in range(rows)]
    write_submission_file(tmp_path, f"{name}.tsv", predictions)
    lines = (tmp_path / f"{name}.tsv").read_text().split("\n")
    written = ["0.000", "1.000"] if name == "STS-B" else labels
    assert lines[:3] == ["index\tprediction", f"0\t{written[0]}", f"1\t{written[1]}"]
    assert [line.split("\t")[0] for line in lines[1:]] == [*map(str, range(rows)), ""]


def test_the_files_are_those_of_the_leaderboard():
    rows = {name: TASKS[task].source.files[split].rows for name, (task, split) in FILES.items()}
    assert {name.removesuffix(".tsv"): number for name, number in rows.items()} == ROWS
    assert FILES["MNLI-mm.tsv"] == ("MNLI", "test1") and FILES["AX.tsv"] == ("AX", "test")
    assert all(TASKS[task].classes == ALLOWED[name] for name, task in (("QNLI",) * 2, ("RTE",) * 2, ("AX",) * 2))


def test_scores_stay_in_their_range(tmp_path):
    write_submission_file(tmp_path, "STS-B.tsv", ["-0.1", "5.0004", "2.34567", "1e-08", *["3"] * 1375])
    scores = [line.split("\t")[1] for line in (tmp_path / "STS-B.tsv").read_text().splitlines()]
    assert scores[:6] == ["prediction", "0.000", "5.000", "2.346", "0.000", "3.000"]


@pytest.mark.parametrize(
    ("name", "predictions", "message"),
    [
        ("WNLI", ["0"] * 145, "rows of WNLI.tsv=145 is not allowed: it must be 146, as of the official test set"),
        ("WNLI", ["0"] * 147, "rows of WNLI.tsv=147 "),
        ("WNLI", [*["0"] * 145, "entailment"], "row 145 of WNLI.tsv=entailment is not allowed: it must be one of 0, 1"),
        ("STS-B", ["0", *["nan"] * 1378], "row 1 of STS-B.tsv=nan is not allowed: it must be a number from 0 to 5"),
    ],
)
def test_predictions_that_the_leaderboard_would_not_take_are_named(tmp_path, name, predictions, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        write_submission_file(tmp_path, f"{name}.tsv", predictions)
    assert not list(tmp_path.iterdir())


def test_a_test_set_that_is_not_the_official_one_is_named(tmp_path):
    rows = [Example("1", None, "2")] * 146
    for name, split, labels, count in (
        ("right", "test", ("0", "1"), 146),
        ("short", "test", ("0", "1"), 145),
        ("other", "test1", ("0", "1"), 146),
        ("words", "test", ENTAILMENT, 146),
        ("scores", "test", (), 146),
    ):
        write_labelled(
            tmp_path / name,
            own_task("own", "single-label" if labels else "regression", labels),
            {split: rows[:count]},
            Numbers(),
        )
    check_test_set(tmp_path / "right", "WNLI.tsv")
    for name, message in {
        "short": r"short: its split test has 145 rows, the official test set of WNLI\.tsv has 146",
        "other": r"other: its split test has 0 rows, the official",
        "words": "words: its labels are entailment, not_entailment, the official ones of WNLI are 0, 1",
        "scores": "scores: its labels are scores, the official ones of WNLI are 0, 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            check_test_set(tmp_path / name, "WNLI.tsv")
    with pytest.raises(FileNotFoundError, match=r"is no prepared task: it holds no task\.json"):
        check_test_set(tmp_path, "WNLI.tsv")
