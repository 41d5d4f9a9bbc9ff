"""Options of a training: completion, and rejection before any work."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.options import get_training_parser, parse_args_and_arch
from omegaconf import OmegaConf, open_dict

from fairseq_linformer.attention import get_attention
from fairseq_linformer.errors import UserError
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.model.hub import architecture_options
from fairseq_linformer.model.options import LinformerRobertaConfig
from fairseq_linformer.training import configuration
from fairseq_linformer.training.options import (
    TORCHRUN,
    adopt,
    check_options,
    initial_checkpoint,
    override_defaults,
)
from fairseq_linformer.training.text_prediction import plan_updates
from tests.helpers.configs import composed


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with two GPUs and no launcher."""
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def whole(**options):
    """Return fairseq's configuration of a training with options by dotted name, with _ for the dots."""
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.distributed_training.distributed_world_size = 1
    with open_dict(cfg):
        cfg.model, cfg.task = {"encoder_layerdrop": 0.0}, {"_name": "dynamic_masked_lm"}
        for name, value in options.items():
            OmegaConf.update(cfg, name.replace("__", "."), value, force_add=True)
    return cfg


@pytest.mark.parametrize(
    "options",
    [
        {"dataset__validate_interval": 0},  # fairseq divides by it after the first epoch
        {"checkpoint__save_interval": 0},
        {"optimization__update_freq": [2, 0]},
        {"checkpoint__reset_dataloader": True},  # each repetition would begin at update 0
        {"checkpoint__write_checkpoints_asynchronously": True},
        {"checkpoint__no_save_optimizer_state": True},
        {"model__flex_attention": True, "common__cpu": True},
        {"common__fp16": True, "common__cpu": True},
        {"criterion": {"_name": "masked_lm"}, "checkpoint__best_checkpoint_metric": "accuracy"},
        {"criterion": {"_name": "masked_lm"}, "checkpoint__maximize_best_checkpoint_metric": True},
        {"optimiser": "muon"},  # of +optimiser=muon
    ],
    ids=str,
)
def test_options_that_would_lose_work_are_rejected_by_name(options):
    name = list(options)[-1] if "common__fp16" not in options else "common__fp16"
    name = "model__flex_attention" if "model__flex_attention" in options else name
    with pytest.raises(UserError, match=f"^{name.replace('__', '.')}"):
        check_options(whole(**options))


def test_other_options_are_accepted():
    check_options(whole())
    check_options(whole(model={"flex_attention": True}, common__fp16=True))
    check_options(whole(common__fp16=True, common__memory_efficient_fp16=True, common__cpu=True))
    check_options(whole(checkpoint__reset_dataloader=True, checkpoint__restore_file="other.pt"))
    check_options(whole(criterion={"_name": "of the user"}, checkpoint__best_checkpoint_metric="any"))
    metric = {"checkpoint__best_checkpoint_metric": "accuracy", "dataset__disable_validation": True}
    check_options(whole(criterion={"_name": "masked_lm"}, **metric))


def test_bf16_of_fairseq_train_is_rejected():
    """It sets common.tpu."""
    parsed = parse_args_and_arch(get_training_parser(), ["data", "--bf16", "--arch", "linformer_roberta_tiny"])
    with pytest.raises(UserError, match=r"^common\.tpu=True"):
        check_options(convert_namespace_to_omegaconf(parsed))


def test_processes_of_a_launcher_do_not_train_alone(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}.items():
        check_options(whole())
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"distributed_world_size=1.*WORLD_SIZE=2"):
        check_options(whole())
    check_options(whole(distributed_training__distributed_world_size=2))
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UserError, match=r"SLURM_STEP_NUM_TASKS=4"):
        check_options(whole())


def test_defaults_with_which_several_processes_or_muon_cannot_train():
    for processes, cpu, backend in ((2, True, "legacy_ddp"), (2, False, "pytorch_ddp"), (1, True, "pytorch_ddp")):
        cfg = whole(distributed_training__distributed_world_size=processes, common__cpu=cpu)
        override_defaults(cfg)
        assert cfg.distributed_training.ddp_backend == backend and cfg.dataset.data_buffer_size == 0
    cfg = whole(optimizer={"_name": "muon"}, checkpoint__restore_file="b.pt", checkpoint__finetune_from_model="a.pt")
    override_defaults(cfg)
    assert cfg.common.fp16_no_flatten_grads and cfg.checkpoint.finetune_from_model is None


