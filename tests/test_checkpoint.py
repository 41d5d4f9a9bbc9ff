"""Checkpoints that do not fit, cannot be read, or come from fairseq's RoBERTa."""

import re
import shutil
import zipfile
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.models.roberta import RobertaModel
from omegaconf import OmegaConf

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint import (
    checkpoint_file,
    data_folder,
    find_tokenizer,
    read_checkpoint,
    read_progress,
    updates_of_training,
    vocabulary_folder,
)
from fairseq_linformer.errors import UserError
from tests.helpers.checkpoints import write_run
from tests.helpers.commands import as_flags, run
from tests.helpers.models import SIZES, Task, small, tokens


@pytest.mark.parametrize(
    ("saved", "options", "named"),
    [
        ({"projected_length": 16}, {}, "key_projection.weight .16x64 .*, 8x64 "),
        ({"max_positions": 96}, {}, "embed_positions.weight .98x24 .*, 66x24 "),
        ({"projection_multiplier": 1.0}, {"projection_multiplier": 0.5}, "projection_multiplier=0.5 .* must be 1"),
        ({"encoder_layers": 3}, {}, "absent in this model"),
        ({}, {"attention": "softmax"}, "key_projection.weight .8x64 .*, absent in this model"),
        ({"sharing": "headwise"}, {"sharing": "key-value"}, "two values for .*key_projection.*: pass the sharing"),
        ({"untie_weights_roberta": True}, {}, "two values for .*embed_tokens.*: pass untie_weights_roberta=true"),
    ],
)
def test_parameters_that_do_not_fit_are_named(saved, options, named):
    state = small(**saved).state_dict()
    with pytest.raises(UserError, match=named):
        small(**options).load_state_dict(state)


def test_a_multiplier_that_is_not_set_is_the_checkpoints():
    saved, model = small(projection_multiplier=0.25).eval(), small().eval()
    model.load_state_dict(saved.state_dict())
    assert torch.equal(model(tokens())[0], saved(tokens())[0])
    rounded = {name: value.bfloat16() for name, value in small(projection_multiplier=0.3).state_dict().items()}
    small(projection_multiplier=0.3).load_state_dict(rounded)


def test_loading_does_not_initialise_again():
    """With any initialization in the options, the projections are the checkpoint's."""
    state = small(projection_init="normal", sharing="headwise").state_dict()
    other = small(projection_init="segment-mean", sharing="headwise")
    other.load_state_dict(state)
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())


@pytest.fixture(scope="module")
def checkpoint(corpus, tmp_path_factory):
    """A RoBERTa of fairseq's own, trained for two updates."""
    folder = tmp_path_factory.mktemp("roberta")
    sizes = {"encoder-layers": 2, "encoder-embed-dim": 24, "encoder-ffn-embed-dim": 32, "encoder-attention-heads": 3}
    options = {**sizes, "tokens-per-sample": 32, "batch-size": 4, "max-update": 2, "lr": 0.01, "num-workers": 0}
    options |= {"arch": "roberta_base", "task": "masked_lm", "criterion": "masked_lm", "optimizer": "adam"}
    options |= {"sample-break-mode": "none", "save-dir": "run", "data-buffer-size": 0}
    flags = ["--cpu", "--disable-validation", "--no-epoch-checkpoints"]
    run("fairseq-train", corpus, *as_flags(options), *flags, cwd=folder)
    return folder / "run" / "checkpoint_last.pt"


