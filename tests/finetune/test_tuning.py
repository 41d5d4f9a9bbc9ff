"""linformer finetune: from an official archive to the table, what is run again and what is refused."""

import csv
import hashlib
import json
import os
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate

from fairseq_linformer.checkpoints.reading import find_tokenizer, read_checkpoint
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.glue import SOURCES
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.finetune import scored_runs
from fairseq_linformer.finetune import tuning as tuning_module
from fairseq_linformer.finetune.prediction import Prediction
from fairseq_linformer.finetune.results import write_results
from fairseq_linformer.finetune.scored_runs import (
    Result,
    Setting,
    TaskRun,
    check_log,
    read_predictions,
    train_and_score,
    write_predictions,
)
from fairseq_linformer.finetune.tuning import FineTuning, find_folder, read_recipe, read_task
from fairseq_linformer.system.digests import digest_folder
from fairseq_linformer.system.files import lock
from fairseq_linformer.training import launch as running
from fairseq_linformer.training.commands import recipe_name
from fairseq_linformer.training.launch import read_run
from linformer_cli.command import main
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.configs import composed
from tests.helpers.inputs import Numbers, sentences, write_sst_2

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
SIZES |= {"max_positions": 32, "projected_length": "[8,6]", "sharing": "key-value", "local_conv": 3}


def write_sts_b(source):
    """Pairs that are alike score 5, others 1, in the columns of the official files."""
    chance = random.Random(1)
    (source / "STS-B").mkdir(parents=True)
    lines = [line for line in sentences(200, seed=3).splitlines() if line]
    for file in SOURCES["STS-B"].files.values():
        rows = ["\t".join(file.columns)]
        for number in range(48):
            first, other = chance.sample(lines, 2)
            alike = number % 2 == 0
            fields = dict.fromkeys(file.columns, "x") | {"sentence1": first, "sentence2": first if alike else other}
            fields |= {"score": "5.000" if alike else "1.000"} if "score" in file.columns else {}
            rows.append("\t".join(fields.values()))
        (source / "STS-B" / file.name).write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory) -> Path:
    """A folder with a run of two updates in runs/, and two tasks in tasks/, prepared for it from an archive."""
    folder = tmp_path_factory.mktemp("pretrained")
    hydra = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "tiny_512", "optimization.max_update=2"]
    small = [*(f"model.{name}={value}" for name, value in SIZES.items()), "task.tokens_per_sample=32"]
    small += ["lr_scheduler.warmup_updates=1", "dataset.num_workers=0", "model.dropout=0.2"]
    run("fairseq-hydra-train", *hydra, *small, f"task.data={corpus}", "checkpoint.save_dir=runs/tiny", cwd=folder)
    write_sst_2(folder / "glue")
    write_sts_b(folder / "glue")
    archive = shutil.make_archive(str(folder / "glue"), "zip", folder / "glue")
    words = ["--source", archive, "--tasks", "SST-2", "STS-B", "--tokenizer", "runs/tiny", "--out", "tasks"]
    run("linformer", "prepare", "glue", *words, cwd=folder)
    return folder


def command(*more) -> list:
    options = ["runs/tiny", "--data", "tasks", "--epochs", 4, "--jobs", 2]
    return ["linformer", "finetune", *options, *more, "dataset.num_workers=0"]


@pytest.fixture(scope="module")
def finished(pretrained) -> Path:
    """Both tasks over two seeds, by the command that users type."""
    run(*command("--tasks", "sst_2", "sts_b", "--seeds", "1", "2", "--learning-rates", "0.01"), cwd=pretrained)
    return pretrained / "runs" / "finetune"


def read_tsv(path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def test_the_table(finished):
    lines = (finished / "results.md").read_text().splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:5]] == [
        ["| SST-2", "accuracy"],
        ["| STS-B", "Pearson"],
        ["| STS-B", "Spearman"],
    ]
    assert "±" in lines[2] and lines[2].endswith(" |  |"), "the paper's figure is of all rows"
    assert lines[0].split(" | ")[5:7] == ["rows, train / scored", "setting"]
    assert all(" / 40 | lr" in line or " / 48 | lr" in line for line in lines[2:5])
    assert all(0 <= float(cell) <= 100 for line in lines[2:5] for cell in line.split(" | ")[7:9])
    assert lines[-1].startswith("Checkpoint: /") and "checkpoint_best.pt (SHA-256 " in lines[-1]
    results = json.loads((finished / "results.json").read_text())
    runs = [(run["task"], run["seed"]) for run in results["runs"]]
    assert sorted(runs) == [("SST-2", 1), ("SST-2", 2), ("STS-B", 1), ("STS-B", 2)]
    assert results["model"]["projected_length"] == [8, 6]


