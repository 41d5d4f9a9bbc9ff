"""Exported models for labels of words: in transformers, words have the labels that linformer predict gives them."""

import json
import re
from itertools import groupby

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from fairseq_linformer import hf
from fairseq_linformer.cli.export import load
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune.prediction import Predictor
from fairseq_linformer.hf.exporting import export
from tests.helpers.exports import write_fine_tuned

TRUSTED = {"trust_remote_code": True}
WORDS = ["the", "dog", "sees", "a", "house", "漢字", "cat.", "d'o", "\U0001f600", "birds", "old"]
TEXTS = [f"{one} {other}" for one in WORDS for other in WORDS]


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    """The folder, and the labels of the texts' words as linformer predict gives them."""
    folder = tmp_path_factory.mktemp("exported")
    checkpoint = write_fine_tuned(folder / "run", vocabulary, "token-label")
    export(checkpoint, folder / "out")
    rows = [Example(tuple(text.split()), None) for text in TEXTS]
    labels = [prediction.label for prediction in Predictor(checkpoint).texts(rows)]
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    pieces = {len(ids) for ids in tokenizer(WORDS, add_special_tokens=False)["input_ids"]}
    assert len({*sum(labels, ())}) == 3 and max(pieces) > 3, "words of several pieces, all labels"
    return folder / "out", labels


def spans(text):
    return [match.span() for match in re.finditer(r"\S+", text)]


def entities(folder, strategy, texts=TEXTS, **options):
    named = pipeline("token-classification", model=str(folder), aggregation_strategy=strategy, **TRUSTED)
    return named(texts, ignore_labels=[], **options)


def grouped(text, labels):
    """The entities that labels of words mean to transformers: kind, start, end."""
    found = []
    for (start, end), label in zip(spans(text), labels, strict=True):
        kind = label.split("-")[-1]
        if found and found[-1][0] == kind and not label.startswith("B-"):
            found[-1] = (kind, found[-1][1], end)
        else:
            found.append((kind, start, end))
    return found


def trimmed(text, kind, start, end):
    """Without the space before: some offsets have it."""
    return kind, start + len(text[start:end]) - len(text[start:end].lstrip()), end


@pytest.mark.parametrize(("strategy", "split"), [("simple", False), ("first", False), ("simple", True)])
def test_entities_are_those_of_predict(exported, strategy, split):
    """Untrained pieces within words broke entities up and gave them other kinds."""
    folder, labels = exported
    texts, words = ([text.split() for text in TEXTS], {"is_split_into_words": True}) if split else (TEXTS, {})
    for text, of_words, found in zip(TEXTS, labels, entities(folder, strategy, texts, **words), strict=True):
        got = [trimmed(text, entity["entity_group"], entity["start"], entity["end"]) for entity in found]
        assert got == grouped(text, of_words), text


def test_a_words_first_piece_has_its_label_and_the_others_continue_it(exported):
    folder, labels = exported
    for text, of_words, found in zip(TEXTS, labels, entities(folder, "none"), strict=True):
        ends = [end for _, end in spans(text)]
        words = groupby(found, key=lambda entity: sum(end < entity["end"] for end in ends))
        got = [[entity["entity"] for entity in pieces] for _, pieces in words]
        assert tuple(first for first, *_ in got) == of_words, text
        for label, (_, *others) in zip(of_words, got, strict=True):
            assert {*others} <= {label.replace("B-", "I-")}, text


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_labels_without_b_and_i_are_those_of_predict_with_every_strategy(exported, strategy, tmp_path):
    folder, labels = exported
    renamed = {"O": "NOUN", "B-PER": "VERB", "I-PER": "X"}
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {number: renamed[name] for number, name in config["id2label"].items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for text, of_words, found in zip(TEXTS, labels, entities(tmp_path, strategy), strict=True):
        for (start, end), label in zip(spans(text), of_words, strict=True):
            over = {
                entity.get("entity", entity.get("entity_group"))
                for entity in found
                if entity["start"] < end and entity["end"] > start
            }
            assert over == {renamed[label]}, text


def test_the_loss_is_of_each_tokens_own_logits_and_new_tokens_begin_words(exported, tmp_path):
    """Training is as before: labels stand at first pieces, and gradients come from nowhere else."""
    model = AutoModelForTokenClassification.from_pretrained(exported[0], **TRUSTED).eval()
    tokens = torch.tensor([[0, 20, 5, 6, 21, 7, 2]])
    labels = torch.tensor([[-100, 1, 2, -100, 0, -100, -100]])
    own = model.logits(model.linformer_roberta(tokens).last_hidden_state)
    expected = torch.nn.functional.cross_entropy(own[0], labels[0])
    torch.testing.assert_close(model(tokens, labels=labels).loss, expected)
    before = model(tokens).logits
    model.resize_token_embeddings(model.config.vocab_size + 8)
    torch.testing.assert_close(model(tokens).logits, before)
    model.save_pretrained(tmp_path)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path, **TRUSTED)
    assert torch.equal(again.words.begins, model.words.begins) and again.words.begins[-8:].all()


def test_a_new_head_on_a_pretrained_export_leaves_logits_as_they_are(exported, tmp_path):
    """Nothing says there what words are, and transformers fills what is missing with what lay in memory."""
    source = hf.LinformerRobertaForTokenClassification.from_pretrained(exported[0])
    hf.LinformerRobertaForMaskedLM(source.config).save_pretrained(tmp_path)
    model = hf.LinformerRobertaForTokenClassification.from_pretrained(tmp_path)
    assert model.words.begins.all() and not source.words.begins.all()


def test_a_mean_over_the_text_is_refused(vocabulary, tmp_path):
    options = {"classifier_pooling": "mean"}
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "token-label", options=options)
    with pytest.raises(UserError, match="classifier_pooling=mean is not allowed: it must be cls with token labels"):
        Predictor(checkpoint)


def test_the_onnx_graph_gives_the_same(exported, tmp_path):
    """The export compares the results itself: here that nothing of the model stops the export."""
    onnx = pytest.importorskip("fairseq_linformer.hf.onnx")
    model = load(exported[0])
    onnx.export_onnx(model, tmp_path / "model.onnx")
    batch = onnx.random_batch(model.config, 3, 9, padded=True)
    found = onnx.run_session(onnx.open_session(tmp_path / "model.onnx"), batch)
    real = batch[1].bool()
    torch.testing.assert_close(found[real], onnx.run_model(model, batch)[real], atol=1e-5, rtol=1e-4)
