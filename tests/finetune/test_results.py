"""What the results say: by the tasks' records, and where the files in a run's folder are damaged."""

import itertools
import json
import math
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairseq_linformer.data.task_record import SUMMARY_FILE, SplitCounts, Summary, own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.kept_baselines import BASELINE_FILE
from fairseq_linformer.finetune.metrics import score
from fairseq_linformer.finetune.results import best_checkpoints, check_beside, write_results
from fairseq_linformer.finetune.results_table import as_table, guess, is_at_chance, summarise
from fairseq_linformer.finetune.scored_runs import SCORES_FILE, Result, Setting, TaskRun, read_scores, write_scores
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.training.commands import FINE_TUNING
from fairseq_linformer.training.launch import RUN_FILE
from fairseq_linformer.training.provenance import Provenance

OPTIONS = {
    "checkpoint.best_checkpoint_metric": "score",
    "common.seed": 1,
    "dataset.batch_size": 16,
    "optimization.lr": [0.01],
    "optimization.max_update": 6,
}
MADE = Provenance(FINE_TUNING, OPTIONS, "1" * 64, "0" * 64)
RTE = TASKS["RTE"]
SCORES = {"valid": {"accuracy": 80.5}}


@pytest.fixture
def folder(tmp_path):
    """A complete run of RTE, below the folder of results."""
    run = tmp_path / "RTE" / "seed1"
    run.mkdir(parents=True)
    (run / RUN_FILE).write_text(json.dumps({**MADE.as_json(), "complete": True}))
    (run / SUMMARY_FILE).write_text(json.dumps(Summary(RTE, {}, 512).as_json()))
    (run / "predictions-valid.tsv").write_text("label\tprediction\n0\t0\n")
    write_scores(run, MADE, SCORES)
    return run


def write(out):
    return write_results(out, out / "a.pt", "0" * 64, resolve_config(Namespace(encoder_layers=1), 16), [], [])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_that_lacks_an_option_is_named(folder, tmp_path, name):
    assert "| RTE | accuracy | 80.5 |" in write(tmp_path)
    options = {option: value for option, value in OPTIONS.items() if option != name}
    (folder / RUN_FILE).write_text(json.dumps({**MADE.as_json(), "configuration": options, "complete": True}))
    with pytest.raises(ValueError, match=rf"seed1/run\.json is damaged: /configuration has no {name}: remove"):
        write(tmp_path)


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"valid": {}},
        {"valid": {"accurcy": 80.5}},
        {"valid": {"accuracy": 80.5, "f1": 80.5}},
        {"vali": {"accuracy": 80.5}},
        {"a\0b": {"accuracy": 80.5}},
        {"a" * 300: {"accuracy": 80.5}},
        {**SCORES, "valid1": {"accuracy": 80.5}},
    ],
)
def test_scores_other_than_the_tasks_are_computed_again(folder, tmp_path, scores):
    assert read_scores(folder, MADE, RTE) == SCORES
    content = json.loads((folder / SCORES_FILE).read_text())
    (folder / SCORES_FILE).write_text(json.dumps({**content, "scores": scores}))
    assert read_scores(folder, MADE, RTE) is None
    assert "| RTE | accuracy | failed |" in write(tmp_path)


MODEL = resolve_config(Namespace(encoder_layers=1), 16)


def result_of(task, scores, seed=1, metric="score", made=None):
    return Result(TaskRun(task, seed, Setting(0.01, 16), 6, Path("run"), metric), scores, made=made)


def test_a_task_that_was_prepared_again_shows_what_each_number_of_rows_has(tmp_path):
    """Its labelled test set came later: the runs before it have no score there."""
    before, after = (replace(own_task("own", "single-label"), test_sets=sets) for sets in ({}, {"test": "t"}))
    scores = dict.fromkeys(("accuracy", "macro_f1", "mcc"), 50.0)
    results = [result_of(before, {"valid": scores}), result_of(after, {"valid": scores, "test": scores})]
    results = [
        replace(one, run=replace(one.run, train_rows=rows)) for one, rows in zip(results, (100, 200), strict=True)
    ]
    found = [(row["title"], row["metric"], row["rows"]) for row in summarise(results, MODEL, tmp_path)]
    assert len(found) == 9 and all(rows == [200] for title, _, rows in found if title == "t")