def test_figures_come_from_the_saved_predictions_and_are_fairseqs(finished):
    for result in json.loads((finished / "results.json").read_text())["runs"]:
        folder = finished / result["folder"]
        rows = read_tsv(folder / "predictions-valid.tsv")
        assert len(rows) == {"SST-2": 40, "STS-B": 48}[result["task"]]
        scores = result["scores"]["valid"]
        if result["task"] == "SST-2":
            right = sum(row["label"] == row["prediction"] for row in rows)
            assert scores["accuracy"] == 100 * right / len(rows)
            assert all(abs(float(row["0"]) + float(row["1"]) - 1) < 1e-5 for row in rows)
        else:
            assert {row["label"] for row in rows} == {"5.0", "1.0"}, "multiplied back"
        lines = (folder / "hydra/hydra_train.log").read_text().splitlines()
        logged = [json.loads(line[line.index("{") :]) for line in lines if '"valid_loss"' in line]
        best = read_checkpoint(folder / "checkpoint_best.pt")["optimizer_history"][-1]["num_updates"]
        (row,) = (row for row in logged if row["valid_num_updates"] == str(best))
        for name, value in scores.items():
            assert float(row[f"valid_{name}"]) == pytest.approx(value, abs=0.1)


def test_it_learns_what_can_be_learnt(finished):
    """40 rows of two classes are told apart: a label that was shifted or a wrong head would leave the half."""
    runs = json.loads((finished / "results.json").read_text())["runs"]
    assert max(run["scores"]["valid"].get("accuracy", 0) for run in runs) > 75


def test_what_is_done_is_not_run_again_and_another_setting_is_refused(finished, pretrained):
    logs = {path: path.stat().st_mtime_ns for path in finished.rglob("train.log")}
    before = {name: (finished / name).read_text() for name in ("results.md", "results.json")}
    table = before["results.md"]
    assert table in run(
        *command("--tasks", "sts_b", "--seeds", "1", "2", "--learning-rates", "0.01"), cwd=pretrained
    ), "the other task's rows stay"
    options = ["--tasks", "SST-2", "stsb", "--seeds", "1", "2"]
    printed = run(*command(*options, "--learning-rates", "0.01"), cwd=pretrained)
    assert table in printed
    following = [f"next: linformer predict {finished / task / 'seed1'} --input FILE" for task in ("SST-2", "STS-B")]
    assert printed.splitlines()[-2:] == following
    printed = run(*command(*options, "--learning-rates", "0.02"), cwd=pretrained, status=1)
    assert "SST-2/seed1 holds a run with other settings (lr_scheduler.lr was [0.01], is [0.02], opt" in printed
    assert {path: path.stat().st_mtime_ns for path in logs} == logs
    assert {name: (finished / name).read_text() for name in before} == before, "nothing is lost by it"


def test_a_failing_run_is_named_and_the_others_go_on(pretrained, tmp_path):
    shutil.copytree(pretrained / "tasks", tmp_path / "tasks")
    shutil.copytree(pretrained / "runs" / "tiny", tmp_path / "runs" / "tiny")
    (tmp_path / "tasks" / "STS-B" / "label" / "train.label").unlink()
    options = ("--tasks", "sts_b", "sst_2", "--seeds", "1", "--learning-rates", "0.01")
    printed = run(*command(*options), cwd=tmp_path, status=1)
    assert "STS-B, lr0.01-batch16, seed 1 failed: fairseq-hydra-train ended with status 1" in printed
    assert "error: 1 of 2 runs failed; repeat the command to run them again" in printed
    assert "\nSST-2: lr 0.01, batches of 32\n" in printed and "STS-B: lr" not in printed
    table = (tmp_path / "runs" / "finetune" / "results.md").read_text()
    assert "| STS-B | Pearson | failed |  | 0 |" in table and "| SST-2 | accuracy | failed" not in table


def test_runs_by_a_launcher_of_hydra(pretrained, tmp_path):
    """Local jobs of submitit, which run as those of Slurm do: log and checkpoints are found where they wrote them."""
    options = ("--tasks", "sst_2", "--seeds", "1", "--out", tmp_path, "--launcher", "submitit_local")
    printed = run(*command(*options, "--learning-rates", "0.01"), "hydra.launcher.timeout_min=5", cwd=pretrained)
    assert "| SST-2 | accuracy | " in printed
    assert list(tmp_path.glob("SST-2/seed1/.submitit/*/*_log.out"))


def test_a_fine_tuned_checkpoint_is_a_start_too(finished, pretrained, tmp_path):
    """RoBERTa's recipe starts the small tasks from MNLI's checkpoint, whose number of classes is another."""
    tuning = FineTuning(finished / "SST-2/seed1/checkpoint_best.pt", pretrained / "tasks", tmp_path, ["sts_b"], [1])
    assert tuning.model.projected_length == [8, 6]


