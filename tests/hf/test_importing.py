"""Stock RoBERTa as a checkpoint of fairseq, continued by the command that users type, and what is refused."""

import json

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
    Trainer,
    TrainingArguments,
)

from fairseq_linformer.checkpoint import UNTRAINED
from fairseq_linformer.cli.command import main
from fairseq_linformer.conversion.convert import convert
from fairseq_linformer.errors import UserError
from fairseq_linformer.hf.exporting import OF_CLASSIFIER, OF_DRAWN_HEAD, export
from fairseq_linformer.hf.importing import DRAWN, import_folder
from tests.helpers import ROOT
from tests.helpers.checkpoints import assert_same_weights
from tests.helpers.commands import run
from tests.helpers.exports import hub_of, write_pretrained
from tests.helpers.inputs import sentences
from tests.helpers.stock import write_stock


@torch.no_grad()
def test_stock_roberta_gives_the_same_ids_and_logits(tmp_path):
    model = write_stock(tmp_path / "roberta")
    assert import_folder(tmp_path / "roberta", tmp_path / "out") == []
    hub = hub_of(tmp_path / "out" / UNTRAINED)
    text = "the dog, the über cat"
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path / "roberta")(text)["input_ids"]
    assert hub.encode(text).tolist() == [0, *theirs, 2]
    tokens = torch.tensor([[0, *range(4, 17), 2], [0, 5, 2, *[1] * 12]])
    expected = model(tokens, attention_mask=tokens.ne(1).long()).logits
    torch.testing.assert_close(hub.model(tokens)[0][tokens.ne(1)], expected[tokens.ne(1)], rtol=1e-5, atol=1e-5)


def test_a_stock_classifier_brings_its_head(tmp_path):
    model = write_stock(tmp_path / "roberta", RobertaForSequenceClassification, num_labels=3)
    assert import_folder(tmp_path / "roberta", tmp_path / "out") == ["it has no LM head: a new one was drawn"]
    hub = hub_of(tmp_path / "out" / UNTRAINED)
    tokens = torch.tensor([[0, *range(4, 17), 2]])
    found = hub.model(tokens, classification_head_name="sentence_classification_head")[0]
    torch.testing.assert_close(found, model(tokens).logits, rtol=1e-5, atol=1e-5)


def test_an_export_says_that_an_imported_classifier_stays_behind(tmp_path):
    """It knows no labels, and comes out as an encoder."""
    for kind, said in ((RobertaForSequenceClassification, [OF_DRAWN_HEAD, OF_CLASSIFIER]), (RobertaForMaskedLM, [])):
        folder = tmp_path / kind.__name__
        write_stock(folder, kind)
        import_folder(folder, folder / "in")
        assert export(folder / "in", folder / "out") == said
        assert (OF_CLASSIFIER in (folder / "out" / "README.md").read_text()) == bool(said)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["softmax", "linformer"])  # RoBERTa of transformers, and our own classes
