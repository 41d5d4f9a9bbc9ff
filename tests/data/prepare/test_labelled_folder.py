"""Folders of write_labelled, as fairseq's SentencePredictionTask reads them."""

import json

import pytest
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from fairseq_linformer.data.dictionaries import unknown_warning
from fairseq_linformer.data.prepare import labelled_folder
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.task_record import own_task, read_summary
from fairseq_linformer.data.tokenizer import SentencePieceTokenizer, Tokenizer
from fairseq_linformer.errors import UserError
from tests.helpers.inputs import train_without_bytes

TRAIN = [Example("a good film", "positive"), Example("a bad film", "negative"), Example("good", "positive")]
VALID = [Example("bad", "negative"), Example("a film", "positive")]

CLASSES = own_task("own", "single-label")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    lines = ["a good film that is good", "a bad film that is not good", 'it said "bad" and left']
    path = tmp_path_factory.mktemp("tokenizer") / "sentencepiece.bpe.model"
    train_without_bytes(lines, path, vocab_size=23)
    return SentencePieceTokenizer(path)


def load_task(folder, *splits, num_classes=2, regression_target=False) -> SentencePredictionTask:
    options = {"num_classes": num_classes, "init_token": 0, "separator_token": 2, "no_shuffle": True}
    config = SentencePredictionConfig(data=str(folder), **options)
    config.regression_target, config.seed = regression_target, 1
    task = SentencePredictionTask.setup_task(config)
    for split in splits:
        task.load_dataset(split)
    return task


def tokens(task, split, row) -> list[int]:
    return task.dataset(split)[row]["net_input.src_tokens"].tolist()


def class_names(task, split) -> list[str]:
    dictionary = task.label_dictionary
    targets = [int(row["target"]) for row in task.dataset(split)]
    return [dictionary[target + dictionary.nspecial] for target in targets]


def files_below(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_fairseq_loads_single_texts(tmp_path, tokenizer):
    splits = {"test": [Example("good", "positive")], "train": TRAIN, "valid": VALID}
    write_labelled(tmp_path / "out", CLASSES, splits, tokenizer)
    task = load_task(tmp_path / "out", *splits)
    for split, rows in splits.items():
        encoded = tokenizer.encode([row.text for row in rows])
        assert [tokens(task, split, row) for row in range(len(rows))] == [[0, *ids.tolist(), 2] for ids in encoded]
        assert class_names(task, split) == [row.label for row in rows]
    assert not (tmp_path / "out" / "input1").exists()


def test_fairseq_loads_pairs(tmp_path, tokenizer):
    rows = [Example("a film", "no", "bad film"), Example("good", "yes", "that is good")]
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": rows}, tokenizer)
    task = load_task(tmp_path / "out", "train")
    first, second = (tokenizer.encode([text])[0].tolist() for text in ("good", "that is good"))
    assert tokens(task, "train", 1) == [0, *first, 2, 2, *second, 2]
    assert summary.splits["train"].tokens == sum(len(tokens(task, "train", row)) for row in (0, 1))


@pytest.mark.parametrize(("scale", "scores"), [(1.0, [0.5, 1.0, 0.0]), (5.0, [0.1, 0.2, 0.0])])
def test_fairseq_loads_scores(tmp_path, tokenizer, scale, scores):
    rows = [Example("a film", "0.5", "film"), Example("good", "1.0", "a good film"), Example("bad", "0.0", "")]
    splits = {"train": rows, "valid": rows[1:], "test": [Example("good", None, "bad")]}
    summary = write_labelled(tmp_path / "out", own_task("own", "regression", scale=scale), splits, tokenizer)
    task = load_task(tmp_path / "out", "train", "valid", "test", num_classes=1, regression_target=True)
    assert [row["target"] for row in task.dataset("train")] == [[score] for score in scores]
    assert [row["target"] for row in task.dataset("valid")] == [[score] for score in scores[1:]]
    assert "target" not in task.dataset("test")[0] and len(tokens(task, "test", 0)) > 2
    assert read_summary(tmp_path / "out") == summary and summary.task.classes == () and summary.task.scale == scale


def test_labels_are_numbered_by_name_and_not_by_frequency(tmp_path, tokenizer):
    rows = [Example("a", name) for name in ("zebra", "zebra", "standard library", "apple", "zebra")]
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": rows}, tokenizer)
    assert summary.task.classes == ("apple", "standard library", "zebra")
    task = load_task(tmp_path / "out", "train", num_classes=3)
    assert [int(row["target"]) for row in task.dataset("train")] == [2, 2, 1, 0, 2]
    assert (tmp_path / "out/label/dict.txt").read_text() == "apple 1\nstandard library 1\nzebra 3\n"
    mnli = own_task("MNLI", "single-label", ("contradiction", "entailment", "neutral"))  # AX: its test set alone
    write_labelled(tmp_path / "ax", mnli, {"test": [Example("a", None, "b")]}, tokenizer)
    assert tuple(load_task(tmp_path / "ax", "test", num_classes=3).label_dictionary.symbols[4:7]) == mnli.classes


def test_tokens_and_long_rows_are_counted(tmp_path, tokenizer, monkeypatch):
    lengths = [len(ids) + 2 for ids in tokenizer.encode([row.text for row in TRAIN])]
    for longest, long in ((max(lengths) - 1, lengths.count(max(lengths))), (max(lengths), 0)):
        monkeypatch.setattr(labelled_folder, "LONG_LENGTH", longest)
        counts = write_labelled(tmp_path / f"{longest}", CLASSES, {"train": TRAIN}, tokenizer).splits["train"]
        assert (counts.examples, counts.tokens, counts.long) == (3, sum(lengths), long)


def test_the_size_of_batches_changes_nothing(tmp_path, tokenizer, monkeypatch):
    rows = [Example("good " * (1 + row % 5), f"label {row % 2}") for row in range(23)]
    write_labelled(tmp_path / "whole", CLASSES, {"train": iter(rows)}, tokenizer)
    monkeypatch.setattr(labelled_folder, "BATCH", 4)
    write_labelled(tmp_path / "batches", CLASSES, {"train": iter(rows)}, tokenizer)
    assert files_below(tmp_path / "whole") == files_below(tmp_path / "batches")
    for text in (" ", "\u200b"):
        with pytest.raises(UserError, match="split train, row 24: "):
            write_labelled(tmp_path / "bad", CLASSES, {"train": [*rows, Example(text, "label 0")]}, tokenizer)


@pytest.mark.parametrize("text", [" good\r\nfilm\t", "good\u2028film"])
def test_line_ends_and_tabs_are_white_space(tmp_path, tokenizer, monkeypatch, text):
    """sentencepiece would hide white space, byte-level BPE would not."""
    lines, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda texts: lines.extend(texts) or encode(texts))
    write_labelled(tmp_path / "out", CLASSES, {"train": [Example(text, "x"), Example("two  spaces", "x")]}, tokenizer)
    assert lines == ["good film", "two  spaces"]