def test_slurm_is_configured():
    words = ["task.data=D", "checkpoint.finetune_from_model=C", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"]
    launcher = composed("finetune", "finetune", *words, with_hydra=True).hydra.launcher
    assert launcher._target_.endswith("submitit_launcher.SlurmLauncher")
    assert (launcher.partition, launcher.gpus_per_node, launcher.nodes, launcher.max_num_timeout) == ("gpu", 1, 1, 3)
    assert launcher.submitit_folder.endswith("/.submitit/%j")
    assert type(instantiate(launcher)).__name__ == "SlurmLauncher"


def tuning_to(out, folder, tasks, seeds=(1,), **options) -> FineTuning:
    """Of the pretrained model, on the tasks in a folder."""
    return FineTuning(folder / "runs/tiny", folder / "tasks", out, tasks, seeds, **options)


@pytest.fixture
def whole(monkeypatch):
    """The few rows of STS-B are all that there are, for which the recipe's updates are."""
    monkeypatch.setattr(tuning_module, "is_whole", lambda name, rows: name == "STS-B" and rows == 48)


def test_a_part_of_the_official_rows_is_seen_as_often_as_all(pretrained):
    """By the recipe's 3,598 updates ten epochs would end in the middle of the warm-up."""
    tuning = tuning_to(Path("/o"), pretrained, ["sts-b"])
    run_of = tuning._run("STS-B", 1, Setting(2e-5, 16))
    assert run_of.updates == 30
    assert {"lr_scheduler.warmup_updates=2", "optimization.max_epoch=0"} <= {*tuning._training(run_of).overrides}


def test_epochs_and_batch_sizes_change_the_updates(pretrained, whole):
    options = {"batch_sizes": (16, 32), "metric": "pearson", "overrides": ["common.log_interval=7"]}
    tuning = tuning_to(Path("/o"), pretrained, ["sts-b"], **options)
    small, large = (tuning._run("STS-B", 1, setting) for setting in tuning._settings("STS-B"))
    assert (small.updates, large.updates) == (3598, 1799), "the YAML's at its batch of 16, and as many epochs"
    changes = [tuning._training(run_of).overrides for run_of in (small, large)]
    assert "lr_scheduler.warmup_updates=214" in changes[0] and "lr_scheduler.warmup_updates=107" in changes[1]
    assert small.folder == Path("/o/STS-B/lr2e-05-batch16/seed1")
    assert changes[0][-2:] == ("checkpoint.best_checkpoint_metric=pearson", "common.log_interval=7")
    tuning = tuning_to(Path("/o"), pretrained, ["sts-b"], epochs=25, **options)
    small, large = (tuning._run("STS-B", 1, setting) for setting in tuning._settings("STS-B"))
    assert (small.updates, large.updates) == (75, 50), "of 48 rows: three batches per epoch, or two"
    changes = tuning._training(small).overrides
    assert "lr_scheduler.warmup_updates=4" in changes and "optimization.max_epoch=0" in changes


def test_few_rows_have_enough_updates_and_few_validations(pretrained):
    """Ten epochs of 400 rows are fewer updates than LEAST_UPDATES; at batches of 1 they are not."""
    tuning = tuning_to(Path("/o"), pretrained, ["sst_2"], train_rows=[40, 400])
    few, more = (tuning._run("SST-2", 2, Setting(1e-5, size), rows) for size, rows in ((8, 40), (1, 400)))
    assert (few.updates, more.updates) == (200, 4000) and few.folder == Path("/o/SST-2/rows40/seed2")
    few, more = (tuning._training(run_of).overrides for run_of in (few, more))
    assert {"task.train_rows=40", "dataset.validate_interval=4", "checkpoint.save_interval=4"} <= {*few}, "40 epochs"
    assert {"task.train_rows=400", "dataset.validate_interval=1", "checkpoint.save_interval=1"} <= {*more}
    assert "lr_scheduler.warmup_updates=12" in few and "optimization.max_epoch=0" in few
    asked = tuning_to(Path("/o"), pretrained, ["sst_2"], train_rows=[40], epochs=3)
    assert asked._run("SST-2", 2, Setting(1e-5, 8), 40).updates == 15


def test_each_number_of_rows_has_its_best_setting(pretrained, tmp_path, monkeypatch, caplog):
    best = {20: 1e-3, 40: 2e-3}

    def train_and_score(run, training, data, launcher):
        return Result(run, {"valid": {"accuracy": 50.0 + (run.setting.rate == best[run.train_rows])}})

    monkeypatch.setattr(tuning_module, "train_and_score", train_and_score)
    tuning = tuning_to(tmp_path, pretrained, ["sst_2"], [1, 2], rates=[1e-3, 2e-3], train_rows=[20, 40], epochs=4)
    results, search = tuning.run()
    chosen = [(result.run.train_rows, result.run.seed, result.run.setting.rate) for result in results]
    assert chosen == [(20, 1, 1e-3), (40, 1, 2e-3), (20, 2, 1e-3), (40, 2, 2e-3)] and len(search) == 2
    assert results[-1].run.folder == tmp_path / "SST-2/rows40/lr0.002-batch32/seed2"
    assert "--epochs 4 makes 4 updates of 20 rows, which are few: without it a run has at least 200" in caplog.text


@pytest.fixture(scope="module")
def curve(pretrained) -> Path:
    """One task with two numbers of rows."""
    words = ["--tasks", "sts_b", "--train-rows", "8", "32", "--seeds", "1", "2", "--learning-rates", "0.01"]
    run(*command("--out", "runs/curve", *words), cwd=pretrained)
    return pretrained / "runs" / "curve"


def test_a_curve_of_rows(curve):
    """A line per number of rows, beside a baseline of the same rows; and a picture."""
    lines = (curve / "results.md").read_text().splitlines()[2:6]
    assert [line.split(" | ")[1] for line in lines] == ["Pearson"] * 2 + ["Spearman"] * 2
    assert [line.split(" | ")[5] for line in lines] == ["8 / 48", "32 / 48"] * 2
    assert all(line.split(" | ")[4] == "2" and "±" in line.split(" | ")[8] for line in lines)
    assert (curve / "labels.png").stat().st_size > 10_000
    assert len({file.read_text() for file in curve.rglob("baseline-seed?.json")}) == 4
    printed = (curve / "STS-B/rows8/seed1/train.log").read_text()
    assert "train: 8 of 48 rows" in printed and '"train_num_updates": "4"' in printed, "four epochs, each of one batch"


def test_two_models_in_one_table_and_picture(finished, curve, pretrained, tmp_path):
    tuning = FineTuning(finished / "STS-B/seed1", pretrained / "tasks", tmp_path, ["sts_b"], [1])
    failed = Result(tuning._run("STS-B", 1, Setting(0.01, 16)), error="out of memory")
    found = write_results(tmp_path, tuning.checkpoint, tuning.digest, tuning.model, [failed], [], [curve, finished])
    rows = [line.split(" | ")[:4] for line in found.splitlines() if line.startswith("| ")]
    assert rows[0][0] == "| model" and [row[0] for row in rows[1:5]] == ["| seed1", "| tiny", "| tiny", "| tiny (3)"]
    assert {row[1] for row in rows[1:]} == {"STS-B"}, "what the first model was not tried on is left out"
    assert found.count("Checkpoint: ") == 3 and (tmp_path / "labels.png").is_file()


@pytest.mark.parametrize(
    "override",
    ["optimization.update_freq=[]", "optimization.update_freq=[4,1]", "distributed_training.distributed_world_size=0"],
)
def test_an_update_of_no_rows_or_of_changing_ones_is_refused(override, pretrained):
    tuning = tuning_to(Path("/o"), pretrained, ["sts-b"], overrides=[override])
    with pytest.raises(ValueError, match=rf"^{override.partition('=')[0]}=.* is not allowed: it must be"):
        tuning._run("STS-B", 1, Setting(2e-5, 4))


@pytest.mark.parametrize("override", ["optimization.update_freq=[4]", "distributed_training.distributed_world_size=4"])
def test_epochs_count_what_an_update_sees_of_all_processes_and_summed_batches(override, pretrained, whole):
    tuning = tuning_to(Path("/o"), pretrained, ["sts-b"], batch_sizes=(4,), overrides=[override])
    run_of = tuning._run("STS-B", 1, Setting(2e-5, 4))
    assert run_of.updates == 3598 and "lr_scheduler.warmup_updates=214" in tuning._training(run_of).overrides


def test_the_best_setting_trains_the_other_seeds(pretrained, tmp_path, monkeypatch):
    figures = {1e-3: 60.0, 2e-3: 80.0, 3e-3: 90.0}

    def train_and_score(run, training, data, launcher):
        if run.setting.rate == 3e-3:
            raise RuntimeError("out of memory")
        return Result(run, {"valid": {"accuracy": figures[run.setting.rate] + run.seed}})

    monkeypatch.setattr(tuning_module, "train_and_score", train_and_score)
    results, search = tuning_to(tmp_path, pretrained, ["sst_2"], [5, 6, 7], rates=tuple(figures)).run()
    assert [(result.run.setting.rate, result.error) for result in search] == [(1e-3, ""), (3e-3, "out of memory")]
    assert [(result.run.seed, result.run.setting.rate) for result in results] == [(5, 2e-3), (6, 2e-3), (7, 2e-3)]
    assert results[1].run.folder == tmp_path / "SST-2" / "lr0.002-batch32" / "seed6"


@pytest.mark.parametrize(("rates", "warned"), [([], True), ([3e-5, 2e-5], True), ([3e-5, 1e-3], False)])
def test_rates_of_large_models_are_named_where_the_model_is_small(
    rates, warned, pretrained, tmp_path, monkeypatch, caplog
):
    """With SST-2's own, 1e-5, a model of d = 128 stays near the majority class."""
    monkeypatch.setattr(
        tuning_module, "train_and_score", lambda run, *others: Result(run, {"valid": {"accuracy": 1.0}})
    )
    tuning_to(tmp_path, pretrained, ["sst_2"], [1], rates=rates).run()
    assert ("lr 1e-05 is for models" in caplog.text or "lr 3e-05 is for models" in caplog.text) == warned


@pytest.mark.parametrize(("narrow", "expected"), [(512, [1e-4, 5e-4, 2e-3]), (32, [1e-5, 2e-5, 3e-5])])
def test_a_search_tries_rates_that_suit_the_width(narrow, expected, pretrained, tmp_path, monkeypatch):
    """RoBERTa's, a hundred times too small, would be six runs near the majority class."""
    tried = []

    def train_and_score(run, *others):
        tried.append((run.setting.rate, run.setting.batch_size))
        return Result(run, {"valid": {"accuracy": 1.0}})

    monkeypatch.setattr(tuning_module, "train_and_score", train_and_score)
    monkeypatch.setattr(tuning_module, "NARROW", narrow)
    tuning_to(tmp_path, pretrained, ["sst_2"], [1], search=True).run()
    assert tried == [(rate, batch_size) for rate in expected for batch_size in (16, 32)]


def test_figures_that_are_not_fairseqs_are_an_error():
    run_of = TaskRun(TASKS["SST-2"], 1, Setting(1, 1), 1, Path("f"))
    result = Result(run_of, {"valid": {"accuracy": 80.04}})
    log = [{"valid_num_updates": 5, "valid_accuracy": 70.0}, {"valid_num_updates": 10, "valid_accuracy": 80.0}]
    check_log(result, log, 10)
    with pytest.raises(
        ValueError, match=r"is 80\.04 by the saved predictions, but fairseq logged 70\.0 after 5 updates"
    ):
        check_log(result, log, 5)
    result.scores["valid"]["accuracy"] = 0.0  # only a correlation is 0 where there is none
    with pytest.raises(ValueError, match=r"is 0\.00 by the saved predictions, but fairseq logged 80\.0"):
        check_log(result, log, 10)
    check_log(Result(run_of, {"valid": {"pearson": 0.0}}), [{"valid_num_updates": 5, "valid_pearson": 80.0}], 5)


@pytest.mark.parametrize(
    ("kind", "labels"), [("single-label", ["label", "prediction"]), ("token-label", [("label", "prediction") * 6000])]
)
def test_saved_predictions_come_back_whatever_classes_are_called_and_however_long_rows_are(kind, labels, tmp_path):
    probabilities = {"label": 0.2, "prediction": 0.8} if kind == "single-label" else {}
    predictions = [Prediction(label, probabilities) for label in labels]
    predictor = SimpleNamespace(split=lambda name: (predictions, labels))
    write_predictions(predictor, "valid", tmp_path / "predictions.tsv")
    task = own_task("own", kind, ("label", "prediction"))
    assert read_predictions(task, tmp_path / "predictions.tsv") == (labels, labels)


@pytest.mark.parametrize(("on_cpu", "device"), [(True, "cpu"), (False, "cuda:1")])
def test_a_run_is_scored_where_it_was_trained(on_cpu, device, pretrained, tmp_path, monkeypatch):
    class Scored(Exception):
        pass

    def predictor(checkpoint, data, device):
        raise Scored(device)

    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    (tmp_path / "checkpoint_best.pt").write_bytes(checkpoint.read_bytes())
    state = {"cfg": SimpleNamespace(common=SimpleNamespace(cpu=on_cpu))}
    monkeypatch.setattr(scored_runs, "read_checkpoint", lambda file: state)
    monkeypatch.setattr(scored_runs, "job_device", lambda: "cuda:1")
    monkeypatch.setattr(scored_runs, "Predictor", predictor)
    training = SimpleNamespace(is_complete=lambda: True, run=lambda launcher: [], provenance=None)
    run_of = TaskRun(TASKS["SST-2"], 1, Setting(1, 1), 1, tmp_path)
    with pytest.raises(Scored, match=f"^{device}$"):
        train_and_score(run_of, training, pretrained / "tasks/SST-2")


def tuning_of(folder, tasks, seeds) -> FineTuning:
    """The command that made `finished`, in this process, for a copy of it."""
    words = ["dataset.num_workers=0"]
    return tuning_to(folder / "runs/finetune", folder, tasks, seeds, rates=[0.01], epochs=4, overrides=words)


def tune(folder, tasks, seeds) -> list[tuple]:
    """The runs that results.json has after that command: task, seed, whether it has scores, and why not."""
    tuning = tuning_of(folder, tasks, seeds)
    write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, *tuning.run())
    runs = json.loads((tuning.out / "results.json").read_text())["runs"]
    return [(run["task"], run["seed"], bool(run["scores"]), run["error"]) for run in runs]


