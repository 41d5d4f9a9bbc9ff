"""scripts/finetune.py: from an official archive to the table, what is run again and what is refused."""

import csv
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from fairseq_linformer import finetuning
from fairseq_linformer.checkpoint import read_checkpoint
from fairseq_linformer.config import LinformerRobertaConfig
from fairseq_linformer.data.glue import TASKS
from fairseq_linformer.finetuning import FineTuning, check_log, model_overrides, read_recipe
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.results import Result, Run, Setting
from fairseq_linformer.running import RUN_FILE
from tests.conftest import ROOT, run, sentences, write_sst_2
from tests.test_configs import composed

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
SIZES |= {"max_positions": 32, "projected_length": "[8,6]", "sharing": "key-value", "local_conv": 3}


def write_sts_b(source: Path) -> None:
    """Pairs that are alike score 5, others 1, in the columns of the official files."""
    chance = random.Random(1)
    (source / "STS-B").mkdir(parents=True)
    lines = [line for line in sentences(200, seed=3).splitlines() if line]
    for file in TASKS["STS-B"].splits.values():
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
    words = ["--source", archive, "--tasks", "SST-2,STS-B", "--tokenizer", "runs/tiny", "--out", "tasks"]
    run("scripts/prepare_glue.py", *words, cwd=folder)
    return folder


def command(*more) -> list:
    options = ["--checkpoint", "runs/tiny", "--data", "tasks", "--epochs", 4, "--jobs", 2]
    return ["scripts/finetune.py", *options, *more, "dataset.num_workers=0"]


@pytest.fixture(scope="module")
def finished(pretrained) -> Path:
    """Both tasks over two seeds, by the command that users type."""
    run(*command("--tasks", "sst_2,sts_b", "--seeds", "1,2", "--learning-rates", "0.01"), cwd=pretrained)
    return pretrained / "runs" / "finetune"


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t"))


def test_the_table(finished):
    lines = (finished / "results.md").read_text().splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| SST-2", "accuracy"],
        ["| STS-B", "Pearson"],
        ["| STS-B", "Spearman"],
    ]
    assert "±" in lines[2] and lines[2].endswith("| 2 | 92.4 to 93.4 |")
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
    assert table in run(*command("--tasks", "sts_b", "--seeds", "1,2", "--learning-rates", "0.01"), cwd=pretrained), (
        "the other task's rows stay"
    )
    options = ["--tasks", "SST-2,stsb", "--seeds", "1,2"]
    assert table in run(*command(*options, "--learning-rates", "0.01"), cwd=pretrained)
    printed = run(*command(*options, "--learning-rates", "0.02"), cwd=pretrained, status=1)
    assert "SST-2/seed1 holds a run with other settings (optimization.lr=[0.01], optimization.lr=[0.02])" in printed
    assert {path: path.stat().st_mtime_ns for path in logs} == logs
    assert {name: (finished / name).read_text() for name in before} == before, "nothing is lost by it"


def test_a_failing_run_is_named_and_the_others_go_on(pretrained, tmp_path):
    shutil.copytree(pretrained / "tasks", tmp_path / "tasks")
    shutil.copytree(pretrained / "runs" / "tiny", tmp_path / "runs" / "tiny")
    (tmp_path / "tasks" / "STS-B" / "label" / "train.label").unlink()
    options = ("--tasks", "sts_b,sst_2", "--seeds", "1", "--learning-rates", "0.01")
    printed = run(*command(*options), cwd=tmp_path, status=1)
    assert "STS-B, lr0.01-batch16, seed 1 failed: fairseq-hydra-train ended with status 1" in printed
    assert "error: 1 of 2 runs failed; repeat the command to run them again" in printed
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


def test_no_weights_no_dropout(monkeypatch):
    config = resolve_config(LinformerRobertaConfig(), 64)
    assert "model.attention_dropout=0" not in list(model_overrides(config))
    monkeypatch.setattr(finetuning.get_attention("linformer"), "HAS_WEIGHTS", False)
    assert "model.attention_dropout=0" in list(model_overrides(config)), "the recipe's would be refused"