def test_dev_sets_have_their_names(tmp_path):
    """Those of the record: a second set of an own task is not mismatched."""
    own = replace(own_task("own", "single-label"), dev_sets={"valid": "", "valid1": "of 2026"}, test_sets={"test": "t"})
    scores = dict.fromkeys(("accuracy", "macro_f1", "mcc"), 50.0)
    results = [
        result_of(own, {"valid": scores, "valid1": scores, "test": scores}),
        result_of(TASKS["MNLI"], {split: {"accuracy": 80.0} for split in ("valid", "valid1")}),
    ]
    rows = as_table({"m": summarise(results, MODEL, tmp_path)}).splitlines()[2:]
    names = [row.split(" | ")[0] for row in rows if row.startswith("|")]
    assert names == ["| own"] * 3 + ["| own (of 2026)"] * 3 + ["| own (t)"] * 3 + ["| MNLI", "| MNLI (mismatched)"]


def test_the_baseline_is_of_the_data_that_the_runs_saw(folder, tmp_path):
    file = tmp_path / "RTE" / BASELINE_FILE
    for data, cell in (("1" * 64, "66.6"), ("2" * 64, "")):
        scores = {"scores": {"valid": {"accuracy": 66.6}}, "majority": {"valid": {"accuracy": 52.7}}}
        file.write_text(json.dumps({"data": data, **scores}))
        majority = cell and "52.7"
        assert f"| RTE | accuracy | 80.5 | 80.5 | 1 |  | lr0.01-batch16 | {majority} | {cell} |  |" in write(tmp_path)
    for damaged in ("{", json.dumps({"data": "1" * 64, "scores": {}})):
        file.write_text(damaged)
        assert "| RTE | accuracy | 80.5 | 80.5 | 1 |  | lr0.01-batch16 |  |  |  |" in write(tmp_path)


def test_a_row_stays_when_other_tasks_are_trained(folder, tmp_path):
    """Of two recipes with a seed each the table keeps that of the last command, not the better one on the dev set."""
    other = tmp_path / "RTE" / "seed2"
    shutil.copytree(folder, other)
    made = replace(MADE, data="2" * 64, configuration={**OPTIONS, "common.seed": 2})
    (other / RUN_FILE).write_text(json.dumps({**made.as_json(), "complete": True}))
    write_scores(other, made, {"valid": {"accuracy": 70.0}})
    run = TaskRun(RTE, 2, Setting(0.01, 16), 6, other)
    written = write_results(tmp_path, tmp_path / "a.pt", "0" * 64, MODEL, [Result(run, {}, made=made)], [])
    assert "| RTE | accuracy | 70.0 |" in written
    assert "Runs of other settings, options or data, in results.json as `search`: 1\n" in written
    assert write(tmp_path) == written


def test_what_is_at_chance_is_marked_and_the_mark_explained(folder, tmp_path):
    """RTE has 277 rows: two standard errors of a share of 52.7 % are 6.0 points."""
    content = {"data": "1" * 64, "scores": {}, "majority": {"valid": {"accuracy": 52.7}}}
    (tmp_path / "RTE" / BASELINE_FILE).write_text(json.dumps(content))
    counts = {"train": SplitCounts(2490, 1), "valid": SplitCounts(277, 1)}
    (folder / SUMMARY_FILE).write_text(json.dumps(Summary(RTE, counts, 512).as_json()))
    for value, mark in ((58.6, " †"), (58.8, "")):
        write_scores(folder, MADE, {"valid": {"accuracy": value}})
        table = write(tmp_path)
        assert f"| RTE | accuracy | {value}{mark} | {value} | 1 | 2,490 / 277 | lr0.01-batch16 | 52.7 |" in table
        assert ("† At chance:" in table) == bool(mark)
    assert json.loads((tmp_path / "results.json").read_text())["table"][0]["rows"] == [2490, 277]
    assert is_at_chance("mcc", 6.6, 0.0, 900) and not is_at_chance("mcc", 6.7, 0.0, 900)