@pytest.fixture
def moved(finished, pretrained, tmp_path, monkeypatch) -> Path:
    """A copy of all that `finished` made, in which nothing may be trained."""
    shutil.copytree(pretrained, tmp_path / "copy")
    monkeypatch.setattr(running, "started", None)
    return tmp_path / "copy"


DONE = [("SST-2", 1, True, ""), ("SST-2", 2, True, ""), ("STS-B", 1, True, ""), ("STS-B", 2, True, "")]


def test_results_are_what_the_folders_of_runs_say(moved, monkeypatch):
    """Whichever command trained them, and wherever they lie; results.json adds nothing to them and hides nothing."""
    out = moved / "runs/finetune"
    (out / "results.json").write_text("{}")
    assert tune(moved, ["sst_2"], [2]) == DONE
    for line in ("| SST-2 | accuracy | ", "| STS-B | Pearson | "):
        assert any(row.startswith(line) and " | 2 | " in row for row in (out / "results.md").read_text().splitlines())
    shutil.rmtree(out / "STS-B/seed2")
    assert tune(moved, ["sst_2"], [1]) == DONE[:3]
    (out / "STS-B/seed1/scores.json").unlink()
    assert tune(moved, ["sst_2"], [1])[2] == ("STS-B", 1, False, "not complete: repeat its command")

    def fail(*_):
        raise OSError("out of memory")

    monkeypatch.setattr(running, "started", fail)  # a new seed is trained, and what there was stays
    assert tune(moved, ["sst_2"], [3])[:3] == [*DONE[:2], ("SST-2", 3, False, "out of memory")]