@pytest.mark.parametrize(
    ("splits", "location"),
    [
        ({"train": TRAIN, "valid": []}, "split valid"),
        ({"train": [*TRAIN, Example(" \n\t", "positive")]}, "split train, row 4"),
        ({"train": [Example("a", "x", "b"), Example("a", "x")]}, "split train, row 2"),
        ({"train": [Example("a", "two\nlines")]}, "'two"),
        ({"train": [Example("a", "<mask>")]}, "'<mask>'"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_rejected(tmp_path, tokenizer, splits, location):
    with pytest.raises(UserError, match=location):
        write_labelled(tmp_path / "out", CLASSES, splits, tokenizer)
    assert list(tmp_path.iterdir()) == []  # neither the folder nor a part of it


def test_a_summary_of_another_version(tmp_path, tokenizer):
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": TRAIN, "valid": VALID}, tokenizer)
    file = tmp_path / "out" / "task.json"
    content = json.loads(file.read_text())
    for damaged in ({"task": {**content["task"], "kind": "x"}}, {"splits": {"train": {"later": 1}}}):
        file.write_text(json.dumps({**content, **damaged}))
        with pytest.raises(UserError, match=r"task\.json"):
            read_summary(tmp_path / "out")
    del content["task"]["columns"]  # early versions had none
    file.write_text(json.dumps(content))
    assert read_summary(tmp_path / "out") == summary


def test_unknown_pieces_are_counted_and_warned_of(tmp_path, tokenizer):
    strange = [Example("a 漢 film", "positive", "字字 good"), Example("bad", "positive", "good")]
    usual = [Example("a film", "positive", "good")] * 500
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": usual + strange[:1], "valid": strange}, tokenizer)
    whole = load_task(tmp_path / "out", "valid")
    unknown = sum(tokens(whole, "valid", row).count(whole.source_dictionary.unk()) for row in range(2))
    assert summary.splits["valid"].unknown == unknown > 0
    assert read_summary(tmp_path / "out") == summary
    shares = summary.unknown_shares
    assert shares == {"train": pytest.approx(0, abs=0.001), "valid": unknown / summary.splits["valid"].tokens}
    (warned,) = unknown_warning(shares, "REMEDY")
    assert f"valid {shares['valid']:.3%}" in warned and "train" not in warned


def test_classes_that_a_split_lacks_are_warned_of(tmp_path, tokenizer):
    """A class without rows in train is never predicted, one without rows in valid never scored."""

    def warnings(name, task, **splits) -> list[str]:
        lines = write_labelled(tmp_path / name, task, splits, tokenizer).lines()
        return [line for line in lines if line.startswith("warning")]

    assert not warnings("two", CLASSES, train=TRAIN, valid=VALID, test=[Example("a", None)])
    three = own_task("own", "single-label", ("negative", "neutral", "positive"))
    train, valid = warnings("three", three, train=TRAIN, valid=VALID[:1])
    assert "not in train: neutral" in train and "not in valid: neutral, positive" in valid
