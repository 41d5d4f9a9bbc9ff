"""Sweeps: trainings of `linformer finetune`, their options, repetition and rejection."""

import contextlib
import csv
import hashlib
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from hydra.utils import instantiate

from fairseq_linformer.checkpoint import find_tokenizer, read_checkpoint
from fairseq_linformer.cli.command import main
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.digests import digest_folder
from fairseq_linformer.errors import UserError
from fairseq_linformer.files import lock
from fairseq_linformer.finetune import sweep as sweep_module
from fairseq_linformer.finetune.report import write_results
from fairseq_linformer.finetune.sweep import (
    Result,
    Run,
    Setting,
    Sweep,
    find_folder,
    read_scores,
    read_task,
)
from fairseq_linformer.training import launch
from fairseq_linformer.training.launch import read_run, recipe_name
from tests.helpers import ROOT
from tests.helpers.commands import forked, run
from tests.helpers.configs import composed
from tests.helpers.inputs import Numbers, sentences, write_official, write_sst_2

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
SIZES |= {"max_positions": 32, "projected_length": "[8,6]", "sharing": "key-value", "local_conv": 3}
ROWS = {"train": 400, "valid": 40, "test": 30}  # of animals


@contextlib.contextmanager
def forked_training(command, environment, log):
    """A training as ``launch._started`` starts it, but forked from a process that has imported torch and fairseq."""
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    with forked(command, Path(log.name), cwd=Path.cwd(), **environment) as process:
        process.join()
    yield SimpleNamespace(poll=lambda: process.exitcode, returncode=process.exitcode)


@pytest.fixture(scope="module", autouse=True)
def fast_trainings():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_started", forked_training)
        yield


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory) -> Path:
    """A folder with a run of two updates in runs/, and in tasks/ two tasks from an archive and an own one, animals."""
    folder = tmp_path_factory.mktemp("pretrained")
    hydra = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "tiny_512", "optimization.max_update=2"]
    small = [*(f"model.{name}={value}" for name, value in SIZES.items()), "task.tokens_per_sample=32"]
    small += ["lr_scheduler.warmup_updates=1", "dataset.num_workers=0", "model.dropout=0.2"]
    run("fairseq-hydra-train", *hydra, *small, f"task.data={corpus}", "checkpoint.save_dir=runs/tiny", cwd=folder)
    write_sst_2(folder / "glue")
    write_official(folder / "glue", "STS-B", rows=48)
    archive = shutil.make_archive(str(folder / "glue"), "zip", folder / "glue")
    words = ["--source", archive, "--tasks", "SST-2", "STS-B", "--tokenizer", "runs/tiny", "--out", "tasks"]
    run("linformer", "prepare", "glue", *words, cwd=folder)
    lines = {name: filter(None, sentences(rows, seed=rows).splitlines()) for name, rows in ROWS.items()}
    splits = {name: [Example(line, line.split()[2]) for line in of_split] for name, of_split in lines.items()}
    animals = replace(own_task("animals", "single-label"), test_sets={"test": "test"})
    write_labelled(folder / "tasks/animals", animals, splits, load_tokenizer(find_tokenizer(folder / "runs/tiny")))
    return folder


def command(*more) -> list:
    options = ["runs/tiny", "--data", "tasks", "--epochs", 4, "--jobs", 2]
    return ["linformer", "finetune", *options, *more, "dataset.num_workers=0", "precision=float32"]


def finetune(*words) -> None:
    """Run the command in this process."""
    main([str(word) for word in command(*words)[1:]])


ANIMALS = ("--tasks", "animals", "--metric", "macro_f1", "--seeds", 1, 2)