@pytest.mark.parametrize("positive", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("guessed", [0.3, 0.5, 0.8, 1.0])
def test_no_guesses_have_a_higher_f1_than_chance_and_the_best_have_it(positive, guessed):
    """Of many rows, whose labels and guesses are independent of each other."""
    random = np.random.default_rng(1)
    targets = [str(int(one)) for one in random.random(20_000) < positive]
    guesses = [str(int(one)) for one in random.random(20_000) < guessed]
    majority = [max("01", key=targets.count)] * len(targets)
    own = own_task("own", "single-label", ("0", "1"))
    for task, metric, is_best in ((TASKS["QQP"], "f1", guessed == 1), (own, "macro_f1", guessed == positive)):
        excess = score(task, targets, guesses)[metric] - guess(task, metric, score(task, targets, majority))
        assert excess < 1 and (not is_best or excess > -1)


@pytest.mark.parametrize("shares", [(0.5,), (0.1, 0.6, 0.3), (0.05, 0.02)])
def test_no_constant_guess_of_several_classes_has_a_higher_f1_than_chance(shares):
    """Of many rows, whose labels are independent of each other; most have none where the shares are small."""
    random, names = np.random.default_rng(1), "abc"[: len(shares)]
    drawn = random.random((5_000, len(shares))) < shares
    targets = [tuple(name for name, one in zip(names, row, strict=True) if one) for row in drawn]
    task = own_task("own", "multi-label", tuple(names))
    for metric in ("micro_f1", "macro_f1"):
        constants = [chosen for size in range(len(names) + 1) for chosen in itertools.combinations(names, size)]
        reached = [score(task, targets, [chosen] * len(targets))[metric] for chosen in constants]
        assert guess(task, metric, {metric: 0.0}, targets) == pytest.approx(max(reached))
    assert guess(task, "micro_f1", {"micro_f1": 0.0}, [(), ()]) == 0


def test_labels_of_words_are_as_many_as_the_words(tmp_path):
    """98.4 % of 400 words are above a majority of 95; of the 10 rows that they stand in nobody could tell."""
    task = own_task("own", "token-label", ("a", "b"))
    run = replace(result_of(task, {"valid": dict.fromkeys(task.metrics, 98.4)}).run, folder=tmp_path / "own/seed1")
    run.folder.mkdir(parents=True)
    cell = json.dumps(["a", "b"] * 20).replace('"', '""')
    (run.folder / "predictions-valid.tsv").write_text("label\tprediction\n" + f'"{cell}"\t"{cell}"\n' * 10)
    majority = {"valid": {**dict.fromkeys(task.metrics, 0.0), "accuracy": 95.0}}
    (tmp_path / "own" / BASELINE_FILE).write_text(json.dumps({"data": "1" * 64, "scores": {}, "majority": majority}))
    result = Result(run, {"valid": dict.fromkeys(task.metrics, 98.4)}, made=MADE, rows={"train": 10, "valid": 10})
    (row,) = (row for row in summarise([result], MODEL, tmp_path) if row["metric"] == "accuracy")
    assert (row["majority"], row["at_chance"]) == (95.0, False) and is_at_chance("accuracy", 98.4, 95.0, 10)


def test_results_beside_are_of_the_same_rows(folder, tmp_path, caplog):
    counts = {"train": SplitCounts(2490, 1), "valid": SplitCounts(277, 1)}
    (folder / SUMMARY_FILE).write_text(json.dumps(Summary(RTE, counts, 512).as_json()))
    write(tmp_path)
    check_beside([tmp_path], {"RTE": {"valid": 277}, "QQP": {"valid": 10}})
    assert not caplog.records
    with pytest.raises(UserError, match=f"^{tmp_path}: its results of RTE are of 277 rows of valid, those of the data"):
        check_beside([tmp_path], {"RTE": {"valid": 270}})
    check_beside([tmp_path], {"QQP": {"valid": 10}})
    assert f"{tmp_path} has no results of QQP: no row of the table will be of it" in caplog.text


def test_a_number_of_rows_has_a_line_of_its_own_beside_baselines_of_the_same_rows(folder, tmp_path):
    """Of its seeds; the runs on all rows stand last, and nothing of theirs is mixed in."""
    summary, predictions = ((folder / name).read_text() for name in (SUMMARY_FILE, "predictions-valid.tsv"))
    for count, seed, value in ((200, 1, 70.0), (50, 1, 60.0), (50, 2, 64.0)):
        run = tmp_path / f"RTE/rows{count}/seed{seed}"
        run.mkdir(parents=True)
        made = replace(MADE, configuration={**OPTIONS, "common.seed": seed, "task.train_rows": count})
        (run / RUN_FILE).write_text(json.dumps({**made.as_json(), "complete": True}))
        (run / SUMMARY_FILE).write_text(summary)
        (run / "predictions-valid.tsv").write_text(predictions)
        write_scores(run, made, {"valid": {"accuracy": value}})
        found = {"scores": {"valid": {"accuracy": value - 10}}, "majority": {"valid": {"accuracy": 50.0 + seed}}}
        (run.parent / f"baseline-seed{seed}.json").write_text(json.dumps({"data": "1" * 64, **found}))
    rows = [line.split(" | ") for line in write(tmp_path).splitlines()[2:5]]
    assert [(row[2], row[4], row[7], row[8]) for row in rows] == [
        ("62.0 ± 2.8", "2", "51.5", "52.0 ± 2.8"),
        ("70.0", "1", "51.0", "60.0"),
        ("80.5", "1", "", ""),
    ]
    assert [row["rows"] for row in json.loads((tmp_path / "results.json").read_text())["table"]] == [[50], [200], []]
    assert (tmp_path / "labels.png").is_file()


def test_the_papers_figure_stands_beside_the_whole_data_only(tmp_path):
    for rows, figure in ((67_349, "92.4 to 93.4"), (67_300, "92.4 to 93.4"), (6_000, ""), (0, "")):
        result = result_of(TASKS["SST-2"], {"valid": {"accuracy": 80.0}})
        result.rows = {"train": rows, "valid": 872}
        assert as_table({"m": summarise([result], MODEL, tmp_path)}).splitlines()[2].endswith(f" | {figure} |")


def test_what_words_give_on_wnli_is_explained(tmp_path):
    assert "adversarial" in as_table(
        {"m": summarise([result_of(TASKS["WNLI"], {"valid": {"accuracy": 56.3}})], MODEL, tmp_path)}
    )


def test_the_value_of_a_run_is_of_its_metric():
    """The mean of the record's headline metrics over dev sets, not of all metrics; or the one that was asked for.

    The test set chooses nothing.
    """
    own = replace(own_task("own", "single-label"), test_sets={"test": "test"})
    scores = {"valid": {"accuracy": 60.0, "macro_f1": 30.0, "mcc": 10.0}}
    scores["test"] = dict.fromkeys(scores["valid"], 90.0)
    assert result_of(own, scores).value == 60.0 and result_of(own, scores, metric="mcc").value == 10.0
    both = {"valid": {"accuracy": 80.0}, "valid1": {"accuracy": 70.0}}
    assert result_of(TASKS["MNLI"], both).value == 75.0
    assert result_of(TASKS["STS-B"], {"valid": {"pearson": 80.0, "spearman": 90.0}}).value == 85.0
    assert result_of(own, {}).value == -math.inf


def test_the_best_checkpoint_is_that_of_the_best_value(tmp_path):
    runs = [("a", 60.0), ("b", None), ("c", 80.0)]
    rows = [{"task": "own", "folder": folder, "score": score} for folder, score in runs]
    (tmp_path / "results.json").write_text(json.dumps({"runs": rows}))
    assert best_checkpoints(tmp_path) == {"own": tmp_path / "c/checkpoint_best.pt"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((content, r"results\.json(:| is damaged:) ") for content in ("", "[]", "{}", '{"runs": {}}')),
        ('{"runs": [{"task": "RTE", "error": ""}]}', r"results\.json is damaged: "),
        *(
            (json.dumps({"runs": [{"task": "RTE", "folder": place, "score": 1.0}]}), "lies outside of its folder")
            for place in ("../x", "/tmp/x", "a/../../x", "C:\\x")
        ),
    ],
)
def test_damaged_results_are_named(tmp_path, content, said):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=said):
        best_checkpoints(tmp_path)
