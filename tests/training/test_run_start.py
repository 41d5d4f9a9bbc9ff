"""The checkpoint that a training starts from, and the options of the model that come from it."""

from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.attention import get_attention
from fairseq_linformer.model.config import LinformerRobertaConfig, resolve_config
from fairseq_linformer.model.hub import architecture_options
from fairseq_linformer.training import configuration
from fairseq_linformer.training.run_start import RESET, adopt, checkpoint_to_read, named_start
from tests.helpers.configs import composed


@pytest.mark.parametrize(
    ("restored", "pretrained", "start"),
    [
        ("checkpoint_last.pt", None, None),  # fairseq's defaults
        ("checkpoint_last.pt", "a.pt", ("finetune_from_model", Path("a.pt"))),
        ("b.pt", None, ("restore_file", Path("b.pt"))),
        ("b.pt", "a.pt", ("restore_file", Path("b.pt"))),  # a command goes on from another run by one more word
    ],
)
def test_which_checkpoint_a_training_starts_from(restored, pretrained, start):
    assert named_start({"restore_file": restored, "finetune_from_model": pretrained}) == start


@pytest.mark.parametrize("named", ["gone.pt", "run/checkpoint3.pt", "other.pt", "run/checkpoint_last.pt"])
def test_a_folder_s_last_checkpoint_counts_more_than_what_is_named(tmp_path, monkeypatch, caplog, named):
    """fairseq would begin at the named one each time that the command is repeated, and leave out its optimizer."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    options = {"save_dir": "run", "restore_file": named, "finetune_from_model": None, "optimizer_overrides": "{'x': 1}"}
    cfg = OmegaConf.create({"checkpoint": {**options, **{f"reset_{part}": True for part in RESET}}})
    for file in ("other.pt", "run/checkpoint3.pt"):
        Path(file).touch()
    if named == "other.pt":
        assert checkpoint_to_read(cfg) == Path(named)
        assert all(cfg.checkpoint[f"reset_{part}"] for part in RESET)
    Path("run/checkpoint_last.pt").touch()
    with caplog.at_level("INFO"):
        assert checkpoint_to_read(cfg) == Path("run/checkpoint_last.pt")
    assert f"goes on from run/checkpoint_last.pt; to begin at checkpoint.restore_file={named} name" in caplog.text
    assert (cfg.checkpoint.restore_file, cfg.checkpoint.optimizer_overrides) == ("checkpoint_last.pt", "{}")
    assert not any(cfg.checkpoint[f"reset_{part}"] for part in RESET)


@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": "256..64", "sharing": "key-value"},
        {"projection": "conv", "projected_length": 64, "sharing": "key-value", "encoder_normalize_before": True},
        {"projection": "random", "freeze_projection": False, "projection_init": "normal", "encoder_layers": 6},
        {"attention": "softmax", "local_conv": 5, "activation_fn": "relu", "layernorm_embedding": False},
    ],
)
def test_fine_tuning_builds_the_checkpoints_model(options):
    given = {**vars(LinformerRobertaConfig()), "_name": "linformer_roberta_small", "dropout": 0.0, **options}
    trained = resolve_config(OmegaConf.create(given), 1024)
    model = composed("finetune", "finetune", "task.data=D", "checkpoint.finetune_from_model=C").model
    adopt(model, architecture_options(trained))
    built = resolve_config(model, 1024)
    assert built == replace(trained, dropout=0.1), "dropout is the recipe's"


def test_no_weights_no_dropout(monkeypatch):
    config = resolve_config(LinformerRobertaConfig(), 64)
    assert "attention_dropout" not in architecture_options(config)
    monkeypatch.setattr(get_attention("linformer"), "HAS_WEIGHTS", False)
    assert architecture_options(config)["attention_dropout"] == 0, "the recipe's would be refused"


def test_what_was_typed_stays():
    model = composed("finetune", "finetune", "task.data=D", "model.projected_length=7", "model.local_conv=5").model
    adopt(model, {"projected_length": 8, "local_conv": 9, "encoder_layers": 3})
    assert (model.projected_length, model.local_conv, model.encoder_layers) == (7, 5, 3)


@pytest.mark.parametrize(
    "words",
    [
        "fairseq-hydra-train --config-name continue model.attention=linformer ++model.sinks=null task.data=D",
        "fairseq-train D --attention linformer --user-dir P",
        "fairseq-train D --attention=linformer",
    ],
)
def test_a_default_that_was_typed_stays_too(words, monkeypatch):
    """Else a run in a folder named after Linformer trains the full attention of the checkpoint."""
    monkeypatch.setattr(configuration, "typed_command", words.split)
    typed = configuration.typed_options("model")
    assert "attention" in typed and not {"data", "sinks"} & typed
    model = composed("finetune", "finetune", "task.data=D").model
    adopt(model, {"attention": "softmax", "local_conv": 9}, typed)
    assert (model.attention, model.local_conv) == ("linformer", 9)