@pytest.fixture(scope="module")
def finished(pretrained) -> Path:
    """An own task over two seeds, with checkpoints by macro F1; STS-B by another command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(pretrained)
        finetune(*ANIMALS, "--learning-rates", 0.01)
        finetune("--tasks", "sts_b", "--seeds", 1, "--learning-rates", 0.01)
    return pretrained / "runs" / "finetune"


def read_tsv(path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def read_results(out) -> dict:
    return json.loads((out / "results.json").read_text())


def test_a_table_and_its_metrics_of_the_saved_predictions(finished, pretrained):
    lines = (finished / "results.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[2:10]]
    assert [row[0] for row in rows] == ["STS-B"] * 2 + ["animals"] * 3 + ["animals (test)"] * 3
    assert [row[1] for row in rows] == ["Pearson", "Spearman", *["accuracy", "macro F1", "Matthews"] * 2]
    counts = [(row[4], row[5].split(" / ")[1], "±" in row[2]) for row in rows[1::3]]
    assert counts == [("1", "48", False), ("2", "40", True), ("2", "30", True)]
    assert all(float(row[8]) > 75 for row in rows[2:]), "the baseline is scored on both splits"
    results, checkpoint = read_results(finished), pretrained / "runs/tiny/checkpoint_best.pt"
    assert results["model"]["projected_length"] == [8, 6]
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert results["checkpoint"] == {"path": str(checkpoint), "sha256": digest}

    for result in results["runs"]:
        folder, scores = finished / result["folder"], result["scores"]["valid"]
        made_by = {"checkpoint": digest, "data": digest_folder(pretrained / "tasks" / result["task"])}
        assert made_by.items() <= result["made_by"].items()
        for split in result["scores"]:
            rows = read_tsv(folder / f"predictions-{split}.tsv")
            if result["task"] == "animals":
                right = sum(row["label"] == row["prediction"] for row in rows)
                assert result["scores"][split]["accuracy"] == 100 * right / ROWS[split] and len(rows) == ROWS[split]
                names = ("bird", "cat", "dog", "fish")
                assert all(sum(float(row[name]) for name in names) == pytest.approx(1, abs=1e-5) for row in rows)
            else:
                assert {row["label"] for row in rows} == {"5.0", "0.0", "2.5"}, "multiplied by the scale"

        lines = (folder / "hydra/hydra_train.log").read_text().splitlines()
        logged = [json.loads(line[line.index("{") :]) for line in lines if '"valid_loss"' in line]
        best = read_checkpoint(folder / "checkpoint_best.pt")["optimizer_history"][-1]["num_updates"]
        (row,) = (row for row in logged if row["valid_num_updates"] == str(best))
        for name, value in scores.items():
            assert float(row[f"valid_{name}"]) == pytest.approx(value, abs=0.1)

    scores = [run["score"] for run in results["runs"] if run["task"] == "animals"]
    assert scores == [run["scores"]["valid"]["macro_f1"] for run in results["runs"][1:]]
    assert max(scores) > 50, "a shifted label or a wrong head would give about 25"
    options = read_run(finished / "animals/seed1").fingerprint.configuration
    assert options["optimization.max_update"] == 52 and options["lr_scheduler.warmup_updates"] == 3


def test_complete_runs_are_not_repeated_and_other_settings_are_rejected(finished, pretrained, monkeypatch, capsys):
    monkeypatch.chdir(pretrained)
    logs = {path: path.stat().st_mtime_ns for path in finished.rglob("train.log")}
    before = {name: (finished / name).read_text() for name in ("results.md", "results.json")}
    finetune(*ANIMALS, "--learning-rates", "0.01")
    printed = capsys.readouterr().out
    assert before["results.md"] in printed
    assert printed.splitlines()[-1] == f"next: linformer predict {finished}/animals/seed1 --input FILE"
    with pytest.raises(SystemExit, match="animals/seed1"):
        finetune(*ANIMALS, "--learning-rates", "0.02")
    assert {path: path.stat().st_mtime_ns for path in logs} == logs
    assert {name: (finished / name).read_text() for name in before} == before


@pytest.mark.exhaustive
def test_runs_by_a_launcher_of_hydra(pretrained, tmp_path):
    """Local jobs of submitit, which run as those of Slurm do: log and checkpoints are found where they wrote them."""
    options = ("--tasks", "sst_2", "--seeds", "1", "--out", tmp_path, "--launcher", "submitit_local")
    printed = run(*command(*options, "--learning-rates", "0.01"), "hydra.launcher.timeout_min=5", cwd=pretrained)
    assert "| SST-2 | accuracy | " in printed
    assert list(tmp_path.glob("SST-2/seed1/.submitit/*/*_log.out"))


def test_slurm_is_configured():
    words = ["task.data=D", "checkpoint.finetune_from_model=C", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"]
    launcher = composed("finetune", "finetune", *words, with_hydra=True).hydra.launcher
    assert (launcher.partition, launcher.gpus_per_node, launcher.nodes, launcher.max_num_timeout) == ("gpu", 1, 1, 3)
    assert launcher.submitit_folder.endswith("/.submitit/%j")
    assert type(instantiate(launcher)).__name__ == "SlurmLauncher"


def sweep_to(out, folder, tasks, seeds=(1,), **options) -> Sweep:
    """A sweep of the pretrained model over the tasks in a folder."""
    return Sweep(folder / "runs/tiny", folder / "tasks", out, tasks, seeds, **options)


def plans(sweep) -> list[Run]:
    """The runs of STS-B with the first seed."""
    return [sweep.plan("STS-B", 1, setting) for setting in sweep.settings("STS-B")]


@pytest.mark.parametrize(
    ("rows", "options", "updates", "warm_up"),
    [
        (47, {}, [30], [2]),  # a part of the official rows: ten epochs, not the recipe's updates
        (48, {"batch_sizes": (16, 32), "epochs": 25}, [75, 50], [4, 3]),
        (48, {"batch_sizes": (4,), "overrides": ["optimization.update_freq=[4]"]}, [3598], [214]),
        (48, {"batch_sizes": (4,), "overrides": ["distributed_training.distributed_world_size=4"]}, [3598], [214]),
    ],
)
def test_updates_and_warm_up_follow_the_rows_epochs_and_batches(
    pretrained, monkeypatch, rows, options, updates, warm_up
):
    monkeypatch.setattr(sweep_module, "is_whole", lambda name, count: name == "STS-B" and rows == 48)
    sweep = sweep_to(Path("/o"), pretrained, ["sts-b"], **options)
    assert [planned.updates for planned in plans(sweep)] == updates
    for planned, expected in zip(plans(sweep), warm_up, strict=True):
        overrides = sweep.training(planned).overrides
        assert f"lr_scheduler.warmup_updates={expected}" in overrides
        assert ("optimization.max_epoch=0" in overrides) == (rows < 48 or "epochs" in options)


@pytest.fixture
def accuracies(monkeypatch) -> dict[float, float]:
    """Accuracies by learning rate that runs have, without a training; a run with another rate fails."""
    values: dict[float, float] = {}

    def train_and_score(run, *_):
        if run.setting.rate not in values:
            raise RuntimeError("out of memory")
        return Result(run, {"valid": {"accuracy": values[run.setting.rate] + run.seed}})

    monkeypatch.setattr(sweep_module, "train_and_score", train_and_score)
    monkeypatch.setattr(sweep_module, "fit_baselines", lambda _: None)
    monkeypatch.setattr(launch.Training, "is_complete", lambda _: True)
    monkeypatch.setattr(Sweep, "_check_overrides", lambda *_: {})
    return values


def test_the_best_setting_trains_the_other_seeds(pretrained, tmp_path, accuracies):
    accuracies |= {1e-3: 60.0, 2e-3: 80.0}
    results, search = sweep_to(tmp_path, pretrained, ["sst_2"], [5, 6, 7], rates=(1e-3, 2e-3, 3e-3)).run()
    assert [(result.run.setting.rate, result.error) for result in search] == [(1e-3, ""), (3e-3, "out of memory")]
    assert [(result.run.seed, result.run.setting.rate) for result in results] == [(5, 2e-3), (6, 2e-3), (7, 2e-3)]
    assert results[1].run.folder == tmp_path / "SST-2" / "lr0.002-batch32" / "seed6"


@pytest.mark.parametrize(
    ("narrow", "options", "rates", "is_warned"),
    [
        (512, {"search": True}, [1e-4, 5e-4, 2e-3], False),
        (32, {"search": True}, [1e-5, 2e-5, 3e-5], False),
        (512, {}, [1e-5], True),
    ],
)
def test_rates_suit_the_width_of_the_model(
    narrow, options, rates, is_warned, pretrained, tmp_path, monkeypatch, caplog, accuracies
):
    """With the recipe's 1e-5, a model of d = 128 stays near the majority class."""
    monkeypatch.setattr(sweep_module, "NARROW", narrow)
    results, search = sweep_to(tmp_path, pretrained, ["sst_2"], [1], **options).run()
    tried = sorted((result.run.setting.rate, result.run.setting.batch_size) for result in (*results, *search))
    assert tried == [(rate, size) for rate in rates for size in ((16, 32) if options else (32,))]
    assert ("--learning-rates" in caplog.text) == is_warned