def test_slurm_is_configured():
    words = ["task.data=D", "checkpoint.finetune_from_model=C", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"]
    launcher = composed("finetune", "rte", *words, with_hydra=True).hydra.launcher
    assert launcher._target_.endswith("submitit_launcher.SlurmLauncher")
    assert (launcher.partition, launcher.gpus_per_node, launcher.nodes, launcher.max_num_timeout) == ("gpu", 1, 1, 3)
    assert launcher.submitit_folder.endswith("/.submitit/%j")
    assert type(instantiate(launcher)).__name__ == "SlurmLauncher"


@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": "256..64", "sharing": "key-value"},
        {"projection": "conv", "projected_length": 64, "sharing": "key-value", "encoder_normalize_before": True},
        {"projection": "random", "freeze_projection": False, "projection_init": "normal", "encoder_layers": 6},
        {"attention": "softmax", "local_conv": 5, "activation_fn": "relu", "layernorm_embedding": False},
    ],
)
def test_overrides_build_the_checkpoints_model(options):
    given = {**vars(LinformerRobertaConfig()), "_name": "linformer_roberta_small", "dropout": 0.0, **options}
    trained = resolve_config(OmegaConf.create(given), 1024)
    words = ["task.data=D", "checkpoint.finetune_from_model=C", *model_overrides(trained)]
    built = resolve_config(composed("finetune", "rte", *words).model, 1024)
    assert built == replace(trained, dropout=0.1), "dropout is the recipe's"


def test_epochs_and_batch_sizes_change_the_updates(pretrained):
    checkpoint, tasks = pretrained / "runs/tiny/checkpoint_best.pt", pretrained / "tasks"
    options = {"batch_sizes": (16, 32), "overrides": ["a=b"]}
    tuning = FineTuning(checkpoint, tasks, Path("/o"), ["sts-b"], [1], **options)
    small, large = (tuning._run("STS-B", 1, setting) for setting in tuning._settings("STS-B"))
    assert (small.updates, large.updates) == (3598, 1799), "the YAML's at its batch of 16, and as many epochs"
    assert "lr_scheduler.warmup_updates=214" in small.overrides and "lr_scheduler.warmup_updates=107" in large.overrides
    assert small.folder == Path("/o/STS-B/lr2e-05-batch16/seed1") and small.overrides[-1] == "a=b"
    tuning = FineTuning(checkpoint, tasks, Path("/o"), ["sts-b"], [1], epochs=25, **options)
    small, large = (tuning._run("STS-B", 1, setting) for setting in tuning._settings("STS-B"))
    assert (small.updates, large.updates) == (75, 38), "of 48 rows"
    assert "lr_scheduler.warmup_updates=4" in small.overrides and "optimization.max_epoch=0" in small.overrides


def test_the_best_setting_trains_the_other_seeds(pretrained, tmp_path, monkeypatch):
    figures = {1e-3: 60.0, 2e-3: 80.0, 3e-3: 90.0}

    def train_and_score(run, data, launcher):
        if run.setting.rate == 3e-3:
            raise RuntimeError("out of memory")
        return Result(run, {"valid": {"accuracy": figures[run.setting.rate] + run.seed}})

    monkeypatch.setattr(finetuning, "train_and_score", train_and_score)
    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    tuning = FineTuning(checkpoint, pretrained / "tasks", tmp_path, ["sst_2"], [5, 6, 7], tuple(figures))
    results, search = tuning.run()
    assert [(result.run.setting.rate, result.error) for result in search] == [(1e-3, ""), (3e-3, "out of memory")]
    assert [(result.run.seed, result.run.setting.rate) for result in results] == [(5, 2e-3), (6, 2e-3), (7, 2e-3)]
    assert results[1].run.folder == tmp_path / "SST-2" / "lr0.002-batch32" / "seed6"


