"""What a training is made of: composed as fairseq-hydra-train composes it, and told by content."""

import hashlib
import json
import os
from argparse import Namespace
from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.files import digest_file, digest_folder
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.provenance import Provenance, _own_flags
from tests.helpers.configs import composed

pytestmark = pytest.mark.slow

FINETUNE = ["task.data=D", "checkpoint.finetune_from_model=C", "checkpoint.save_dir=S"]


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ("pretrain/tiny_512", ["task.data=D", "checkpoint.save_dir=S"]),
        ("pretrain/base_4096", ["task.data=D", "checkpoint.save_dir=S", "optimization.update_freq=[2]"]),
        (
            "finetune/finetune",
            [*FINETUNE, "recipe=sts_b", "model=tiny_512", "common.seed=7", "lr_scheduler=inverse_sqrt"],
        ),
    ],
)
def test_it_composes_what_fairseq_hydra_train_composes(config, overrides):
    expected = composed(*config.split("/"), *overrides)
    expected.common.user_dir = ""  # ${hydra:…}: found where --config-dir names the folder
    found = compose_configuration(config, overrides)
    found["common"]["user_dir"] = ""
    assert found == OmegaConf.to_container(expected, resolve=True, enum_to_str=True)


def test_a_digest_is_of_the_content_alone(tmp_path):
    file = tmp_path / "a" / "x.pt"
    file.parent.mkdir()
    file.write_bytes(b"1" * 3_000_000)
    digest, of_folder = digest_file(file), digest_folder(file.parent)
    assert digest == hashlib.sha256(b"1" * 3_000_000).hexdigest()
    os.utime(file, (1, 1))
    (tmp_path / "a").rename(tmp_path / "b")
    file = tmp_path / "b" / "x.pt"
    (file.parent / ".DS_Store").touch()
    assert (digest_file(file), digest_folder(file.parent)) == (digest, of_folder)

    status = file.stat()
    file.write_bytes(b"1" * 2_999_999 + b"2")
    os.utime(file, (1, 1))  # as long, and as old, but written to
    assert file.stat().st_size == status.st_size and digest_file(file) != digest
    file.write_bytes(b"1" * 3_000_000)
    assert digest_folder(file.parent) == of_folder
    (file.parent / "sub").mkdir()
    (file.parent / "sub" / "y").touch()
    more = digest_folder(file.parent)
    (file.parent / "sub").rename(file.parent / "other")
    assert len({of_folder, more, digest_folder(file.parent)}) == 3, "names count, below the folder"


def test_what_a_run_is_made_of(tmp_path, monkeypatch):
    """Places do not count; what is in them does, and so does the checkpoint, by whichever option it is given."""
    for name in ("data", "moved"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
        (tmp_path / f"{name}.pt").write_text("weights")
    words = ["checkpoint.finetune_from_model=null", "model=tiny_512"]

    def made(data, *more):
        return Provenance.of("finetune/finetune", ["recipe=rte", *words, f"task.data={tmp_path / data}", *more])

    first = made("data", "checkpoint.save_dir=/a", "common.seed=1")
    moved = made("moved", "checkpoint.save_dir=/b")
    assert first == moved and first.changes(moved) == "" and first.checkpoint is None
    assert Provenance(**json.loads(json.dumps(first.as_json()))) == first, "as run.json has it"
    other_seed = made("data", "common.seed=2")
    assert first.changes(other_seed) == "common.seed was 1, is 2, task.seed was 1, is 2"
    assert first.recipe() == other_seed.recipe() != made("data", "optimization.clip_norm=3").recipe()
    starts = [made("data", f"checkpoint.restore_file={tmp_path / name}.pt") for name in ("data", "moved")]
    assert starts[0] == starts[1] and starts[0].checkpoint == digest_file(tmp_path / "data.pt")
    assert first.changes(starts[0]) == "the checkpoint that it starts from has other content"
    four = ["clip_norm=3", "stop_min_lr=1", "sentence_avg=true", "skip_remainder_batch=true"]
    changes = first.changes(made("data", *(f"optimization.{word}" for word in four)))
    assert changes.startswith("optimization.clip_norm was 0.0, is 3.0, ") and changes.endswith(", 1 more options")


def test_an_option_that_came_later_had_its_default(tmp_path):
    """Otherwise an upgrade would refuse every complete run, and split the seeds of one recipe in a table of results."""
    words = [f"task.data={tmp_path}", "checkpoint.finetune_from_model=null"]
    now = Provenance.of("finetune/finetune", words)
    later = ("model.linformer_class_token", "model.value_residual", "task.truncation")
    kept = {name: value for name, value in now.configuration.items() if name not in later}
    earlier = replace(now, configuration=kept)
    assert len(kept) + len(later) == len(now.configuration)
    assert earlier.changes(now) == now.changes(earlier) == "" and earlier.recipe() == now.recipe()
    asked = Provenance.of("finetune/finetune", [*words, "model.value_residual=true", "task.truncation=tail"])
    assert earlier.changes(asked) == "model.value_residual was False, is True, task.truncation was head, is tail"
    assert earlier.recipe() != asked.recipe()


def test_the_number_of_gpus_counts_where_it_was_asked_for(tmp_path):
    """fairseq's default is what the machine has, which a later command may see otherwise: a job sees one GPU."""
    words = [f"task.data={tmp_path}"]
    name = "distributed_training.distributed_world_size"
    assert name not in Provenance.of("pretrain/tiny_512", words).configuration
    assert Provenance.of("pretrain/tiny_512", [*words, f"{name}=2"]).configuration[name] == 2


def test_a_model_of_fairseq_that_has_flags_alone_is_known_by_its_own():
    """fairseq gives it a namespace of all flags of the command that are not left to the architecture."""
    options = Namespace(_name="roberta", arch="roberta", encoder_layers=3, lr=[0.1], data="D")
    found = _own_flags("model", options)
    assert (found["_name"], found["encoder_layers"], found["load_checkpoint_heads"]) == ("roberta", 3, False)
    assert not {"lr", "data", "arch"} & found.keys()