def test_scores_of_another_run_or_of_other_metrics_are_computed_again(tmp_path):
    planned, made_by = Run(TASKS["RTE"], 1, Setting(1, 1), 1, tmp_path), {"data": "1"}
    assert read_scores(planned, made_by) is None
    expected = {"valid": {"accuracy": 80.5}}
    for scores in (expected, {"valid": {}}, {"valid": {"accuracy": 80.5, "f1": 80.5}}, {"vali": {"accuracy": 8}}):
        (tmp_path / "scores.json").write_text(json.dumps({"made_by": made_by, "scores": scores}))
        assert read_scores(planned, made_by) == (expected if scores == expected else None)
        assert read_scores(planned, {"data": "2"}) is None


def repeat(folder, task) -> list[tuple]:
    """The task, the seed and the error of each run in results.json after the command of `finished`."""
    options = {"rates": [0.01], "epochs": 4, "overrides": ["dataset.num_workers=0", "precision=float32"]}
    options |= {"seeds": [1, 2], "metric": "macro_f1"} if task == "animals" else {"seeds": [1]}
    sweep = sweep_to(folder / "runs/finetune", folder, [task], **options)
    write_results(sweep, *sweep.run())
    return [(run["task"], run["seed"], run["error"]) for run in read_results(sweep.out)["runs"]]


