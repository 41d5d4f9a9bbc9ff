"""What write_labelled writes is what fairseq's own SentencePredictionTask reads."""

import json

import numpy as np
import pytest
from fairseq.data import Dictionary
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

CLASSES, SCORES = (own_task("own", kind) for kind in ("single-label", "regression"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    lines = ["a good film that is good", "a bad film that is not good", 'it said "bad" and left']
    path = tmp_path_factory.mktemp("tokenizer") / "sentencepiece.bpe.model"
    train_without_bytes(lines, path, vocab_size=23)
    return SentencePieceTokenizer(path)


def load_task(folder, *splits, num_classes=2, regression_target=False) -> SentencePredictionTask:
    config = SentencePredictionConfig(
        data=str(folder), num_classes=num_classes, init_token=0, separator_token=2, no_shuffle=True
    )
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
    write_labelled(tmp_path / "out", CLASSES, {"train": TRAIN, "valid": VALID}, tokenizer)
    task = load_task(tmp_path / "out", "train", "valid")
    for split, rows in {"train": TRAIN, "valid": VALID}.items():
        encoded = tokenizer.encode([row.text for row in rows])
        assert [tokens(task, split, row) for row in range(len(rows))] == [[0, *ids.tolist(), 2] for ids in encoded]
        assert class_names(task, split) == [row.label for row in rows]
    assert not (tmp_path / "out" / "input1").exists()


def test_fairseq_loads_scores(tmp_path, tokenizer):
    rows = [Example("a film", "0.5", "film"), Example("good", "1.0", "a good film"), Example("bad", "0.0", "")]
    splits = {"train": rows, "valid": rows[1:], "test": [Example("good", None, "bad")]}
    summary = write_labelled(tmp_path / "out", SCORES, splits, tokenizer)
    assert summary.task.classes == ()
    task = load_task(tmp_path / "out", "train", "valid", "test", num_classes=1, regression_target=True)
    assert [row["target"] for row in task.dataset("train")] == [[0.5], [1.0], [0.0]]
    assert [row["target"] for row in task.dataset("valid")] == [[1.0], [0.0]]
    assert "target" not in task.dataset("test")[0]
    assert read_summary(tmp_path / "out") == summary and summary.task.scale == 1.0
    fifths = write_labelled(tmp_path / "fifths", own_task("own", "regression", scale=5.0), {**splits}, tokenizer)
    assert read_summary(tmp_path / "fifths") == fifths and fifths.task.scale == 5.0
    assert (tmp_path / "fifths" / "label" / "train.label").read_text() == "0.1\n0.2\n0.0\n"
    with pytest.raises(UserError, match="split train, row 2: "):
        write_labelled(tmp_path / "no", SCORES, {"train": [rows[0], Example("a", "high", "b")]}, tokenizer)


def test_a_test_set_alone_with_the_classes_of_another_task(tmp_path, tokenizer):
    """AX: predictions of a model that was trained on MNLI are numbered as MNLI's classes."""
    names = ("contradiction", "entailment", "neutral")
    write_labelled(
        tmp_path / "out", own_task("own", "single-label", names), {"test": [Example("a", None, "b")]}, tokenizer
    )
    task = load_task(tmp_path / "out", "test", num_classes=3)
    assert tuple(task.label_dictionary.symbols[4:7]) == names


def test_labels_are_numbered_by_name_and_not_by_frequency(tmp_path, tokenizer):
    rows = [Example("a", name) for name in ("zebra", "zebra", "standard library", "apple", "zebra")]
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": rows}, tokenizer)
    assert summary.task.classes == ("apple", "standard library", "zebra")
    task = load_task(tmp_path / "out", "train", num_classes=3)
    assert [int(row["target"]) for row in task.dataset("train")] == [2, 2, 1, 0, 2]
    assert (tmp_path / "out/label/dict.txt").read_text() == "apple 1\nstandard library 1\nzebra 3\n"


def test_fairseq_loads_pairs(tmp_path, tokenizer):
    rows = [Example("a film", "no", "bad film"), Example("good", "yes", "that is good")]
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": rows}, tokenizer)
    task = load_task(tmp_path / "out", "train")
    first, second = (tokenizer.encode([text])[0].tolist() for text in ("good", "that is good"))
    assert tokens(task, "train", 1) == [0, *first, 2, 2, *second, 2]
    assert summary.splits["train"].tokens == sum(len(tokens(task, "train", row)) for row in (0, 1))


def test_counts_are_of_what_the_model_sees(tmp_path, tokenizer, monkeypatch):
    splits = {"train": TRAIN, "valid": VALID}
    lengths = [len(ids) + 2 for ids in tokenizer.encode([row.text for row in TRAIN])]
    monkeypatch.setattr(labelled_folder, "LONG_LENGTH", max(lengths) - 1)
    counts = write_labelled(tmp_path / "out", CLASSES, splits, tokenizer).splits["train"]
    assert (counts.examples, counts.tokens, counts.long) == (3, sum(lengths), lengths.count(max(lengths)))
    monkeypatch.setattr(labelled_folder, "LONG_LENGTH", max(lengths))
    counts = write_labelled(tmp_path / "again", CLASSES, splits, tokenizer).splits["train"]
    assert counts.long == 0


def test_batches_leave_no_seam(tmp_path, tokenizer, monkeypatch):
    rows = [Example("good " * (1 + row % 5), f"label {row % 2}") for row in range(23)]
    write_labelled(tmp_path / "whole", CLASSES, {"train": iter(rows)}, tokenizer)
    monkeypatch.setattr(labelled_folder, "BATCH", 4)
    write_labelled(tmp_path / "pieces", CLASSES, {"train": iter(rows)}, tokenizer)
    assert files_below(tmp_path / "whole") == files_below(tmp_path / "pieces")
    for text, said in ((" ", "the text is empty"), ("\u200b", "no piece is left")):
        with pytest.raises(UserError, match=f"split train, row 24: {said}"):
            write_labelled(tmp_path / "bad", CLASSES, {"train": [*rows, Example(text, "label 0")]}, tokenizer)


class Recorder(Tokenizer):
    """Keeps the lines that it is given: sentencepiece would hide white space, byte-level BPE would not."""

    def __init__(self):
        super().__init__(Dictionary(), {})
        self.lines: list[str] = []

    def encode(self, lines) -> list[np.ndarray]:
        self.lines.extend(lines)
        return [np.array([3], dtype=np.int32) for _ in lines]

    def _decode(self, rows) -> list[str]:
        raise NotImplementedError


@pytest.mark.parametrize("text", [" good\r\nfilm\t", "good\u2028film"])
def test_line_ends_and_tabs_are_white_space(tmp_path, text):
    recorder = Recorder()
    rows = [Example(text, "x"), Example("two  spaces", "x")]
    write_labelled(tmp_path / "out", CLASSES, {"train": rows}, recorder)
    assert recorder.lines[:2] == ["good film", "two  spaces"]  # the rest are characters, as all is unknown here


def test_a_test_split_needs_no_labels(tmp_path, tokenizer):
    write_labelled(tmp_path / "out", CLASSES, {"test": [Example("good", None)], "train": TRAIN}, tokenizer)
    task = load_task(tmp_path / "out", "train", "test")
    assert len(tokens(task, "test", 0)) > 2
    assert "target" not in task.dataset("test")[0]
    labelled = {"train": TRAIN, "test": [Example("good", "positive")]}
    write_labelled(tmp_path / "labelled", CLASSES, labelled, tokenizer)
    assert class_names(load_task(tmp_path / "labelled", "test"), "test") == ["positive"]


@pytest.mark.parametrize(
    ("splits", "where"),
    [
        ({"valid": VALID}, "train"),
        ({"train": TRAIN, "valid": []}, "split valid"),
        ({"train": [*TRAIN, Example(" \n\t", "positive")]}, "split train, row 4"),
        ({"train": [*TRAIN, Example("a", None)]}, "split train, row 4"),
        ({"train": TRAIN, "valid": [Example("a", None)]}, "split valid, row 1"),
        ({"train": TRAIN, "test": [Example("a", None), Example("a", "negative")]}, "split test, row 1"),
        ({"train": TRAIN, "valid": [*VALID, Example("a", "neutral")]}, "split valid, row 3: .*'neutral'"),
        ({"train": [Example("a", "x", "b"), Example("a", "x")]}, "split train, row 2"),
        ({"train": [Example("a", "two\nlines")]}, "'two"),
        ({"train": [Example("a", "<mask>")]}, "'<mask>'"),
        ({"train": [Example("a", "x"), Example("\u200b", "x")]}, "split train, row 2"),
    ],
)
def test_what_cannot_be_trained_on_is_rejected(tmp_path, tokenizer, splits, where):
    with pytest.raises(UserError, match=where):
        write_labelled(tmp_path / "out", CLASSES, splits, tokenizer)
    assert list(tmp_path.iterdir()) == []  # neither the folder nor a part of it


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", {"kind": "x"}),
        ("splits", {"train": {"later": 1}}),
    ],
)
def test_a_summary_that_is_damaged_or_of_a_later_version_is_named(tmp_path, tokenizer, key, value):
    write_labelled(tmp_path / "out", CLASSES, {"train": TRAIN, "valid": VALID}, tokenizer)
    file = tmp_path / "out" / "task.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, key: {**content[key], **value}}))
    with pytest.raises(UserError, match=r"task\.json"):
        read_summary(tmp_path / "out")


def test_a_summary_of_an_earlier_version_has_no_columns(tmp_path, tokenizer):
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": TRAIN}, tokenizer)
    file = tmp_path / "out" / "task.json"
    content = json.loads(file.read_text())
    del content["task"]["columns"]
    file.write_text(json.dumps(content))
    assert read_summary(tmp_path / "out") == summary


def test_unknown_pieces_are_counted_and_warned_of(tmp_path, tokenizer):
    strange = [Example("a 漢 film", "positive", "字字 good"), Example("bad", "positive", "good")]
    known = [Example("a film", "positive", "good")] * 500
    summary = write_labelled(tmp_path / "out", CLASSES, {"train": known + strange[:1], "valid": strange}, tokenizer)
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
