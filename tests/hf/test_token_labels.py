"""Exported models for labels of words give the labels of `linformer predict`."""

import json
import re
import shutil
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
WORDS = ["the", "house", "漢字", "cat.", "\U0001f600", "birds"]
TEXTS = [f"{first} {second}" for first in WORDS for second in WORDS]


@pytest.fixture(scope="module")
def exported(vocabulary, tmp_path_factory):
    """Return the folder, and the labels of the texts' words by linformer predict."""
    folder = tmp_path_factory.mktemp("exported")
    checkpoint = write_fine_tuned(folder / "run", vocabulary, "token-label", options={"encoder_layers": 1})
    export(checkpoint, folder / "out")
    rows = [Example(tuple(text.split()), None) for text in TEXTS]
    labels = [prediction.label for prediction in Predictor(checkpoint).texts(rows)]
    tokenizer = AutoTokenizer.from_pretrained(folder / "out")
    pieces = {len(ids) for ids in tokenizer(WORDS, add_special_tokens=False)["input_ids"]}
    assert len({*sum(labels, ())}) == 3 and max(pieces) > 3, "all labels, and words of several pieces"
    return folder / "out", labels


def spans(text):
    return [match.span() for match in re.finditer(r"\S+", text)]


def entities(folder, strategy, texts=TEXTS, **options):
    named = pipeline("token-classification", model=str(folder), aggregation_strategy=strategy, **TRUSTED)
    return named(texts, ignore_labels=[], **options)


def grouped(text, labels):
    """Return the entities, (type, start, end), that transformers makes of the labels of words."""
    groups = []
    for (start, end), label in zip(spans(text), labels, strict=True):
        kind = label.split("-")[-1]
        if groups and groups[-1][0] == kind and not label.startswith("B-"):
            groups[-1] = (kind, groups[-1][1], end)
        else:
            groups.append((kind, start, end))
    return groups


def trimmed(text, kind, start, end):
    """Exclude the space before an entity, which some offsets include."""
    return kind, start + len(text[start:end]) - len(text[start:end].lstrip()), end


@pytest.mark.parametrize(("strategy", "split"), [("simple", False), ("first", False), ("simple", True)])
def test_entities_are_those_of_predict(exported, strategy, split):
    folder, labels = exported
    texts, words = ([text.split() for text in TEXTS], {"is_split_into_words": True}) if split else (TEXTS, {})
    for text, word_labels, output in zip(TEXTS, labels, entities(folder, strategy, texts, **words), strict=True):
        groups = [trimmed(text, entity["entity_group"], entity["start"], entity["end"]) for entity in output]
        assert groups == grouped(text, word_labels), text


def test_the_first_piece_of_a_word_has_its_label_and_the_others_continue_it(exported):
    folder, labels = exported
    for text, word_labels, output in zip(TEXTS, labels, entities(folder, "none"), strict=True):
        ends = [end for _, end in spans(text)]
        words = groupby(output, key=lambda entity: sum(end < entity["end"] for end in ends))
        pieces = [[entity["entity"] for entity in group] for _, group in words]
        assert tuple(first for first, *_ in pieces) == word_labels, text
        for label, (_, *continued) in zip(word_labels, pieces, strict=True):
            assert {*continued} <= {label.replace("B-", "I-")}, text


@pytest.mark.parametrize("strategy", ["simple", "average", "max"])
def test_labels_without_b_and_i_are_those_of_predict_with_every_strategy(exported, strategy, tmp_path):
    folder, labels = exported
    renamed = {"O": "NOUN", "B-PER": "VERB", "I-PER": "X"}
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {number: renamed[name] for number, name in config["id2label"].items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for text, word_labels, output in zip(TEXTS, labels, entities(tmp_path, strategy), strict=True):
        for (start, end), label in zip(spans(text), word_labels, strict=True):
            groups = {group["entity_group"] for group in output if group["start"] < end and group["end"] > start}
            assert groups == {renamed[label]}, text


def test_the_loss_is_of_each_tokens_own_logits_and_new_tokens_begin_words(exported, tmp_path):
    model = AutoModelForTokenClassification.from_pretrained(exported[0], **TRUSTED).eval()
    tokens = torch.tensor([[0, 20, 5, 6, 21, 7, 2]])
    labels = torch.tensor([[-100, 1, 2, -100, 0, -100, -100]])
    logits = model.logits(model.linformer_roberta(tokens).last_hidden_state)
    expected = torch.nn.functional.cross_entropy(logits[0], labels[0])
    torch.testing.assert_close(model(tokens, labels=labels).loss, expected)
    before = model(tokens).logits
    model.resize_token_embeddings(model.config.vocab_size + 8)
    torch.testing.assert_close(model(tokens).logits, before)
    model.save_pretrained(tmp_path)
    saved = AutoModelForTokenClassification.from_pretrained(tmp_path, **TRUSTED)
    assert torch.equal(saved.words.begins, model.words.begins) and saved.words.begins[-8:].all()


def test_a_new_head_on_a_pretrained_export_leaves_logits_unchanged(exported, tmp_path):
    """Such an export has no word starts, and transformers leaves missing buffers uninitialized."""
    source = hf.LinformerRobertaForTokenClassification.from_pretrained(exported[0])
    hf.LinformerRobertaForMaskedLM(source.config).save_pretrained(tmp_path)
    model = hf.LinformerRobertaForTokenClassification.from_pretrained(tmp_path)
    assert model.words.begins.all() and not source.words.begins.all()


def test_a_mean_over_the_text_is_rejected(vocabulary, tmp_path):
    options = {"classifier_pooling": "mean"}
    checkpoint = write_fine_tuned(tmp_path / "run", vocabulary, "token-label", options=options)
    with pytest.raises(UserError, match="classifier_pooling=mean"):
        Predictor(checkpoint)


def test_the_onnx_graph_gives_the_same(exported, tmp_path):
    """The export compares the results itself."""
    onnx = pytest.importorskip("fairseq_linformer.hf.onnx")
    onnx.export_onnx(load(exported[0]), tmp_path / "model.onnx")