def test_a_result_says_what_made_it(finished, pretrained):
    content = json.loads((finished / "results.json").read_text())
    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert content["checkpoint"] == {"path": str(checkpoint), "sha256": digest}
    for run_of in content["runs"]:
        scores = json.loads((finished / run_of["folder"] / "scores.json").read_text())
        assert scores["made_by"] == run_of["made_by"] and scores["made_by"]["checkpoint"] == digest
        assert scores["made_by"]["data"] == digest_folder(pretrained / "tasks" / run_of["task"])
        predictions = (finished / run_of["folder"] / "predictions-valid.tsv").read_bytes()
        assert scores["predictions"] == {"predictions-valid.tsv": hashlib.sha256(predictions).hexdigest()}


def test_data_replaced_meanwhile_is_refused(moved):
    """By content: the file is as long, and older than the runs."""
    labels = moved / "tasks/STS-B/label/train.label"
    first, *others = labels.read_text().splitlines()
    labels.write_text("\n".join([*others, first]) + "\n")
    os.utime(labels, (1e9, 1e9))
    with pytest.raises(ValueError, match=r"STS-B/seed1 holds a run with other settings \(the data has other content\)"):
        tune(moved, ["sts_b"], [1])
    assert tune(moved, ["sst_2"], [1]) == DONE, "what it said of the former data it still says"


