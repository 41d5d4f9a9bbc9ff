"""The files of GLUE's leaderboard in their official sizes, and what is refused before it is sent there."""

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.finetune.submission import FILES, check_submission, check_test_set, write_submission_file
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
    assert lines[rows][: len(str(rows)) + 1] == f"{rows - 1}\t" and lines[rows + 1 :] == [""]
    check_submission(tmp_path)


def test_the_files_are_those_of_the_leaderboard():
    rows = {name: TASKS[task].source.files[split].rows for name, (task, split) in FILES.items()}
    assert {name.removesuffix(".tsv"): number for name, number in rows.items()} == ROWS
    assert FILES["MNLI-mm.tsv"] == ("MNLI", "test1") and FILES["AX.tsv"] == ("AX", "test")
    assert all(TASKS[task].classes == ALLOWED[name] for name, task in (("QNLI",) * 2, ("RTE",) * 2, ("AX",) * 2))


def test_scores_stay_in_their_range(tmp_path):
    write_submission_file(tmp_path, "STS-B.tsv", ["-0.1", "5.0004", "2.34567", "1e-08", *["3"] * 1375])
    scores = [line.split("\t")[1] for line in (tmp_path / "STS-B.tsv").read_text().splitlines()]
    assert scores[:6] == ["prediction", "0.000", "5.000", "2.346", "0.000", "3.000"]
    check_submission(tmp_path)
    write_submission_file(tmp_path, "STS-B.tsv", ["nan"] * 1379)
    with pytest.raises(ValueError, match=r"STS-B\.tsv, line 2: '0\\tnan', it must be 0, a tab, and 0 to 5$"):
        check_submission(tmp_path)


def table(rows, header="index\tprediction") -> str:
    return "\n".join([header, *rows]) + "\n"


GOOD = [f"{number}\t{number % 2}" for number in range(146)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"WNLI\.tsv: the header is '', it must be 'index\\tprediction'"),
        (table(GOOD, "id\tlabel"), r"WNLI\.tsv: the header is 'id\\tlabel', it must be 'index\\tprediction'"),
        (table(GOOD[:-1]), r"WNLI\.tsv: 145 rows, it must have 146, those of the official test set"),
        (table([*GOOD, "146\t0"]), r"WNLI\.tsv: 147 rows"),
        (table([*GOOD[:70], *GOOD[71:], "146\t0"]), r"line 72: '71\\t1', it must be 70, a tab, and one of 0, 1"),
        (table(["1\t0", *GOOD[1:]]), r"line 2: '1\\t0', it must be 0, a tab"),
        (table([*GOOD[:-1], "145\tentailment"]), r"line 147: '145\\tentailment', it must be 145, a tab, and one of 0"),
        (table([*GOOD[:-1], "145\t1.0"]), r"line 147: '145\\t1\.0'"),
        (table([*GOOD[:-1], "145\t1\r"]), r"line 147: '145\\t1\\r'"),
        ("\r".join(["index\tprediction", *GOOD]), r"WNLI\.tsv: the header is 'index\\tprediction\\r0\\t0\\r1"),
        (table([*GOOD[:-1], "145"]), r"line 147: '145', it must be"),
        (table([*GOOD[:-1], "145\t1\t0"]), r"line 147: '145\\t1\\t0'"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, content, message):
    (tmp_path / "WNLI.tsv").write_text(table(GOOD))
    check_submission(tmp_path)
    (tmp_path / "WNLI.tsv").write_bytes(content.encode())
    with pytest.raises(ValueError, match=message):
        check_submission(tmp_path)


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "WNLI.tsv").write_bytes(table(GOOD).encode() + b"\xff")
    with pytest.raises(ValueError, match=r"WNLI\.tsv: not UTF-8 \(.*byte 0xff.*\)$"):
        check_submission(tmp_path)


@pytest.mark.parametrize("score", ["5.001", "-0.001", "high", ""])
def test_a_score_that_is_wrong_is_named(tmp_path, score):
    (tmp_path / "STS-B.tsv").write_text(table([*(f"{number}\t2.5" for number in range(1378)), f"1378\t{score}"]))
    with pytest.raises(ValueError, match=r"STS-B\.tsv, line 1380: .*, it must be 1378, a tab, and 0 to 5"):
        check_submission(tmp_path)


def test_a_file_of_no_task_is_named(tmp_path):
    (tmp_path / "MNLI.tsv").touch()
    with pytest.raises(ValueError, match=r"MNLI\.tsv is no file of a submission: those are AX\.tsv, .* MNLI-m\.tsv, M"):
        check_submission(tmp_path)


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
