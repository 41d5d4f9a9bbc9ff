"""Every configuration composes as in fairseq-hydra-train, is valid and can be overridden."""

from dataclasses import fields
from pathlib import Path

import fairseq
import pytest
import yaml
from fairseq.optim.adam import FairseqAdamConfig
from omegaconf import OmegaConf
from write_model_options import options_yaml

from fairseq_linformer.finetune.criterion import TextPredictionCriterionConfig
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.training.distillation import EncoderDistillationConfig, MaskedLmDistillationConfig
from fairseq_linformer.training.masked_lm_options import DynamicMaskedLMConfig
from fairseq_linformer.training.muon import MuonConfig
from fairseq_linformer.training.text_prediction import TextPredictionConfig
from tests.helpers import ROOT
from tests.helpers.configs import composed

PRETRAIN = sorted(path.stem for path in (ROOT / "configs/pretrain").glob("*_*.yaml"))
RECIPES = sorted(path.stem for path in (ROOT / "configs/finetune/recipe").glob("*.yaml"))
RECIPE_GROUPS = ("common", "dataset", "lr_scheduler", "optimization")


@pytest.mark.parametrize("name", PRETRAIN)
def test_pretraining(name):
    cfg = composed("pretrain", name, "task.data=DATA")
    OmegaConf.resolve(cfg)
    size, length = name.removeprefix("modern_").split("_")
    config = resolve_config(cfg.model, cfg.task.tokens_per_sample)
    assert config.max_positions == cfg.task.tokens_per_sample == int(length)
    assert config._name is None and cfg.model._name == f"linformer_roberta_{size}"
    assert (cfg.task._name, cfg.criterion._name) == ("dynamic_masked_lm", "masked_lm")
    assert cfg.optimizer._name == "fused_adam" and cfg.lr_scheduler._name == "polynomial_decay"
    assert cfg.checkpoint.save_dir == f"runs/{name}"
    assert (Path(cfg.common.user_dir) / "model/config.py").is_file()
    if size != "tiny":
        tokens = 8 * cfg.dataset.batch_size * cfg.optimization.update_freq[0] * cfg.task.tokens_per_sample
        assert tokens == 2**20, "the header's batch arithmetic"


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        ("optimization.max_update=7 +distributed=slurm task.mask_prob=0.4 model.projected_length='256..64'", ""),
        ("model.attention=softmax model.projected_length=64 optimization.lr=[0.01]", "-softmax"),
        ("+preset=[fast,near_and_far]", "-fast_near_and_far"),
        ("precision=bf16 common.seed=2 optimizer=adam", "-bf16-adam"),
    ],
)
def test_the_folder_of_a_pretraining_names_its_model_and_choices(words, suffix):
    """Otherwise all variants of a comparison would have one folder."""
    cfg = composed("pretrain", "tiny_512", "task.data=data-bin/corpus", *words.split())
    assert cfg.checkpoint.save_dir == f"runs/tiny_512{suffix}"
    assert cfg.task.bfloat16 == ("yes" if "bf16" in words else "auto") and not cfg.common.fp16


def test_the_fast_preset_changes_the_optimizer_and_adds_value_residuals():
    """It has the learning rate and betas of Adam, ten times its weight decay, and a rate for embeddings."""
    paper, fast = (composed("pretrain", "large_4096", "task.data=DATA", *more) for more in ([], ["+preset=fast"]))
    OmegaConf.resolve(fast), OmegaConf.resolve(paper)
    assert fast.optimizer.pop("embedding_lr_multiplier") == 10
    adam = {"_name": "fused_adam", "momentum": None, "weight_decay": fast.optimizer.weight_decay / 10}
    assert {**fast.optimizer, **adam} == {**paper.optimizer, "momentum": None}
    assert fast.optimization == paper.optimization and fast.lr_scheduler == paper.lr_scheduler
    assert fast.optimizer._name == "muon" and fast.model.value_residual and not paper.model.value_residual


@pytest.mark.parametrize(("preset", "attention"), [("near_and_far", "linformer"), ("[fast,distant]", "reformer")])
def test_the_presets_of_attention(preset, attention):
    """The projected length is that of the configuration."""
    cfg = composed("pretrain", "base_4096", "task.data=DATA", f"+preset={preset}")
    config = resolve_config(cfg.model, cfg.task.tokens_per_sample)
    assert config.attention == attention and config.value_residual and set(config.projected_length) == {256}
    assert (cfg.optimizer._name == "muon") == ("fast" in preset)


def test_the_file_of_model_options_is_up_to_date():
    assert (ROOT / "configs/model/options.yaml").read_text() == options_yaml(), "run scripts/write_model_options.py"


def test_continued_pretraining():
    words = ["task.data=DATA", "checkpoint.finetune_from_model=CHECKPOINT"]
    cfg = composed("pretrain", "continue", *words)
    OmegaConf.resolve(cfg)
    options = yaml.safe_load((ROOT / "configs/model/options.yaml").read_text())
    assert OmegaConf.to_container(cfg.model) == options, "the checkpoint's options are used"
    assert cfg.task.tokens_per_sample is None and cfg.lr_scheduler.total_num_update == cfg.optimization.max_update
    assert 8 * cfg.dataset.batch_size * cfg.optimization.update_freq[0] == 512, "the header's batch arithmetic"
    assert (cfg.optimization.max_update, cfg.optimization.lr, cfg.lr_scheduler.warmup_updates) == (3000, [0.0001], 300)
    taught = composed("pretrain", "continue", *words, "recipe=encoder", "criterion.teacher=T")
    assert (taught.criterion._name, taught.criterion.teacher) == ("encoder_distillation", "T")
    assert (taught.task.only_positions_from, taught.task.shortest_text, taught.task.skip_masking) == (0, None, True)