def test_a_checkpoint_replaced_meanwhile_is_refused_and_no_table_has_runs_of_both(moved):
    checkpoint = moved / "runs/tiny/checkpoint_best.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "extra_state": {**state["extra_state"], "val_loss": 0.0}}, checkpoint)
    os.utime(checkpoint, (1e9, 1e9))
    with pytest.raises(ValueError, match=r"SST-2/seed1 .* \(the checkpoint that it starts from has other content\)"):
        tune(moved, ["sst_2"], [1])
    shutil.rmtree(moved / "runs/finetune/SST-2")
    tuning = tuning_of(moved, ["sst_2"], [1])
    failed = Result(tuning._run("SST-2", 1, Setting(0.01, 32)), error="out of memory")
    table = write_results(tuning.out, tuning.checkpoint, tuning.digest, tuning.model, [failed], []).splitlines()
    rows = [line.split(" | ")[:3] for line in table[2:] if line.startswith("|")]
    assert rows == [["| SST-2", "accuracy", "failed"]], "STS-B has another's"


def test_scores_that_are_not_fairseqs_stay_refused(moved, monkeypatch):
    """A repeated command checks again; without the defect it goes on, with new predictions and no new training."""
    folder = moved / "runs/finetune/SST-2/seed1"
    (folder / "scores.json").unlink()
    real = scored_runs.score
    monkeypatch.setattr(scored_runs, "score", lambda *words: {name: value - 3 for name, value in real(*words).items()})
    for _ in range(2):
        assert "by the saved predictions, but fairseq logged" in tune(moved, ["sst_2"], [1, 2])[0][3]
        assert (folder / "predictions-valid.tsv").is_file() and not (folder / "scores.json").is_file()
    monkeypatch.setattr(scored_runs, "score", real)
    assert tune(moved, ["sst_2"], [1, 2]) == DONE


def test_predictions_that_were_changed_are_made_again(moved):
    file = moved / "runs/finetune/SST-2/seed1/predictions-valid.tsv"
    before = file.read_text()
    file.write_text(before.replace("0\t", "1\t"))
    assert tune(moved, ["sst_2"], [1]) == DONE
    assert file.read_text() == before