def test_fairseqs_roberta_loads_as_softmax_attention(checkpoint, corpus):
    names = str(checkpoint.parent), checkpoint.name, str(corpus)
    subwords = {"bpe": "sentencepiece", "sentencepiece_model": str(corpus / "sentencepiece.bpe.model")}
    ours, roberta = LinformerRobertaModel.from_pretrained(*names), RobertaModel.from_pretrained(*names, **subwords)
    batch = torch.randint(4, 25, (2, 20), generator=torch.Generator().manual_seed(0))
    batch[1, 11:] = 1
    logits, expected = (hub.eval().model(batch)[0][batch.ne(1)] for hub in (ours, roberta))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_roberta_of_2019_had_one_matrix_for_queries_keys_and_values():
    ours = small(attention="softmax")
    old = ours.state_dict()
    for name in [name for name in old if "q_proj" in name]:
        three = [old.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        old[name.replace("q_proj.", "in_proj_")] = torch.cat(three)
    old = {name.replace("encoder.", "decoder.", 1): value for name, value in old.items()}
    other = small(attention="softmax")
    for parameter in other.parameters():
        parameter.data.add_(1.0)
    other.load_state_dict(old)
    torch.testing.assert_close(other.eval()(tokens())[0], ours.eval()(tokens())[0])


@pytest.mark.parametrize("module", [b"numpy.core.multiarray\n", b"numpy._core.multiarray\n"])
def test_a_best_score_of_either_numpy_is_read(tmp_path, module):
    """A checkpoint chosen by a correlation under numpy 1 was rejected as code under numpy 2."""
    path = write_run(tmp_path / "run", "data") / "checkpoint_best.pt"
    state = torch.load(path, weights_only=True)
    state["extra_state"]["best"] = np.float64(61.5)
    torch.save(state, path)
    with zipfile.ZipFile(path) as saved:
        content = {name: saved.read(name) for name in saved.namelist()}
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in content.items():
            changed.writestr(name, re.sub(rb"numpy\._?core\.multiarray\n", module, data))
    assert read_checkpoint(path)["extra_state"]["best"] == 61.5


def test_a_checkpoint_of_a_diverged_training_is_rejected():
    state = small(untie_weights_roberta=False).state_dict()
    state["encoder.sentence_encoder.embed_tokens.weight"][3, 1] = float("nan")
    with pytest.raises(UserError, match=r"embed_tokens\.weight has values that are not finite"):
        small().load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"a": 3}},
        {"model": {"encoder.sentence_encoder.embed_tokens.weight": torch.zeros(24, 8, dtype=torch.int64)}},
        {"cfg": "x"},
        {"cfg": {"model": {"_name": "linformer_roberta_tiny"}, "task": {"_name": "nope"}}},
        {"cfg": None, "args": Namespace(arch="theirs", task="masked_lm")},
    ],
)
def test_other_checkpoints_are_rejected(corpus, tmp_path, change):
    path = write_run(tmp_path / "run", corpus) / "checkpoint_best.pt"
    torch.save({**torch.load(path, weights_only=True), **change}, path)
    with pytest.raises(UserError):
        LinformerRobertaModel.from_pretrained(str(path.parent), data_name_or_path=str(corpus))


def test_weights_and_configuration_alone_are_read_but_no_run_resumes_from_them(tmp_path):
    checkpoint = write_run(tmp_path / "run", "data") / "checkpoint_best.pt"
    whole = torch.load(checkpoint, weights_only=True)
    torch.save({"cfg": whole["cfg"], "model": whole["model"]}, checkpoint)
    state = read_checkpoint(checkpoint)
    assert (state["cfg"], updates_of_training(state)) == (whole["cfg"], 0)
    with pytest.raises(UserError, match=r"KeyError: 'optimizer_history'.* linformer convert"):
        read_progress(checkpoint)


def test_the_tokenizer_of_a_checkpoint_is_in_its_folder_or_its_data(checkpoint, corpus, tmp_path):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    first = shutil.copy(checkpoint, run_folder / "checkpoint1.pt")
    assert find_tokenizer(first) == find_tokenizer(run_folder) == find_tokenizer(corpus) == corpus
    (run_folder / "checkpoint_best.pt").write_bytes(b"read first")
    with pytest.raises(UserError, match=r"checkpoint_best\.pt is not a complete checkpoint"):
        find_tokenizer(run_folder)
    shutil.copy(corpus / "dict.txt", run_folder)
    assert find_tokenizer(first) == find_tokenizer(run_folder) == run_folder
    several = write_run(tmp_path / "several", f"{corpus}:{tmp_path / 'second'}")
    assert find_tokenizer(several) == corpus, "the first of several data folders"
    assert find_tokenizer(model_file := corpus / "sentencepiece.bpe.model") == model_file
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        find_tokenizer(tmp_path / "none.pt")


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_a_folder_of_transformers_is_no_checkpoint(tmp_path, inner):
    """Also in the older layout of sentence-transformers, with the model in a subfolder."""
    (tmp_path / "config.json").write_text('{"__version__": "1.2.1"}')
    (tmp_path / inner).mkdir(exist_ok=True)
    (tmp_path / inner / "config.json").write_text('{"model_type": "bert"}')
    for find in (checkpoint_file, find_tokenizer):
        with pytest.raises(UserError, match=f"^{tmp_path} is a folder of transformers"):
            find(tmp_path)
    (tmp_path / "checkpoint_best.pt").touch()
    assert checkpoint_file(tmp_path) == tmp_path / "checkpoint_best.pt"