WORDS = ["task.data=data-bin/tasks/MINE/", "checkpoint.finetune_from_model=CHECKPOINT"]
FAIRSEQ = Path(fairseq.__file__).parent / "examples/roberta/config/finetuning"


@pytest.fixture(scope="module")
def finetuning():
    """The composed configuration of fine-tuning, with recipe=own."""
    return composed("finetune", "finetune", *WORDS, "model=tiny_512")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, finetuning):
    recipe = yaml.safe_load((ROOT / f"configs/finetune/recipe/{name}.yaml").read_text())
    assert {*recipe} <= {*RECIPE_GROUPS}
    OmegaConf.set_struct(finetuning, True)  # rejects unknown options
    cfg = OmegaConf.merge(finetuning, recipe)
    length, warmup = cfg.optimization.max_update, cfg.lr_scheduler.warmup_updates
    assert 0 < warmup < length or (name == "own" and length == 0 < cfg.optimization.max_epoch)
    assert cfg.lr_scheduler.total_num_update == length
    if (FAIRSEQ / f"{name}.yaml").is_file():
        expected = OmegaConf.load(FAIRSEQ / f"{name}.yaml")
        assert (cfg.optimization.lr, cfg.dataset.batch_size) == (expected.optimization.lr, expected.dataset.batch_size)
        assert (length, warmup) == (expected.optimization.max_update, expected.lr_scheduler.warmup_updates)


def test_fine_tuning(finetuning):
    cfg = OmegaConf.create(OmegaConf.to_container(finetuning, resolve=True))
    assert cfg.task.max_positions == resolve_config(cfg.model, cfg.task.max_positions).max_positions == 512
    assert (cfg.task._name, cfg.criterion._name) == ("text_prediction", "text_prediction")
    assert (cfg.task.classification_head_name, cfg.task.seed) == ("sentence_classification_head", 1)
    assert cfg.checkpoint.best_checkpoint_metric == "score" and cfg.checkpoint.maximize_best_checkpoint_metric
    assert (Path(cfg.common.user_dir) / "model/config.py").is_file() and cfg.checkpoint.save_dir == "runs/MINE"


SET = {
    "pretrain/optimizer/fused_adam": {"adam_betas": [0.9, 0.999]},  # YAML has no tuples
    "pretrain/optimizer/muon": {"adam_betas": [0.9, 0.999]},
    "finetune/task/text_prediction": {"init_token": 0, "separator_token": 2, "max_positions": "${model.max_positions}"},
}


@pytest.mark.parametrize(
    ("file", "config", "name"),
    [
        ("pretrain/task/dynamic_masked_lm", DynamicMaskedLMConfig, "dynamic_masked_lm"),
        ("pretrain/optimizer/fused_adam", FairseqAdamConfig, "fused_adam"),
        ("pretrain/optimizer/muon", MuonConfig, "muon"),
        ("pretrain/criterion/masked_lm_distillation", MaskedLmDistillationConfig, "masked_lm_distillation"),
        ("pretrain/criterion/encoder_distillation", EncoderDistillationConfig, "encoder_distillation"),
        ("finetune/task/text_prediction", TextPredictionConfig, "text_prediction"),
        ("finetune/criterion/text_prediction", TextPredictionCriterionConfig, "text_prediction"),
    ],
)
def test_options_file_lists_every_option_at_its_default(file, config, name):
    """Hydra overrides only options in a YAML."""
    options = yaml.safe_load((ROOT / f"configs/{file}.yaml").read_text())
    defaults = {field.name: field.default for field in fields(config)}
    assert options == {**defaults, "_name": name, **SET.get(file, {})}


def test_options_are_overridden_on_the_command_line():
    overrides = ["task.data=D", "model=base_512", "model.encoder_layers=3", "model.sharing=key-value"]
    overrides += ["model.projected_length=192..64", "task.mask_prob=0.3", "optimizer.weight_decay=0"]
    cfg = composed("pretrain", "tiny_512", *overrides)
    config = resolve_config(cfg.model, 512)
    assert (config.projected_length, config.sharing) == ([192, 128, 64], "key-value")
    assert (cfg.task.mask_prob, cfg.optimizer.weight_decay) == (0.3, 0)
    overrides = ["task.truncation=head-tail", "task.truncate_to=256", "criterion.classification_head_name=other"]
    overrides += ["criterion.regression_target=true", "common.seed=7", "model=base_4096"]
    cfg = composed("finetune", "finetune", *WORDS, *overrides)
    assert (cfg.task.truncation, cfg.task.truncate_to, cfg.task.max_positions) == ("head-tail", 256, 4096)
    assert (cfg.task.classification_head_name, cfg.task.regression_target, cfg.task.seed) == ("other", True, 7)


def test_fine_tuning_uses_one_gpu_by_default(finetuning, monkeypatch):
    """Each GPU adds its batch to an update."""
    assert finetuning.distributed_training.distributed_world_size == 1
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    cfg = composed("finetune", "finetune", *WORDS, "+distributed=torchrun")
    assert cfg.distributed_training.distributed_world_size == 8