def test_the_initial_checkpoint_of_a_training():
    options = {"restore_file": "checkpoint_last.pt", "finetune_from_model": None}  # fairseq's defaults
    assert initial_checkpoint(options) is None
    assert initial_checkpoint({**options, "finetune_from_model": "a.pt"}) == ("finetune_from_model", Path("a.pt"))
    both = {"restore_file": "b.pt", "finetune_from_model": "a.pt"}
    assert initial_checkpoint(both) == ("restore_file", Path("b.pt"))


@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": "256..64", "sharing": "key-value"},
        {"projection": "random", "freeze_projection": False, "projection_init": "normal", "encoder_layers": 6},
        {"attention": "softmax", "local_conv": 5, "activation_fn": "relu", "layernorm_embedding": False},
    ],
)
def test_fine_tuning_builds_the_checkpoints_model(options):
    config = {**vars(LinformerRobertaConfig()), "_name": "linformer_roberta_small", "dropout": 0.0, **options}
    trained = resolve_config(OmegaConf.create(config), 1024)
    model = composed("finetune", "finetune", "task.data=D", "checkpoint.finetune_from_model=C").model
    adopt(model, architecture_options(trained))
    assert resolve_config(model, 1024) == replace(trained, dropout=0.1), "dropout is the recipe's"


def test_attentions_without_weights_have_no_dropout(monkeypatch):
    config = resolve_config(LinformerRobertaConfig(), 64)
    assert "attention_dropout" not in architecture_options(config)
    monkeypatch.setattr(get_attention("linformer"), "HAS_WEIGHTS", False)
    assert architecture_options(config)["attention_dropout"] == 0, "the recipe's would be rejected"


@pytest.mark.parametrize(
    "words",
    [
        "fairseq-hydra-train --config-name continue model.attention=linformer ++model.sinks=null task.data=D",
        "fairseq-train D --attention=linformer",
    ],
)
def test_typed_options_stay_also_if_they_are_defaults(words, monkeypatch):
    """Otherwise a run in a folder named after Linformer trains the full attention of the checkpoint."""
    monkeypatch.setattr(configuration, "typed_command", words.split)
    typed = configuration.typed_options("model")
    assert "attention" in typed and not {"data", "sinks"} & typed
    model = composed("finetune", "finetune", "task.data=D", "model.projected_length=7").model
    adopt(model, {"attention": "softmax", "local_conv": 9, "projected_length": 8}, typed)
    assert (model.attention, model.local_conv, model.projected_length) == ("linformer", 9, 7)


def planned(rows, **options):
    """Return the updates and the warm-up of a training that counts epochs."""
    length = {"lr_scheduler": {"total_num_update": 0.0, "warmup_updates": 0}, "optimization__max_epoch": 10}
    batches = {"dataset__batch_size": 32, "dataset__required_batch_size_multiple": 1}
    cfg = whole(**{**length, **batches, **options})
    plan_updates(cfg, rows)
    return cfg.optimization.max_update, cfg.lr_scheduler.warmup_updates


def test_epochs_are_counted_in_updates():
    assert planned(1000) == (320, 19), "10 times 31 batches of 32 rows and one of 8, and 6 % of it"
    assert planned(40) == (20, 1) and planned(3) == (10, 1), "the last batch of an epoch may be small"
    assert planned(1000, distributed_training__distributed_world_size=2, optimization__update_freq=[4]) == (40, 2)
    assert planned(1000, lr_scheduler__warmup_updates=7) == (320, 7)
    assert planned(None, optimization__max_update=50) == (50, 0)
    assert planned(None, lr_scheduler__total_num_update=500) == (0, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"rows": None},
        {"dataset__batch_size": None},
        {"dataset__max_tokens": 64},  # batches may have fewer rows than batch_size
        {"optimization__max_epoch": 0},
        {"dataset__required_batch_size_multiple": 8},
        {"optimization__skip_remainder_batch": True},
        {"optimization__update_freq": [1, 2]},
    ],
)
def test_a_length_that_cannot_be_computed_is_rejected(options):
    with pytest.raises(UserError, match=r"^optimization\.max_update=0"):
        planned(**{"rows": 5, **options})