@pytest.fixture
def moved(finished, pretrained, tmp_path, monkeypatch) -> Path:
    """A copy of all that `finished` made, in which nothing may be trained."""
    shutil.copytree(pretrained, tmp_path / "copy")
    monkeypatch.setattr(launch, "_started", None)
    return tmp_path / "copy"


DONE = [("STS-B", 1, ""), ("animals", 1, ""), ("animals", 2, "")]


def test_a_lost_report_is_written_again_and_replaced_data_is_rejected(moved):
    out = moved / "runs/finetune"
    table = read_results(out)["table"]
    (out / "results.json").write_text("{")
    assert repeat(moved, "animals") == DONE[1:]
    (out / "STS-B/seed1/scores.json").unlink()
    assert repeat(moved, "STS-B") == DONE
    assert read_results(out)["table"] == table

    labels = moved / "tasks/STS-B/label/train.label"
    first, *following = labels.read_text().splitlines()
    labels.write_text("\n".join([*following, first]) + "\n")  # of the same length, and older than the runs
    with pytest.raises(UserError, match=r"STS-B/seed1 .*data"):
        repeat(moved, "STS-B")
    assert read_results(out)["table"] == table


def test_a_replaced_checkpoint_is_rejected_and_no_table_has_runs_of_both(moved, monkeypatch):
    checkpoint = moved / "runs/tiny/checkpoint_best.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "extra_state": {**state["extra_state"], "val_loss": 0.0}}, checkpoint)
    with pytest.raises(UserError, match=r"STS-B/seed1 .*checkpoint"):
        repeat(moved, "STS-B")
    shutil.rmtree(moved / "runs/finetune/STS-B")

    def fail(*_):
        raise OSError("out of memory")

    monkeypatch.setattr(launch, "_started", fail)
    assert repeat(moved, "STS-B") == [("STS-B", 1, "out of memory")]
    assert {row["task"] for row in read_results(moved / "runs/finetune")["table"]} == {"STS-B"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--tasks", "sst_2", "mrcp"], "mrcp"),
        (["--tasks", "sst_2", "--data", "tasks/SST-2"], "--data"),
        (["--tasks", "sst_2", "sts_b", "--metric", "accuracy"], "metric=accuracy"),
        (["--tasks", "sst_2", "++common.seed=5"], "common.seed=5"),
        (["--tasks", "sst_2", "task.truncate_to=9000"], "truncate_to=9000"),
        (["--tasks", "sst_2", "optimization.update_freq=[4,1]"], "optimization.update_freq"),
        (["--tasks", "sst_2", "optimization.rate=1"], "optimization.rate"),
        (["--tasks", "sst_2", "--out", "a${b}"], "a${b}"),
    ],
)
def test_options_that_cannot_work_are_rejected_before_any_work(pretrained, words, named, monkeypatch):
    monkeypatch.chdir(pretrained)
    with pytest.raises(SystemExit) as ended:
        finetune("--out", "runs/rejected", "--seeds", 1, *words)
    assert named in str(ended.value)
    assert not (pretrained / "runs" / "rejected").exists()