def test_figures_that_are_not_fairseqs_are_an_error():
    run_of = Run("SST-2", 1, Setting(1, 1), 1, Path(), (), Path("f"))
    result = Result(run_of, {"valid": {"accuracy": 80.04}})
    log = [{"valid_num_updates": 5, "valid_accuracy": 70.0}, {"valid_num_updates": 10, "valid_accuracy": 80.0}]
    check_log(result, log, 10)
    with pytest.raises(
        ValueError, match=r"is 80\.04 by the saved predictions, but fairseq logged 70\.0 after 5 updates"
    ):
        check_log(result, log, 5)


def test_results_of_another_checkpoint_or_other_data_are_not_shown(finished, pretrained, tmp_path):
    shutil.copytree(pretrained, tmp_path / "copy")
    copy = tmp_path / "copy"
    os.utime(copy / "runs" / "tiny" / "checkpoint_best.pt", (2e9, 2e9))
    checkpoint, out = copy / "runs/tiny/checkpoint_best.pt", copy / "runs/finetune"
    tuning = FineTuning(checkpoint, copy / "tasks", out, ["sst_2"], [1], [0.01], (), 4, ["dataset.num_workers=0"])
    with pytest.raises(ValueError, match="holds a run with other settings"):  # the folder's name is one of them
        tuning.run()
    mark = out / "SST-2" / "seed1" / RUN_FILE
    mark.write_text(mark.read_text().replace(str(pretrained), str(copy)))
    with pytest.raises(ValueError, match=r"checkpoint_best\.pt is younger than the run in"):
        tuning.run()
    assert (copy / "runs" / "finetune" / "SST-2" / "seed1" / RUN_FILE).is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "sst_2,mrcp"], "error: task mrcp is unknown, known are: cola, sst_2, mrpc"),
        (["--tasks", "rte"], "RTE is no prepared task: it holds no classification.json"),
        (["--tasks", "sst_2", "--checkpoint", "runs/none.pt"], "error: there is no checkpoint runs/none.pt"),
        (["--tasks", "sst_2", "--learning-rates", "1e-4,x"], "1e-4,x is not allowed: numbers above 0"),
        (["--tasks", "sst_2", "--seeds", "1,1"], "1,1 is not allowed: numbers above -1, each once"),
        (["--tasks", "sst_2", "--epochs", "1,5"], "1,5 is not allowed: one number"),
        (["--tasks", "sst_2", "mrpc"], "error: mrpc is no override of Hydra's, NAME=VALUE"),
        (["--tasks", "sst_2", "optimization.lr=[1]"], "optimization.lr is set by --learning-rates"),
        (["--tasks", "sst_2", "hydra.launcher.partition=a"], "configures a launcher: --launcher names it"),
    ],
)
def test_what_is_refused_before_any_work(pretrained, words, message):
    status = 2 if "is not allowed" in message else 1
    printed = run(*command("--out", "runs/refused", *words), cwd=pretrained, status=status)
    assert message in printed.replace(f"{pretrained}/", "")
    assert not (pretrained / "runs" / "refused").exists()


def test_a_task_with_another_vocabulary_is_refused(pretrained, tmp_path):
    shutil.copytree(pretrained / "tasks", tmp_path / "tasks")
    dictionary = tmp_path / "tasks" / "STS-B" / "dict.txt"
    first, second, *others = dictionary.read_text().splitlines()
    dictionary.write_text("\n".join([second, first, *others]) + "\n")  # as many pieces, other numbers
    checkpoint = pretrained / "runs/tiny/checkpoint_best.pt"
    for tasks in (["sts_b"], ["sst_2", "sts_b"]):
        with pytest.raises(ValueError, match=r"STS-B has another vocabulary than .*: prepare it again"):
            FineTuning(checkpoint, tmp_path / "tasks", tmp_path / "out", tasks, [1])


def test_every_task_has_a_recipe():
    for task in finetuning.TASK_METRICS:
        recipe = read_recipe(task)
        assert recipe.task.num_classes >= 1 and recipe.optimization.max_update > recipe.lr_scheduler.warmup_updates > 0