def test_a_run_is_predicted_on_the_gpu_that_trained_it(moved, monkeypatch):
    made = {}

    def predictor(checkpoint, data, device):
        made[checkpoint.parent.name] = device
        barrier.wait(timeout=30)  # both at once
        raise OSError("enough")

    barrier = threading.Barrier(2)
    monkeypatch.setattr(scored_runs, "Predictor", predictor)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    folder = moved / "runs/finetune/SST-2"
    for seed in (1, 2):
        (folder / f"seed{seed}/scores.json").unlink()
    tuning_of(moved, ["sst_2"], [1, 2]).run(jobs=2)
    assert sorted(made.values()) == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "sst_2", "mrcp"], "error: tasks holds no task mrcp: it has SST-2, STS-B"),
        (["--tasks", "sst_2", "--data", "tasks/SST-2"], "tasks/SST-2 is itself a prepared task: --data names the f"),
        (["--tasks", "sst_2", "--data", "gone"], "there is no folder gone"),
        (["--tasks", "sst_2", "sts_b", "--metric", "accuracy"], "error: metric=accuracy is not allowed: "),
        (["--tasks", "sst_2", "++common.seed=5"], "error: ++common.seed=5: common.seed is set by --seeds"),
        (
            ["--tasks", "sst_2", "sts_b", "--train-rows", "8", "49"],
            "train_rows=49 is not allowed: it must be from 1 to 48,",
        ),
        (["--tasks", "sst_2", "task.train_rows=8"], "task.train_rows=8: task.train_rows is set by --train-rows"),
        (
            ["--tasks", "sst_2", "--beside", "runs/tiny"],
            "runs/tiny holds no results.json: linformer finetune writes it",
        ),
        (["--tasks", "sst_2", "task.truncate_to=9000"], "error: truncate_to=9000 is not allowed: it must be"),
        (["--tasks", "sst_2", "optimizer.adam_betas=[1]"], "error: optimizer.adam_betas=[1] is not allowed"),
        (["--tasks", "sst_2", "optimization.rate=1"], "error: optimization.rate: there is no such option"),
        (["--tasks", "sst_2", "--data", "a:b"], "a:b: a data folder with a colon in its path is not allowed"),
        (["--tasks", "sst_2", "--out", "a${b}"], "a${b}: a path with ${ in it is not allowed"),
        (["--tasks", "sst_2", "hydra.launcher.partition=a"], "configures a launcher: --launcher names it"),
    ],
)
def test_what_is_refused_before_any_work(pretrained, words, message, monkeypatch):
    monkeypatch.chdir(pretrained)
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in command("--out", "runs/refused", *words)[1:]])
    assert message in str(ended.value).replace(f"{pretrained}/", "")
    assert not (pretrained / "runs" / "refused").exists()


def test_a_model_that_is_not_there_is_refused(pretrained, tmp_path):
    words = ["none.pt", "--data", pretrained / "tasks", "--tasks", "sst_2", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit, match=r"^error: there is no checkpoint .*none\.pt$"):
        main(["finetune", *map(str, words)])
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_write_results_in_one_folder(pretrained, tmp_path):
    """The second replaced good results by its own failures, "another process"."""
    (tmp_path / "results.json").write_text("{}")
    with (tmp_path / ".lock").open("a") as stream:
        lock(stream, "")
        printed = run(*command("--out", tmp_path, "--tasks", "sst_2"), cwd=pretrained, status=1)
    assert printed.splitlines()[-1] == f"error: {tmp_path}: another process is fine-tuning there"
    assert (tmp_path / "results.json").read_text() == "{}"


def test_where_a_training_lives_on_no_other_one_begins(pretrained, tmp_path, monkeypatch):
    """As after SIGKILL of the command that had started it: the others would share the machine with it."""
    monkeypatch.setattr(tuning_module, "train_and_score", None)
    (tmp_path / "SST-2/seed2").mkdir(parents=True)
    with (tmp_path / "SST-2/seed2/train.log").open("a") as stream:
        lock(stream, "", inherited=True)
        with pytest.raises(ValueError, match=f"^{tmp_path}/SST-2/seed2: another process is training there$"):
            tuning_to(tmp_path, pretrained, ["sst_2"], [1, 2]).run()
    assert not (tmp_path / "SST-2/seed1").exists()


def test_a_task_with_another_vocabulary_is_refused(pretrained, tmp_path):
    shutil.copytree(pretrained / "tasks", tmp_path / "tasks")
    dictionary = tmp_path / "tasks" / "STS-B" / "dict.txt"
    first, second, *others = dictionary.read_text().splitlines()
    dictionary.write_text("\n".join([second, first, *others]) + "\n")  # as many pieces, other numbers
    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    for tasks in (["sts_b"], ["sst_2", "sts_b"]):
        with pytest.raises(ValueError, match=r"STS-B has another dictionary than .*: prepare it again"):
            FineTuning(checkpoint, tmp_path / "tasks", tmp_path / "out", tasks, [1])


