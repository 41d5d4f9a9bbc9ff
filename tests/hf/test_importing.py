"""Import of RoBERTa and of exports: ids, logits, heads, what transformers saved again, and what is rejected."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaModel,
)

from fairseq_linformer.checkpoint import UNTRAINED, read_named_checkpoint
from fairseq_linformer.cli.command import main
from fairseq_linformer.convert import convert
from fairseq_linformer.errors import UserError
from fairseq_linformer.hf.exporting import CLASSIFIER_REMARK, DRAWN_HEAD_REMARK, export
from fairseq_linformer.hf.importing import DRAWN, import_folder
from fairseq_linformer.training.launch import pretraining_command
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import continuing, run
from tests.helpers.exports import HEAD, hub_of, write_pretrained
from tests.helpers.inputs import sentences
from tests.helpers.stock import write_stock

TOKENS = torch.tensor([[0, *range(4, 17), 2]])


@torch.no_grad()
def test_roberta_gives_the_same_ids_and_logits(tmp_path):
    model = write_stock(tmp_path / "roberta")
    assert import_folder(tmp_path / "roberta", tmp_path / "out") == []
    hub = hub_of(tmp_path / "out" / UNTRAINED)
    text = "the dog, the über cat"
    ids = PreTrainedTokenizerFast.from_pretrained(tmp_path / "roberta")(text)["input_ids"]
    assert hub.encode(text).tolist() == [0, *ids, 2]
    tokens = torch.cat([TOKENS, torch.tensor([[0, 5, 2, *[1] * 12]])])
    expected = model(tokens, attention_mask=tokens.ne(1).long()).logits
    torch.testing.assert_close(hub.model(tokens)[0][tokens.ne(1)], expected[tokens.ne(1)], rtol=1e-5, atol=1e-5)


def test_classifier_keeps_its_head_but_is_exported_as_an_encoder(tmp_path):
    model = write_stock(tmp_path / "roberta", RobertaForSequenceClassification, num_labels=3)
    assert import_folder(tmp_path / "roberta", tmp_path / "in") == [DRAWN]
    logits, _ = hub_of(tmp_path / "in" / UNTRAINED).model(TOKENS, classification_head_name=HEAD)
    torch.testing.assert_close(logits, model(TOKENS).logits, rtol=1e-5, atol=1e-5)
    assert export(tmp_path / "in", tmp_path / "out") == [DRAWN_HEAD_REMARK, CLASSIFIER_REMARK]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "drawn"), [(RobertaModel, True), (RobertaForMaskedLM, False)])
def test_drawn_lm_head_is_not_exported(tmp_path, kind, drawn):
    write_stock(tmp_path / "stock", kind)
    assert (DRAWN in convert(tmp_path / "stock", tmp_path / "in", ["model.attention=linformer"]).remarks) == drawn
    assert (DRAWN_HEAD_REMARK in export(tmp_path / "in", tmp_path / "out")) == drawn
    weights = load_file(tmp_path / "out/model.safetensors")
    assert any(name.startswith("lm_head.") for name in weights) != drawn
    expected = hub_of(tmp_path / "in" / UNTRAINED).model(TOKENS, features_only=True)[0]
    torch.testing.assert_close(AutoModel.from_pretrained(tmp_path / "out")(TOKENS)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "layerwise", "value_residual": True},
        {"projection": "conv", "untie_weights_roberta": True},
        {"attention": "softmax"},
    ],
)
def test_export_that_transformers_saved_again_is_imported(tmp_path, vocabulary, options):
    """The tokenizer has only the files of transformers, not the folder `fairseq`."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, **options)
    export(checkpoint, tmp_path / "out")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    if "sharing" in options:
        model.resize_token_embeddings(pad_to_multiple_of=64)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "fairseq").exists()
    assert import_folder(tmp_path / "saved", tmp_path / "back") == []
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        assert (vocabulary / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    if "sharing" in options:
        tokenizer.add_tokens("new")
        tokenizer.save_pretrained(tmp_path / "saved")
        with pytest.raises(UserError, match="vocab_size=320"):
            import_folder(tmp_path / "saved", tmp_path / "other")
        change(tmp_path / "saved" / "config.json", linformer_fetch=8)  # an option of earlier versions
        with pytest.raises(UserError, match="linformer_fetch=8"):
            import_folder(tmp_path / "saved", tmp_path / "other")


def change(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_what_cannot_be_imported_is_rejected_before_anything_is_written(tmp_path):
    with pytest.raises(SystemExit, match=r"config\.json"):
        main(["import", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    for name, value in (("hidden_act", "relu"), ("pad_token_id", 0)):
        write_stock(tmp_path / name)
        change(tmp_path / name / "config.json", **{name: value})
        with pytest.raises(UserError, match=f"{name}={value}"):
            import_folder(tmp_path / name, tmp_path / "out")
    (tmp_path / "pad_token_id" / "model.safetensors").unlink()
    change(tmp_path / "pad_token_id" / "config.json", pad_token_id=1)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        import_folder(tmp_path / "pad_token_id", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_outside_the_folder_are_neither_read_nor_written(tmp_path):
    write_stock(tmp_path / "roberta")
    encoded = {"../evil": "YQ==", "checkpoint.pt": "YQ=="}
    change(tmp_path / "roberta" / "tokenizer_config.json", fairseq_files=encoded)
    import_folder(tmp_path / "roberta", tmp_path / "out")
    assert not (tmp_path / "evil").exists() and (tmp_path / "out" / "dict.txt").is_file()
    weights = (tmp_path / "roberta" / "model.safetensors").rename(tmp_path / "model.safetensors")
    for path in ("../model.safetensors", str(weights)):
        index = {"weight_map": {"roberta.embeddings.word_embeddings.weight": path}}
        (tmp_path / "roberta" / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
            import_folder(tmp_path / "roberta", tmp_path / "other")


@pytest.mark.slow
def test_imported_checkpoint_is_trained(tmp_path, vocabulary, monkeypatch):
    """At a learning rate of 0."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, projected_length=5)
    export(checkpoint, tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    main(["import", "exported", "--out", "imported"])
    Path("train.txt").write_text(sentences(100, seed=1))
    files = ["--train", "train.txt", "--valid", "train.txt", "--out", "data", "--tokenizer", "imported"]
    main(["prepare", "corpus", *files, "--workers", "1"])
    assert " continue " in pretraining_command(Path("data"), read_named_checkpoint(Path("imported")))
    words = ["recipe=tiny", "checkpoint.finetune_from_model=imported/checkpoint.pt", "checkpoint.save_dir=on"]
    run(*continuing("data", *words, "optimization.max_update=1", "optimization.lr=[0.0]"), cwd=tmp_path)
    assert_same_weights(checkpoint, tmp_path / "on/checkpoint_last.pt")
