"""Compatibility with fairseq's examples/linformer: flags, checkpoints, and continued runs."""

import json
from argparse import Namespace
from pathlib import Path

import fairseq
import pytest
import torch

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.errors import UserError
from fairseq_linformer.model.compat import rename_parameters
from fairseq_linformer.model.config import resolve_config
from tests.helpers import ROOT
from tests.helpers.commands import as_flags, run

EXAMPLE = Path(fairseq.__file__).parent / "examples" / "linformer" / "linformer_src"
LENGTH = 32
SHARINGS = {  # our option: their flags
    "headwise": ["--compressed", 4],
    "key-value": ["--compressed", 8, "--shared-kv-compressed", 1],
    "layerwise": ["--compressed", 4, "--shared-layer-kv-compressed", 1],
}

# Prints their logits of token ids as JSON, in another process, because both packages register linformer_roberta.
THEIR_LOGITS = """
import argparse, json, sys, torch
from fairseq import checkpoint_utils, utils
user_dir, checkpoint, rows = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
utils.import_user_module(argparse.Namespace(user_dir=user_dir))
torch.serialization.add_safe_globals([argparse.Namespace])
(model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([checkpoint])
model.eval()
with torch.no_grad():
    print("LOGITS", json.dumps([model(torch.tensor([row]))[0][0].tolist() for row in rows]))
"""


def flags(data, user_dir, save_dir, updates, *more):
    """Return a command line of the example, without dropout, so that two runs can be compared."""
    options = {"arch": "linformer_roberta_base", "task": "masked_lm", "criterion": "masked_lm", "optimizer": "adam"}
    options |= {"encoder_layers": 2, "encoder_embed_dim": 24, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 3}
    options |= {"tokens_per_sample": LENGTH, "sample_break_mode": "none", "batch_size": 4, "num_workers": 0, "seed": 3}
    options |= {"dropout": 0.0, "attention_dropout": 0.0, "lr": 0.01, "lr_scheduler": "fixed", "max_update": updates}
    options |= {"adam_betas": "(0.9,0.98)", "clip_norm": 0.0, "save_dir": save_dir, "log_format": "json"}
    options |= {"save_interval_updates": 4, "data_buffer_size": 0}
    switches = ["--cpu", "--disable-validation", "--no-epoch-checkpoints", "--log-interval", 1]
    return ["fairseq-train", data, "--user-dir", user_dir, *as_flags(options), *switches, *more]


@pytest.fixture(scope="module", params=SHARINGS)
def theirs(request, corpus, tmp_path_factory):
    """Train eight updates with their code; return the sharing, the checkpoint of the fourth update, and the losses."""
    folder = tmp_path_factory.mktemp("theirs")
    output = run(*flags(corpus, EXAMPLE, "run", 8, *SHARINGS[request.param]), cwd=folder)
    return request.param, folder / "run" / "checkpoint_1_4.pt", losses(output)


def losses(output: str) -> dict[int, float]:
    """Return the training loss of each update."""
    rows = [json.loads(line[line.index('{"epoch"') :]) for line in output.splitlines() if '"num_updates"' in line]
    return {int(row["num_updates"]): float(row["loss"]) for row in rows if "loss" in row}


def test_a_checkpoint_of_theirs_gives_the_same_logits(theirs, corpus, tmp_path):
    _, checkpoint, _ = theirs
    roberta = LinformerRobertaModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(corpus))
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 25, (length,), generator=generator).tolist() for length in (LENGTH, 13, 1)]
    (tmp_path / "logits.py").write_text(THEIR_LOGITS)
    printed = run(tmp_path / "logits.py", EXAMPLE, checkpoint, json.dumps(rows), cwd=tmp_path)
    expected = json.loads(next(line for line in printed.splitlines() if line.startswith("LOGITS"))[len("LOGITS") :])
    for row, logits in zip(rows, expected, strict=True):
        ours = roberta.eval().model(torch.tensor([row]))[0][0]
        torch.testing.assert_close(ours, torch.tensor(logits), atol=1e-5, rtol=0)


@pytest.mark.parametrize("theirs", ["headwise", "layerwise"], indirect=True)
def test_training_continues_from_their_checkpoint(theirs, corpus, tmp_path):
    """The parameters, and with them Adam's moments, are those of their code; layerwise needs --reset-optimizer."""
    sharing, checkpoint, expected = theirs
    command = flags(corpus, ROOT / "fairseq_linformer", "ours", 8, "--restore-file", checkpoint, *SHARINGS[sharing])
    if sharing == "layerwise":
        assert "pass --reset-optimizer" in run(*command, cwd=tmp_path, status=1)
        ours = losses(run(*command, "--reset-optimizer", cwd=tmp_path))
        assert ours[1] < expected[1], "the first batch again, after it was trained on"
    else:
        ours = losses(run(*command, cwd=tmp_path))
        assert ours == pytest.approx({update: expected[update] for update in (5, 6, 7, 8)}, abs=2e-3)
        reached, theirs_reached = (
            torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]
            for folder in (tmp_path / "ours", checkpoint.parent)
        )
        rename_parameters(theirs_reached)
        multipliers = {name for name in reached if name.endswith("_projection.multiplier")}  # absent from theirs
        assert reached.keys() - multipliers == theirs_reached.keys()
        assert {float(reached[name]) for name in multipliers} == {1.0}
        for name, value in theirs_reached.items():
            torch.testing.assert_close(reached[name], value, atol=1e-5, rtol=0, msg=name)


def resolved(**options):
    return resolve_config(Namespace(arch="linformer_roberta_base", **options), 512)


@pytest.mark.parametrize(
    ("flags", "length", "sharing", "frozen"),
    [
        ({}, 128, "headwise", False),
        ({"compressed": 8}, 64, "headwise", False),
        ({"shared_kv_compressed": 1}, 128, "key-value", False),
        ({"shared_kv_compressed": 1, "shared_layer_kv_compressed": 1}, 128, "layerwise", False),
        ({"shared_kv_compressed": 0, "shared_layer_kv_compressed": 0, "freeze_compress": 1}, 128, "headwise", True),
        ({"compressed": 4, "projected_length": 128, "sharing": "layerwise"}, 128, "layerwise", False),
    ],
)
def test_their_flags_are_translated(flags, length, sharing, frozen):
    config = resolved(**flags)
    assert config.projected_length == [length] * 12
    assert (config.sharing, config.freeze_projection) == (sharing, frozen)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"compressed": 4, "projected_length": 64}, "projected_length"),
        ({"shared_kv_compressed": 1, "sharing": "none"}, "sharing"),
        ({"freeze_compress": 0, "freeze_projection": True}, "freeze_projection"),
        ({"compressed": 0}, "compressed"),
        ({"shared_layer_kv_compressed": 2}, "shared_layer_kv_compressed"),
    ],
)
def test_contradictions_and_invalid_values_are_rejected(options, name):
    with pytest.raises(UserError, match=rf"^{name}={options[name]}"):
        resolved(**options)
