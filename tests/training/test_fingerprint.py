"""The fingerprint of a run, and the digests in it. The command lines: test_training.py."""

import hashlib
import json
import os
import shutil
from argparse import Namespace
from dataclasses import replace
from functools import cache

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.digests import digest_file, digest_folder
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.fingerprint import RunFingerprint, digest_data
from tests.helpers.configs import composed

pytestmark = pytest.mark.slow


def test_a_composition_is_that_of_fairseq_hydra_train():
    overrides = ["task.data=D", "checkpoint.finetune_from_model=C", "checkpoint.save_dir=S", "recipe=sts_b"]
    overrides += ["model=tiny_512", "lr_scheduler=inverse_sqrt", "optimization.update_freq=[2]"]
    expected = composed("finetune", "finetune", *overrides)
    expected.common.user_dir = ""  # ${hydra:…}, which needs a --config-dir
    options = compose_configuration("finetune/finetune", overrides)
    options["common"]["user_dir"] = ""
    assert options == OmegaConf.to_container(expected, resolve=True, enum_to_str=True)


@cache
def base(*choices):
    """The configuration of a pretraining with choices from groups."""
    cfg = composed("pretrain", "tiny_512", "task.data=D", "checkpoint.save_dir=S", *choices)
    cfg.common.user_dir = ""
    OmegaConf.resolve(cfg)
    return cfg