@pytest.mark.parametrize(("kind", "drawn"), [(RobertaModel, True), (RobertaForMaskedLM, False)])
def test_an_lm_head_that_was_drawn_is_not_exported(tmp_path, attention, kind, drawn):
    write_stock(tmp_path / "stock", kind)
    assert (DRAWN in convert(tmp_path / "stock", tmp_path / "in", [f"model.attention={attention}"]).remarks) == drawn
    assert (OF_DRAWN_HEAD in export(tmp_path / "in", tmp_path / "out")) == drawn
    card, weights = (tmp_path / "out/README.md").read_text(), load_file(tmp_path / "out/model.safetensors")
    assert ("pipeline_tag: feature-extraction" in card, "pipeline_tag: fill-mask" in card) == (drawn, not drawn)
    assert any(name.startswith("lm_head.") for name in weights) != drawn
    tokens = torch.tensor([[0, *range(4, 17), 2]])
    expected = hub_of(tmp_path / "in" / UNTRAINED).model(tokens, features_only=True)[0]
    torch.testing.assert_close(AutoModel.from_pretrained(tmp_path / "out")(tokens)[0], expected, rtol=1e-5, atol=1e-5)
    assert (DRAWN in import_folder(tmp_path / "out", tmp_path / "back")) == drawn


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_act": "relu"}, "hidden_act=relu is not allowed"),
        ({"pad_token_id": 0}, "pad_token_id=0 is not allowed"),
    ],
)
def test_what_is_no_such_model_is_refused_before_anything_is_written(tmp_path, changes, said):
    write_stock(tmp_path / "roberta")
    file = tmp_path / "roberta" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(UserError, match=said):
        import_folder(tmp_path / "roberta", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("attention", ["linformer", "softmax"])
@pytest.mark.parametrize("way", ["save", "pad", "trainer"])
def test_an_export_that_transformers_saved_again_comes_back(tmp_path, vocabulary, attention, way):
    """Only the tokenizer's own files come along, not the folder `fairseq`: the import asked for that."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention=attention)
    export(checkpoint, tmp_path / "exported")
    trusted = {"trust_remote_code": True}
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "exported", **trusted)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported", **trusted)
    if way == "pad":
        model.resize_token_embeddings(pad_to_multiple_of=64)
    if way == "trainer":
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        arguments = TrainingArguments(tmp_path / "trainer", use_cpu=True, report_to=[])
        Trainer(model, arguments, processing_class=tokenizer).save_model(tmp_path / "saved")
    else:
        model.save_pretrained(tmp_path / "saved")
        tokenizer.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "fairseq").exists()
    assert import_folder(tmp_path / "saved", tmp_path / "back") == []
    assert_same_weights(checkpoint, tmp_path / "back" / UNTRAINED)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        assert (vocabulary / name).read_bytes() == (tmp_path / "back" / name).read_bytes()
    tokenizer.add_tokens("new")
    tokenizer.save_pretrained(tmp_path / "saved")
    if way == "pad":
        with pytest.raises(UserError, match=r"vocab_size=320 .* were added"):
            import_folder(tmp_path / "saved", tmp_path / "other")


@pytest.mark.parametrize("held", [5, ["dict.txt"], {"dict.txt": "é"}, {"dict.txt": 5}, {"dict.txt": "a"}])
def test_what_a_tokenizer_holds_is_refused_where_it_is_damaged(tmp_path, held):
    write_stock(tmp_path / "roberta")
    file = tmp_path / "roberta" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fairseq_files": held}))
    with pytest.raises(UserError, match=r"tokenizer_config\.json: fairseq_files cannot be read"):
        import_folder(tmp_path / "roberta", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_writes_no_file_of_another_name(tmp_path):
    """A folder of someone else may name any path."""
    write_stock(tmp_path / "roberta")
    file = tmp_path / "roberta" / "tokenizer_config.json"
    held = {"../evil": "YQ==", "checkpoint.pt": "YQ=="}
    file.write_text(json.dumps({**json.loads(file.read_text()), "fairseq_files": held}))
    import_folder(tmp_path / "roberta", tmp_path / "out")
    assert not (tmp_path / "evil").exists() and (tmp_path / "out" / "dict.txt").is_file()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        SystemExit, match=r"^error: .* is no folder of a model of transformers: it holds no config\.json$"
    ):
        main(["import", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    write_stock(tmp_path / "roberta")
    (tmp_path / "roberta" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no model\.safetensors"):
        import_folder(tmp_path / "roberta", tmp_path / "out")


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors"])
def test_weights_outside_of_the_folder_are_not_read(tmp_path, name):
    write_stock(tmp_path / "roberta")
    weights = (tmp_path / "roberta" / "model.safetensors").rename(tmp_path / "model.safetensors")
    place = str(weights) if name.startswith("/") else name
    index = {"weight_map": {"roberta.embeddings.word_embeddings.weight": place}}
    (tmp_path / "roberta" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=f"roberta holds no {place}"):
        import_folder(tmp_path / "roberta", tmp_path / "out")


@pytest.mark.slow
def test_an_imported_checkpoint_trains_on(tmp_path, vocabulary):
    """Export, import, and fairseq-hydra-train from it, as README has them."""
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, projected_length=5)
    run("linformer", "export", checkpoint, "--out", "exported", cwd=tmp_path)
    assert "checkpoint.pt: written" in run("linformer", "import", "exported", "--out", "imported", cwd=tmp_path)
    (tmp_path / "train.txt").write_text(sentences(200, seed=1))
    files = ("--train", "train.txt", "--valid", "train.txt", "--out", "data", "--tokenizer", "imported", "--workers", 1)
    run("linformer", "prepare", "corpus", *files, cwd=tmp_path)
    words = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "tiny_512", "task.data=data"]
    words += [f"model.{name}={value}" for name, value in (("max_positions", 15), ("projected_length", 5))]
    words += ["model.encoder_layers=2", "model.encoder_embed_dim=12", "model.encoder_ffn_embed_dim=20"]
    words += ["model.encoder_attention_heads=3", "model.sharing=headwise", "model.local_conv=0"]
    words += ["model.encoder_normalize_before=false", "task.tokens_per_sample=15", "common.cpu=true"]
    words += ["checkpoint.finetune_from_model=imported/checkpoint.pt", "checkpoint.save_dir=on"]
    words += ["optimization.max_update=2", "optimization.lr=[0.0]", "dataset.num_workers=0"]
    run("fairseq-hydra-train", *words, cwd=tmp_path)
    assert_same_weights(checkpoint, tmp_path / "on/checkpoint_last.pt")  # at a learning rate of 0