@pytest.mark.parametrize("rate", [0.1 + 0.2, 1.23456789e-5, 1e-7, 0.00012345678])
def test_a_learning_rate_is_the_same_everywhere(pretrained, tmp_path, rate):
    """In the folder's name, in what Hydra reads, and in what results.json and the last line print: every digit."""
    tuning = tuning_to(tmp_path, pretrained, ["sst_2"], rates=[rate, 1.0])
    run_of = tuning._run("SST-2", 1, tuning._settings("SST-2")[0])
    trained = tuning._training(run_of).provenance.configuration["optimization.lr"]
    assert trained == [rate] and run_of.folder.parent.name == f"lr{rate!r}-batch32"


@pytest.mark.slow
def test_every_known_task_has_a_recipe():
    """With fairseq's validation on the dev sets of its record; but AX, which is predicted alone."""
    for task in TASKS.values():
        if task.trained_as is None:
            assert recipe_name(task.name) != "own"
            recipe = read_recipe(recipe_name(task.name))
            assert recipe["dataset"]["valid_subset"].split(",") == [*task.dev_sets]
    assert recipe_name("reviews") == "own"


@pytest.mark.parametrize(("name", "found"), [("sst2", "SST-2"), ("sst_2", "sst_2"), ("SST-2", "SST-2")])
def test_a_task_is_found_by_the_name_of_its_folder(tmp_path, name, found):
    (tmp_path / "SST-2").mkdir()
    assert find_folder(tmp_path, name).name == "SST-2"
    (tmp_path / "sst_2").mkdir()
    if name == "sst2":
        with pytest.raises(ValueError, match=r"holds several tasks sst2: it has none$"):
            find_folder(tmp_path, name)
    else:
        assert find_folder(tmp_path, name).name == found


def test_a_task_needs_the_splits_that_it_is_trained_and_scored_on(tmp_path):
    rows = [Example("1", "a"), Example("2", "b")]
    write_labelled(tmp_path / "own", own_task("own", "single-label", ("a", "b")), {"train": rows}, Numbers())
    with pytest.raises(ValueError, match=r"own has no split valid: it has train$"):
        read_task(tmp_path / "own")
    tested = replace(own_task("own", "single-label", ("a", "b")), test_sets={"test": "test"})
    write_labelled(tmp_path / "tested", tested, {"train": rows, "valid": rows}, Numbers())
    with pytest.raises(ValueError, match=r"tested has no split test: it has train, valid$"):
        read_task(tmp_path / "tested")


def test_an_own_task(pretrained, tmp_path, capsys):
    """No file but its data: four classes, trained by its epochs, the checkpoint chosen by macro F1, a test set."""
    sizes = {"train": 400, "valid": 40, "test": 30}
    lines = {name: filter(None, sentences(rows, seed=rows).splitlines()) for name, rows in sizes.items()}
    splits = {name: [Example(line, line.split()[2]) for line in of_split] for name, of_split in lines.items()}
    task = replace(own_task("animals", "single-label"), test_sets={"test": "test"})
    tokenizer = load_tokenizer(find_tokenizer(pretrained / "runs/tiny"))
    write_labelled(tmp_path / "data/animals", task, splits, tokenizer)
    words = [pretrained / "runs/tiny", "--data", tmp_path / "data", "--tasks", "animals"]
    words += ["--out", tmp_path / "out", "--seeds", 3, "--learning-rates", 0.01, "--metric", "macro_f1"]
    main(["finetune", *map(str, words), "dataset.num_workers=0"])
    lines = capsys.readouterr().out.splitlines()
    header, *rows = [line.split(" | ") for line in lines if line.startswith(("| task", "| animals"))]
    metrics = ("accuracy", "macro F1", "Matthews")
    assert [row[:2] for row in rows] == [
        [f"| {name}", own] for name in ("animals", "animals (test)") for own in metrics
    ]
    baseline = header.index("TF-IDF + linear SVM")
    assert all(float(row[baseline]) > 75 for row in rows), "the baseline is scored on both"
    folder = tmp_path / "out/animals/seed3"
    assert read_tsv(folder / "predictions-valid.tsv")[0].keys() == {"label", "prediction", "bird", "cat", "dog", "fish"}
    options = read_run(folder).provenance.configuration
    assert options["optimization.max_update"] == 130 and options["lr_scheduler.warmup_updates"] == 8
    assert options["checkpoint.best_checkpoint_metric"] == "macro_f1"
    (result,) = json.loads((tmp_path / "out/results.json").read_text())["runs"]
    assert result["score"] == result["scores"]["valid"]["macro_f1"] > 75
    predicted = read_tsv(folder / "predictions-test.tsv")
    right = sum(row["label"] == row["prediction"] for row in predicted) / len(predicted)
    assert result["scores"]["test"]["accuracy"] == pytest.approx(100 * right) and len(predicted) == 30