@pytest.fixture
def fingerprint(tmp_path):
    """Return a function that returns the fingerprint of a training in a checkpoint."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_text("text")

    def of_training(*words):
        choices = [word for word in words if "." not in word.partition("=")[0]]
        options = OmegaConf.from_dotlist([word for word in words if word not in choices])
        cfg = OmegaConf.merge(base(*choices), {"task": {"data": str(tmp_path / "data")}}, options)
        return RunFingerprint.of_json(json.loads(json.dumps(RunFingerprint.of_training(cfg, None).as_json())))

    return of_training


def test_a_run_resumes_with(fingerprint):
    before = fingerprint()
    for words in (
        ["optimization.max_update=2000", "optimization.stop_time_hours=1", "lr_scheduler.total_num_update=3000"],
        ["lr_scheduler.warmup_updates=7", "optimizer=adam", "dataset.num_workers=5", "model.compile_layers=true"],
        ["dataset.validate_interval_updates=7", "dataset.batch_size_valid=3", 'dataset.valid_subset="valid,test"'],
        ["checkpoint.save_interval_updates=7", "task.save_interval_minutes=1", "dataset.disable_validation=true"],
        ["common.log_format=json", "common.tensorboard_logdir=elsewhere", "common.cpu=true", "checkpoint.save_dir=T"],
        ["distributed_training.distributed_world_size=2", "dataset.batch_size=1"],
        ["dataset.batch_size=1", "optimization.update_freq=[2]", "model.checkpoint_activations=true"],
    ):
        assert before.differences(fingerprint(*words)) == ""


def test_a_run_is_another_with(fingerprint, tmp_path):
    before = fingerprint()
    for word, difference in {
        "model.attention=softmax": "model.attention was linformer, is softmax",
        "optimization.lr=[0.0003]": "optimization.lr was [0.001], is [0.0003]",
        "task.mask_prob=0.4": "task.mask_prob was 0.15, is 0.4",
        "precision=bf16": "task.bfloat16 was auto, is yes",
        "dataset.batch_size=4": "was 2, is 4",
        "checkpoint.best_checkpoint_metric=ppl": "checkpoint.best_checkpoint_metric was loss, is ppl",
        "dataset.valid_subset=test": "was valid, is test",
    }.items():
        assert difference in before.differences(fingerprint(word))
    differences = before.differences(fingerprint("+preset=near_and_far", "common.seed=2"))
    assert differences.count(" was ") == 3 and differences.endswith("more options")
    (tmp_path / "data" / "train.bin").write_text("next")
    assert "data" in before.differences(fingerprint()) and before.data != fingerprint().data


def test_options_of_other_versions_have_their_defaults(fingerprint):
    before = fingerprint("optimizer=muon")
    options = {**before.configuration, "task.mask_prob_end": None, "task.train_rows": None}
    options |= {"dataset.max_tokens": 3, "criterion.teacher": "one.pt"}  # no longer compared
    del options["optimizer.embedding_lr_multiplier"]
    earlier = replace(before, configuration=options)
    assert earlier.differences(before) == ""
    changed = fingerprint("optimizer=muon", "optimizer.embedding_lr_multiplier=10")
    assert "embedding_lr_multiplier" in earlier.differences(changed)
    removed = replace(before, configuration={**options, "task.mask_prob_end": 0.1})
    assert "task.mask_prob_end was 0.1" in removed.differences(before)


def test_rows_and_tokens_per_update_are_compared(fingerprint):
    both = fingerprint("dataset.batch_size=8", "dataset.max_tokens=64")
    halves = ["dataset.batch_size=4", "dataset.max_tokens=32", "optimization.update_freq=[2]"]
    assert both.differences(fingerprint(*halves)) == ""
    assert "was 64, is 128" in both.differences(fingerprint(*halves, "dataset.max_tokens=64"))
    assert "was 64, is None" in both.differences(fingerprint("dataset.batch_size=8"))


def test_a_teacher_is_compared_by_content(fingerprint, tmp_path):
    for name in ("one", "other"):
        (tmp_path / f"{name}.pt").write_text(name)
    shutil.copy(tmp_path / "one.pt", tmp_path / "moved.pt")
    one, moved, other = (
        fingerprint("criterion=masked_lm_distillation", f"criterion.teacher={tmp_path / name}.pt")
        for name in ("one", "moved", "other")
    )
    assert one.differences(moved) == "" and "criterion.teacher" in one.differences(other)


def test_the_fingerprint_of_a_command(tmp_path):
    """Content is compared, not paths: of the data, and of the initial checkpoint of either option."""
    for name in ("data", "moved"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
        (tmp_path / f"{name}.pt").write_text("weights")

    def of_command(data, *more):
        words = ["recipe=rte", "checkpoint.finetune_from_model=null", "model=tiny_512", f"task.data={tmp_path / data}"]
        return RunFingerprint.of_command("finetune/finetune", [*words, *more])

    name = "distributed_training.distributed_world_size"  # by default that of the machine
    first, moved = of_command("data", "checkpoint.save_dir=/a"), of_command("moved", "checkpoint.save_dir=/b")
    assert first == moved and first.differences(moved) == "" and first.checkpoint is None
    changed = of_command("data", "optimization.max_update=7", f"{name}=2")
    assert "max_update" in first.differences(changed)
    assert name not in first.configuration and changed.configuration[name] == 2
    initial = [of_command("data", f"checkpoint.restore_file={tmp_path / name}.pt") for name in ("data", "moved")]
    assert initial[0] == initial[1] and initial[0].checkpoint == digest_file(tmp_path / "data.pt")
    assert "checkpoint" in first.differences(initial[0])


def test_a_digest_is_of_the_content_only(tmp_path, monkeypatch):
    file = tmp_path / "a" / "x.pt"
    file.parent.mkdir()
    file.write_bytes(b"1" * 3000)
    digest, of_folder = digest_file(file), digest_folder(file.parent)
    assert digest == hashlib.sha256(b"1" * 3000).hexdigest()
    os.utime(file, (1, 1))
    (tmp_path / "a").rename(tmp_path / "b")
    file = tmp_path / "b" / "x.pt"
    (file.parent / ".DS_Store").touch()
    assert (digest_file(file), digest_folder(file.parent)) == (digest, of_folder)
    file.write_bytes(b"1" * 2999 + b"2")
    os.utime(file, (1, 1))  # of the same size and time
    assert digest_file(file) != digest and digest_folder(file.parent) != of_folder
    monkeypatch.setattr("fairseq_linformer.digests._LARGE", 1000)  # blocks of larger files are read
    monkeypatch.setattr("fairseq_linformer.digests._BLOCK", 10)
    digests = set()
    for content in (b"1" * 2000, b"1" * 2001, b"2" + b"1" * 1999, b"1" * 1999 + b"2"):
        file.write_bytes(content)
        digests.add(digest_folder(file.parent))
    assert len(digests) == 4


def test_several_folders_are_digested_in_their_order(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.bin").write_text(name)
    a, b = (str(tmp_path / name) for name in "ab")
    assert digest_data(a) == digest_folder(tmp_path / "a")
    assert len({digest_data(a), digest_data(b), digest_data(f"{a}:{b}"), digest_data(f"{b}:{a}")}) == 4


def test_other_data_and_runs_in_subfolders_are_skipped(tmp_path):
    """Otherwise a run could not resume after tasks were prepared in its corpus, or if its own folder is there."""
    (tmp_path / "train.bin").write_text("x")
    before = digest_data(str(tmp_path))
    for mark in ("task.json", "corpus.json", "shards.json", ".lock"):
        folder = tmp_path / "subfolder" / mark.strip(".")
        folder.mkdir(parents=True)
        for name in (mark, "train.bin"):
            (folder / name).write_text(name)
    assert digest_data(str(tmp_path)) == before != digest_folder(tmp_path)


def test_a_component_without_a_dataclass_is_compared_by_name(tmp_path):
    cfg = OmegaConf.merge(base(), {"task": {"data": str(tmp_path)}})
    cfg._set_flag("allow_objects", True)
    cfg.optimizer = Namespace(_name="sgd", momentum=0.9, data="D")
    options = RunFingerprint.of_training(cfg, None).configuration
    assert [name for name in options if name.startswith("optimizer.")] == ["optimizer._name"]