def test_a_missing_data_folder_is_named(tmp_path):
    path = write_run(tmp_path / "run", "/elsewhere/data") / "checkpoint_best.pt"
    with pytest.raises(FileNotFoundError, match=f"{path}, .*/elsewhere/data"):
        find_tokenizer(path)
    with pytest.raises(FileNotFoundError, match=f"{path}, .*/elsewhere/data"):
        LinformerRobertaModel.from_pretrained(str(path.parent))


def test_the_data_of_a_fine_tuned_checkpoint_is_a_prepared_task(tmp_path):
    """A dict.txt in its folder, as for conversions, is its vocabulary only."""
    task, run_folder = tmp_path / "task", tmp_path / "run"
    run_folder.mkdir()
    checkpoint = run_folder / "checkpoint_best.pt"
    cfg = OmegaConf.create({"task": {"_name": "text_prediction", "data": str(task)}})
    for find, advice in ((data_folder, "--data"), (vocabulary_folder, f"copy dict.txt and the .* into {run_folder}$")):
        with pytest.raises(FileNotFoundError, match=f"{task}, .*{advice}"):
            find(checkpoint, cfg)
    (run_folder / "dict.txt").touch()
    with pytest.raises(FileNotFoundError, match=f"{task}, "):
        data_folder(checkpoint, cfg)
    task.mkdir()
    assert (data_folder(checkpoint, cfg), vocabulary_folder(checkpoint, cfg)) == (task, run_folder)
    (run_folder / "input0").mkdir()
    (run_folder / "input0" / "dict.txt").touch()
    assert data_folder(checkpoint, cfg) == run_folder


def test_overrides_reach_the_model_and_the_subword_model(checkpoint, corpus):
    with pytest.raises(UserError, match="projected_lenght=4"):
        LinformerRobertaModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(corpus), projected_lenght=4)
    roberta = LinformerRobertaModel.from_pretrained(
        str(checkpoint.parent), checkpoint.name, str(corpus), bpe="characters", pooler_dropout=0.5
    )
    assert roberta.model.args.pooler_dropout == 0.5
    assert type(roberta.bpe).__name__ == "Characters"


@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": "16,8,4", "sharing": "key-value"},
        {"attention": "longformer", "longformer_window": "4..12"},
        {"attention": "alternating", "alternating_window": 4},
    ],
    ids=str,
)
def test_a_pruned_model_can_be_saved_and_loaded_again(options):
    """A model is pruned when it is loaded; the configuration that fairseq saves then must describe it."""
    options = {"encoder_layers": 3, **options}
    whole = small(**options)
    cfg = OmegaConf.create({"_name": "linformer_roberta", **options, "encoder_layers_to_keep": "0,2"})
    pruned = small(**options, encoder_layers_to_keep="0,2")
    pruned.load_state_dict(whole.state_dict(), model_cfg=cfg)
    again = LinformerRobertaModel.build_model(OmegaConf.merge(OmegaConf.create(SIZES), cfg), Task())
    again.load_state_dict(pruned.state_dict())
    torch.testing.assert_close(again.eval()(tokens())[0], pruned.eval()(tokens())[0])


def test_a_head_of_other_classes_is_named():
    saved, model = small(), small(load_checkpoint_heads=True)
    saved.register_classification_head("topic", num_classes=2)
    model.register_classification_head("topic", num_classes=3)
    with pytest.raises(UserError, match="load_checkpoint_heads=false"):
        model.load_state_dict(saved.state_dict())