def test_options_of_the_user_reach_the_runs(pretrained, tmp_path):
    """The learning rate with every digit, in the folder's name too."""
    words = ["optimizer=adam", "lr_scheduler=inverse_sqrt", "model.dropout=0.3"]
    sweep = sweep_to(tmp_path, pretrained, ["sts_b"], overrides=words, metric="pearson", rates=[0.1 + 0.2, 1.0])
    planned, _ = plans(sweep)
    assert planned.folder.parent.name == "lr0.30000000000000004-batch16"
    sweep._check([planned])
    options = sweep.training(planned).fingerprint.configuration
    assert (options["model.dropout"], options["lr_scheduler._name"]) == (0.3, "inverse_sqrt")
    assert options["checkpoint.best_checkpoint_metric"] == "pearson" and options["optimization.lr"] == [0.1 + 0.2]


def test_two_processes_do_not_write_reports_in_one_folder(pretrained, finished, tmp_path):
    """Otherwise the second replaces good results by its own failures."""
    sweep = sweep_to(tmp_path, pretrained, ["sst_2"])
    with (tmp_path / ".lock").open("a") as stream, ProcessPoolExecutor(1, get_context("fork")) as pool:
        lock(stream, "")
        with pytest.raises(UserError, match=str(tmp_path)):
            pool.submit(sweep._lock_folder).result()
    assert (finished / ".lock").is_file()


def test_a_task_with_another_vocabulary_is_rejected(pretrained, tmp_path):
    shutil.copytree(pretrained / "tasks", tmp_path / "tasks")
    dictionary = tmp_path / "tasks" / "STS-B" / "dict.txt"
    first, second, *following = dictionary.read_text().splitlines()
    dictionary.write_text("\n".join([second, first, *following]) + "\n")  # as many pieces, other numbers
    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    with pytest.raises(UserError, match=r"STS-B has another dictionary"):
        Sweep(checkpoint, tmp_path / "tasks", tmp_path / "out", ["sst_2", "sts_b"], [1])


def test_every_known_task_has_a_recipe():
    """With fairseq's validation on the dev sets of its record; except AX, which has no training set."""
    for task in TASKS.values():
        if task.trained_as is None:
            recipe = yaml.safe_load((ROOT / f"configs/finetune/recipe/{recipe_name(task.name)}.yaml").read_text())
            assert recipe_name(task.name) != "own"
            assert recipe.get("dataset", {}).get("valid_subset", "valid").split(",") == [*task.dev_sets]
    assert recipe_name("reviews") == "own"


def test_a_task_is_found_by_the_name_of_its_folder(tmp_path):
    for name in ("SST-2", "sst_2", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.json").touch()
    assert find_folder(tmp_path, "sst_2").name == "sst_2" and find_folder(tmp_path, "SST-2").name == "SST-2"
    with pytest.raises(UserError, match="several tasks sst2"):
        find_folder(tmp_path, "sst2")
    shutil.rmtree(tmp_path / "sst_2")
    assert find_folder(tmp_path, "sst2").name == "SST-2"


@pytest.mark.parametrize("missing", ["valid", "test"])
def test_a_task_needs_the_splits_that_it_is_trained_and_scored_on(tmp_path, missing):
    task = replace(own_task("own", "single-label", ("a", "b")), test_sets={"test": "test"})
    splits = {name: [Example("1", "a")] for name in ("train", "valid", "test") if name != missing}
    write_labelled(tmp_path / "own", task, splits, Numbers())
    with pytest.raises(UserError, match=f"no split {missing}"):
        read_task(tmp_path / "own")
