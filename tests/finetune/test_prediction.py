"""Predictor compared with fairseq's hub, and linformer predict, on runs of two updates."""

import contextlib
import itertools
import json
import os
import random
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.cli import predict
from fairseq_linformer.cli.command import parser_of
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.data.tasks import TASKS
from fairseq_linformer.errors import UserError
from fairseq_linformer.finetune import prediction
from fairseq_linformer.finetune.prediction import Prediction, Predictor, read_predictions, write_predictions
from tests.helpers.commands import fine_tuning, run
from tests.helpers.inputs import sentences

HEAD = "sentence_classification_head"
MAJORITY = 1  # the number of the most frequent tag of `sentences_of_words`
VALID = [line for line in sentences(40, seed=40).splitlines() if line]  # of the fixture `classification`


def examples(number, *, labels=(None,), seconds=(None,), most=5) -> list[Example]:
    """Texts of one to `most` words, not in the order of their lengths; five words are not truncated."""
    chance = random.Random(1)
    words = sorted({word for line in VALID for word in line.split()})
    texts = [" ".join(chance.choices(words, k=chance.randint(1, most))) for _ in range(number)]
    return [Example(*row) for row in zip(texts, itertools.cycle(labels), itertools.cycle(seconds), strict=False)]


def write_task(folder, tokenizer, splits, kind="single-label", labels=(), scale=1.0) -> Path:
    write_labelled(folder, own_task("own", kind, labels, scale), splits, load_tokenizer(tokenizer))
    return folder


def fine_tune(data, folder, *more) -> Path:
    """Two updates, by the command that users type; return the run's folder."""
    words = ["optimization.max_update=2", "optimization.lr=[0.1]", "lr_scheduler.warmup_updates=1", *more]
    run(*fine_tuning(data, *words), cwd=folder)
    return folder / "runs" / data.name


def fine_tune_own(kind, rows, tokenizer, folder, *more, scale=1.0) -> Path:
    """The run of an own task, with the first rows as validation and all rows without labels as test set."""
    splits = {"train": rows, "valid": rows[:9], "test": [replace(row, label=None) for row in rows]}
    return fine_tune(write_task(folder / "own", tokenizer, splits, kind, scale=scale), folder, *more)


def changed(source, folder, drop=(), **task) -> Path:
    """The folder of a copy of a run, with other options of its task, and a head of the width that they need."""
    state = torch.load(source / "checkpoint_best.pt", weights_only=True)
    options = {**state["cfg"]["task"], **task}
    del state["task_state"]["labels"]  # as in older checkpoints
    state["cfg"]["task"] = {name: value for name, value in options.items() if name not in drop}
    for name, value in state["model"].items():
        if name.startswith(f"classification_heads.{HEAD}.out_proj.") and len(value) != options["num_classes"]:
            random_numbers = torch.Generator().manual_seed(1)
            state["model"][name] = torch.randn(options["num_classes"], *value.shape[1:], generator=random_numbers)
    folder.mkdir(parents=True)
    torch.save(state, folder / "checkpoint_best.pt")
    return folder


@pytest.fixture(scope="module")
def reviews(classification, tmp_path_factory) -> Path:
    """The run of a model of single texts, with the classes 0 and 1."""
    return fine_tune(classification, tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def scores(classification, tmp_path_factory) -> Path:
    """The run of a regression of pairs from 0 to 5."""
    rows = examples(33, labels=[str(number / 10) for number in range(0, 51, 5)], seconds=["dog", "the cat"], most=3)
    return fine_tune_own("regression", rows, classification, tmp_path_factory.mktemp("scores"), scale=5.0)


TOPICS = [("pets", "home"), (), ("sea",), ("pets",)]


@pytest.fixture(scope="module")
def topics(classification, tmp_path_factory) -> Path:
    """The run of a model of several classes per row."""
    rows = examples(32, labels=TOPICS)
    return fine_tune_own("multi-label", rows, classification, tmp_path_factory.mktemp("topics"))


def sentences_of_words(number) -> list[Example]:
    """Rows of words, each tagged by its first letter."""
    rows = [tuple(row.text.split()) for row in examples(number, most=9)]
    return [Example(row, tuple("first" if word < "f" else "second" for word in row)) for row in rows]


@pytest.fixture(scope="module")
def tagged(classification, tmp_path_factory) -> Path:
    """The run of a model of token labels."""
    folder, rows = tmp_path_factory.mktemp("tagged"), sentences_of_words(32)
    made = fine_tune_own("token-label", rows, classification, folder, "task.truncate_to=24")
    state = torch.load(made / "checkpoint_best.pt", weights_only=True)
    chance = torch.Generator().manual_seed(1)
    for name in (f"classification_heads.{HEAD}.{layer}.weight" for layer in ("dense", "out_proj")):
        state["model"][name] = torch.randn(state["model"][name].shape, generator=chance)  # to tell words apart
    torch.save(state, made / "checkpoint_best.pt")
    return made


def predictor_of(folder, data=None) -> Predictor:
    return Predictor(folder / "checkpoint_best.pt", data)


def assert_close(predictions, expected):
    for row, expected_row in zip(predictions, expected, strict=True):
        assert row.label == expected_row.label
        assert row.probabilities == pytest.approx(expected_row.probabilities, abs=1e-5)


@pytest.fixture
def small_batches(monkeypatch) -> None:
    monkeypatch.setattr(prediction, "CHUNK", 7)
    monkeypatch.setattr(prediction, "batch_tokens", lambda _: 60)


def test_probabilities_are_those_of_fairseqs_hub_row_by_row(reviews, small_batches):
    rows = examples(25)
    classifier = LinformerRobertaModel.from_pretrained(str(reviews)).eval()
    expected = [classifier.predict(HEAD, classifier.encode(row.text)).exp().flatten().tolist() for row in rows]
    assert max(row[0] for row in expected) - min(row[0] for row in expected) > 0.01, "rows differ"
    named = [dict(zip("01", row, strict=True)) for row in expected]
    labels = [max(row, key=row.__getitem__) for row in named]
    assert_close(predictor_of(reviews).texts(rows), map(Prediction, labels, named))


def test_the_hub_classifies_texts_pairs_and_words(reviews, scores, tagged):
    pairs = examples(9, seconds=["dog"])
    for folder, rows in ((reviews, examples(9)), (scores, pairs), (tagged, sentences_of_words(9))):
        hub = LinformerRobertaModel.from_pretrained(str(folder))
        inputs = [row.text if row.second is None else (row.text, row.second) for row in rows]
        assert_close(hub.classify(inputs), predictor_of(folder).texts(rows))
    assert hub.classify(["the old dog"]) == hub.classify([["the", "old", "dog"]])
    with pytest.raises(UserError, match="rows=the old dog"):
        hub.classify("the old dog")


def test_splits_are_predicted_like_texts_and_long_texts_are_truncated_as_in_training(reviews, tmp_path):
    """Splits are truncated by the task that training uses; a random crop becomes the head."""
    predictor = predictor_of(reviews)
    predictions, labels = predictor.split("valid")
    assert labels == [str(int("dog" in line or "cat" in line)) for line in VALID]
    assert predictor.split("test")[1] is None
    with pytest.raises(FileNotFoundError, match="valid1"):
        predictor.split("valid1")
    predictions = {"whole": predictions}
    for method in ("head", "tail", "head-tail", "random-crop"):
        predictor = predictor_of(changed(reviews, tmp_path / method, truncation=method, truncate_to=9))
        predictions[method] = predictor.split("valid")[0]
        assert_close(predictions[method], predictor.texts(Example(line, None) for line in VALID))
        assert (predictor.longest, 0 < predictor.cut <= len(VALID)) == (9, True)
    assert predictor.split("train") == predictor_of(tmp_path / "head").split("train")
    assert predictions.pop("random-crop") == predictions["head"]
    for first, second in itertools.combinations(predictions.values(), 2):
        differences = [a.probabilities["0"] - b.probabilities["0"] for a, b in zip(first, second, strict=True)]
        assert max(map(abs, differences)) > 1e-3


def test_scores_and_labels_of_a_regression_have_their_own_scale(scores):
    predictor = predictor_of(scores)
    of_split, labels = predictor.split("valid")
    assert labels == ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]
    rows = examples(9, seconds=["dog", "the cat"], most=3)
    classifier = LinformerRobertaModel.from_pretrained(str(scores)).eval()
    for predictions in (of_split, predictor.texts(rows)):
        for row, predicted in zip(rows, predictions, strict=True):
            output = classifier.predict(HEAD, classifier.encode(row.text, row.second), return_logits=True).item()
            assert float(predicted.label) == pytest.approx(5 * output, abs=1e-4) and predicted.probabilities == {}
    assert len({row.label for row in of_split}) > 5 and predictor.labels == () and predictor.pairs


def test_several_classes_per_row(topics):
    """Classes with a probability above a half, by fairseq's hub row by row."""
    predictor = predictor_of(topics)
    predictions, labels = predictor.split("valid")
    assert labels == [tuple(sorted(TOPICS[row % 4])) for row in range(9)]
    rows = examples(32)
    classifier = LinformerRobertaModel.from_pretrained(str(topics)).eval()
    expected = []
    for row in rows:
        logits = classifier.predict(HEAD, classifier.encode(row.text), return_logits=True)[0]
        probabilities = dict(zip(("home", "pets", "sea"), logits.sigmoid().tolist(), strict=True))
        expected.append(Prediction(tuple(name for name, value in probabilities.items() if value > 0.5), probabilities))
    assert_close(predictor.texts(rows), expected)
    assert_close(predictions, predictor.texts(rows[:9]))
    assert predictor.split("test")[1] is None


def test_a_tag_per_word(tagged, classification, small_batches):
    """By the hub's logits at the position of each word's first piece."""
    rows, tokenizer = sentences_of_words(32), load_tokenizer(classification)
    classifier = LinformerRobertaModel.from_pretrained(str(tagged)).eval()
    expected, cut = [], []
    for row in rows:
        pieces = tokenizer.encode([f"{' ' if number else ''}{word}" for number, word in enumerate(row.text)])
        ids = [*[0, *itertools.chain.from_iterable(map(np.ndarray.tolist, pieces))][:23], 2]
        logits = classifier.predict(HEAD, torch.tensor(ids), return_logits=True)[0]
        starts = [1 + sum(map(len, pieces[:word])) for word in range(len(pieces))]
        classes = [int(logits[start].argmax()) if start < len(ids) - 1 else MAJORITY for start in starts]
        expected.append(tuple(("first", "second")[number] for number in classes))
        cut.append(sum(start >= len(ids) - 1 for start in starts))
    predictions = list(predictor_of(tagged).texts(rows))
    assert [row.label for row in predictions] == expected and [row.cut for row in predictions] == cut
    assert sum(cut) > 5 and len(set(itertools.chain.from_iterable(expected))) == 2
    predictor = predictor_of(tagged)
    assert predictor.split("valid") == (list(predictor.texts(rows[:9])), [row.label for row in rows[:9]])
    assert predictor.split("test") == (list(predictor.texts(rows)), None)


def test_a_checkpoint_of_fairseqs_own_task(reviews, classification, tmp_path):
    """It has no options for truncation: only the head of a long text counts."""
    dropped = ("truncation", "truncate_to", "kind")
    fairseqs = changed(reviews, tmp_path / "run", drop=dropped, _name="sentence_prediction")
    rows = [*examples(5), Example("dog " * 40, None)]
    assert_close(predictor_of(fairseqs).texts(rows), predictor_of(reviews).texts(rows))
    data = write_task(tmp_path / "long", classification, {"test": rows}, labels=("0", "1"))
    assert_close(*(predictor_of(folder, data).split("test")[0] for folder in (fairseqs, reviews)))
    with (data / "label/dict.txt").open("a") as file:
        file.write("madeupword0000 0\n")  # as fairseq-preprocess adds
    assert predictor_of(fairseqs, data).labels == ("0", "1")
    wider = write_task(tmp_path / "wider", classification, {"test": rows}, labels=TASKS["MNLI"].classes)
    with pytest.raises(ValueError, match="2 outputs"):
        predictor_of(fairseqs, wider)


def test_the_data_of_another_folder(reviews, topics, classification, tmp_path):
    """It must have the checkpoint's vocabulary and classes, of which older checkpoints have only the number."""
    rows = examples(6, labels=("bad", "good"))
    named = write_task(tmp_path / "named", classification, {"train": rows, "test": rows})
    predictions, labels = predictor_of(changed(reviews, tmp_path / "older"), named).split("test")
    assert labels == ["bad", "good"] * 3
    for row, expected in zip(predictions, predictor_of(reviews).texts(rows), strict=True):
        assert row.label == {"0": "bad", "1": "good"}[expected.label]
        assert row.probabilities["good"] == pytest.approx(expected.probabilities["1"], abs=1e-5)

    with pytest.raises(UserError, match=r"classes=\['0', '1'\]"):
        predictor_of(reviews, named)
    with pytest.raises(UserError, match="kind=multi-label"):  # parameters may have the same names and shapes
        predictor_of(topics, named)
    for dictionary in (named / "dict.txt", named / "input0/dict.txt"):
        dictionary.write_text(dictionary.read_text() + "new 1\n")
    with pytest.raises(ValueError, match="named has another dictionary"):
        predictor_of(reviews, named)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/none"):
        predictor_of(reviews, tmp_path / "none")


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("multi-label", [("label", "prediction"), ("a\tb",), ()]), ("token-label", [("label", "prediction") * 6000])],
)
def test_saved_predictions_of_several_classes_are_read_again(kind, labels, tmp_path):
    probabilities = {"label": 0.2, "prediction": 0.8} if kind == "multi-label" else {}
    predictor = SimpleNamespace(split=lambda name: ([Prediction(label, probabilities) for label in labels], labels))
    write_predictions(predictor, "valid", tmp_path / "predictions.tsv")
    assert read_predictions(own_task("own", kind), tmp_path / "predictions.tsv") == (labels, labels)


TEXTS = ["the old dog", 'the "young cat', "the\rbird", "fish swims today", "the small dog barks today"]


def as_file(folder, kind, texts, seconds=None) -> Path:
    path = folder / f"texts.{kind}"
    rows = [{"second": second, "text": text} for text, second in zip(texts, seconds or texts, strict=True)]
    tables = {"tsv": ["second\ttext", *("\t".join(row.values()) for row in rows)], "jsonl": map(json.dumps, rows)}
    lines = tables.get(kind, texts)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@contextlib.contextmanager
def piped(content, monkeypatch):
    """Bytes as standard input, which can be read once."""
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    with open(reading, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        yield


def printed(capsys, folder, source, **options) -> list[str]:
    predict.predict(folder, str(source), **options)
    return capsys.readouterr().out.splitlines()


def test_every_format_prints_the_same(reviews, tmp_path, capsys, monkeypatch):
    expected = list(predictor_of(reviews).texts(Example(text, None) for text in TEXTS))
    cells = [[row.label, *(f"{value:.4f}" for value in row.probabilities.values())] for row in expected]
    table = ["label\t0\t1", *map("\t".join, cells)]
    for kind in ("txt", "tsv", "jsonl"):
        assert printed(capsys, reviews, as_file(tmp_path, kind, TEXTS)) == table
    path = (tmp_path / "texts.jsonl").rename(tmp_path / "texts.ndjson")
    assert printed(capsys, reviews, path) == table
    assert printed(capsys, reviews / "checkpoint_best.pt", path.rename(tmp_path / "other"), format="jsonl") == table
    with piped("\n".join(TEXTS).encode(), monkeypatch):
        assert printed(capsys, reviews, "-") == table
    for line, row in zip(printed(capsys, reviews, as_file(tmp_path, "txt", TEXTS), to="jsonl"), expected, strict=True):
        assert json.loads(line) == {"label": row.label, "probabilities": pytest.approx(row.probabilities, abs=1e-6)}


def test_pairs_and_scores(scores, tmp_path, capsys):
    seconds = TEXTS[::-1]
    expected = predictor_of(scores).texts(map(Example, TEXTS, [None] * 5, seconds))
    table = ["score", *(row.label for row in expected)]
    path = as_file(tmp_path, "tsv", TEXTS, seconds)
    assert printed(capsys, scores, path, second="second") == table
    assert printed(capsys, scores, path, text="second", second="text")[1:] != table[1:]
    data = shutil.copytree(scores.parent.parent / "own", tmp_path / "own")
    summary = json.loads((data / "task.json").read_text())
    summary["task"]["columns"] = ["second", "text"]  # of what it was prepared from
    (data / "task.json").write_text(json.dumps(summary))
    assert printed(capsys, scores, path, data=data) == printed(capsys, scores, path, text="second", second="text")
    assert printed(capsys, scores, path, data=data, text="text", second="second") == table


@pytest.mark.parametrize("top", [None, 2])
def test_the_most_probable_of_several_classes_are_printed(topics, tmp_path, capsys, top):
    path = as_file(tmp_path, "txt", TEXTS)
    expected = list(predictor_of(topics).texts(Example(text, None) for text in TEXTS))
    header, *lines = (line.split("\t") for line in printed(capsys, topics, path, top=top))
    rows = [json.loads(line)["probabilities"] for line in printed(capsys, topics, path, top=top, to="jsonl")]
    if top is None:
        assert header == ["labels", "home", "pets", "sea"]
        assert rows == [pytest.approx(row.probabilities) for row in expected]
        return
    assert header[1:] == [f"{name}{rank}" for rank in (1, 2) for name in ("class", "probability")]
    for prediction_row, line, row in zip(expected, lines, rows, strict=True):
        pairs = sorted(prediction_row.probabilities.items(), key=lambda pair: -pair[1])[:top]
        cells = [cell for name, value in pairs for cell in (name, f"{value:.4f}")]
        assert line == [",".join(prediction_row.label), *cells] and [*row] == [name for name, _ in pairs]


def test_words_and_their_tags_are_printed(tagged, tmp_path, capsys):
    texts = ["the old dog", "  barks  ", "cat bird fish today dog cat bird fish today"]
    path = as_file(tmp_path, "txt", texts)
    expected = list(predictor_of(tagged).texts(Example(tuple(text.split()), None) for text in texts))
    predict.predict(tagged, str(path))
    captured = capsys.readouterr()
    blocks = captured.out.removesuffix("\n\n").split("\n\n")
    assert [[tuple(line.split("\t")) for line in block.split("\n")] for block in blocks] == [
        list(zip(text.split(), row.label, strict=True)) for text, row in zip(texts, expected, strict=True)
    ]
    cut = sum(row.cut for row in expected)
    assert cut and f"{cut} of 13 words were truncated" in captured.err
    lists = tmp_path / "lists.jsonl"
    lists.write_text(json.dumps({"text": ["the", "o\tl\nd", "dog"]}))
    assert [line.split("\t")[0] for line in printed(capsys, tagged, lists)] == ["the", "o l d", "dog", ""]
    rows = map(json.loads, printed(capsys, tagged, path, to="jsonl"))
    assert list(rows) == [
        {"words": text.split(), "labels": list(row.label)} for text, row in zip(texts, expected, strict=True)
    ]


@pytest.mark.parametrize(
    ("model", "name", "content", "options", "named"),
    [
        ("reviews", "texts.txt", b"dog\n\ncat\n \n", {}, r"texts\.txt.*line 2"),
        ("reviews", "texts.jsonl", b'{"text": "dog"}\n{"text": ["a", "dog"]}\n', {}, "line 2"),
        ("reviews", "texts.txt", b"dog\n", {"text": "text"}, "--text"),
        ("reviews", "texts.tsv", b"text\tb\n1\t2\n", {"second": "b"}, "--second b"),
        ("reviews", "texts.doc", b"dog\n", {}, "--from"),
        ("scores", "texts.tsv", b"text\tb\n1\t2\n", {}, "--second"),
        ("scores", "texts.tsv", b"text\tb\n1\t2\n", {"second": "b", "top": 2}, "--top 2"),
        ("tagged", "texts.txt", b"dog\n", {"top": 2}, "--top 2"),
    ],
)
def test_unsuitable_input_and_options_are_named(request, tmp_path, capsys, model, name, content, options, named):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=named):
        printed(capsys, request.getfixturevalue(model), tmp_path / name, **options)
    assert capsys.readouterr().out == ""


def test_a_folder_without_a_fine_tuned_model_is_named(reviews, tmp_path, capsys):
    file = as_file(tmp_path, "txt", TEXTS)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/checkpoint_best.pt"):
        printed(capsys, tmp_path, file)
    with pytest.raises(UserError, match=str(reviews)):
        printed(capsys, reviews.parent, file)


@pytest.mark.parametrize("bad", [b"\n", b"d\xf6g\n"])
def test_nothing_is_predicted_before_all_rows_are_checked(reviews, tmp_path, capsys, monkeypatch, bad):
    """In a file, and in a pipe, which can be read once."""
    monkeypatch.setattr(prediction, "CHUNK", 2)
    content = b"dog\n" * 5 + bad
    (tmp_path / "texts.txt").write_bytes(content)
    for source, name in ((str(tmp_path / "texts.txt"), "texts.txt"), ("-", "standard input")):
        with piped(content, monkeypatch), pytest.raises(ValueError, match=rf"{name}.*line 6"):
            predict.predict(reviews, source)
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", ["a", "a --input a.txt --out b", "--runs a --data b --out c --to jsonl"])
def test_incompatible_options_are_rejected(words):
    with pytest.raises(UserError, match="--input"):
        predict.run(**vars(parser_of("predict").parse_args(words.split())))


def write_results(folder, *runs) -> Path:
    """The part of linformer finetune's results that a submission reads, with links to the runs."""
    folder.mkdir()
    rows = []
    for number, (task, score, run_folder) in enumerate(runs):
        (folder / str(number)).symlink_to(run_folder)
        rows.append({"task": task, "folder": str(number), "scores": {}, "score": score, "error": ""})
    (folder / "results.json").write_text(json.dumps({"runs": rows}))
    return folder


@pytest.fixture
def glue(scores, reviews, classification, tmp_path, monkeypatch) -> SimpleNamespace:
    """Runs and prepared data of WNLI in its official size, of MNLI, AX and STS-B in small ones; SST-2 without data."""
    data = tmp_path / "tasks"
    for task, rows in {"WNLI": 146, "MNLI": 7, "AX": 5, "STS-B": 6}.items():
        official = TASKS[task]
        splits = {name: file for name, file in official.source.files.items() if name.startswith("test")}
        splits = {name: replace(file, rows=rows + (name == "test1")) for name, file in splits.items()}
        monkeypatch.setitem(TASKS, task, replace(official, source=replace(official.source, files=splits)))
        tests = {name: examples(file.rows, seconds=["dog", "cat"]) for name, file in splits.items()}
        write_task(data / task, classification, tests, official.kind, official.classes, official.scale)
    options = {"kind": "single-label", "regression_target": False}
    wnli = changed(scores, tmp_path / "wnli", data=str(data / "WNLI"), num_classes=2, **options)
    mnli = changed(scores, tmp_path / "mnli", data=str(data / "MNLI"), num_classes=3, **options)
    runs = [("WNLI", 50.0, tmp_path / "worse"), ("WNLI", 60.0, wnli), ("MNLI", 40.0, mnli), ("STS-B", 1.0, scores)]
    return SimpleNamespace(runs=write_results(tmp_path / "runs", *runs, ("SST-2", 9.0, reviews)), data=data)


def test_a_submission(glue, scores, tmp_path, capsys):
    out = tmp_path / "submission"
    predict.run(**vars(parser_of("predict").parse_args(f"--runs {glue.runs} --data {glue.data} --out {out}".split())))
    made_by = json.loads((out / "submission.json").read_text())
    with zipfile.ZipFile(out / "submission.zip") as zipped:
        assert sorted(zipped.namelist()) == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "STS-B.tsv", "WNLI.tsv"]
        tables = {name: zipped.read(name).decode().splitlines() for name in zipped.namelist()}
    for name, run_name in {"AX": "mnli", "MNLI-m": "mnli", "MNLI-mm": "mnli", "WNLI": "wnli"}.items():
        assert Path(made_by[f"{name}.tsv"]).samefile(tmp_path / run_name / "checkpoint_best.pt")
        split = "test1" if name == "MNLI-mm" else "test"
        predictions, _ = predictor_of(tmp_path / run_name, glue.data / name.split("-m")[0]).split(split)
        rows = [f"{number}\t{row.label}" for number, row in enumerate(predictions)]
        assert tables[f"{name}.tsv"] == ["index\tprediction", *rows]
    predicted = [float(row.label) for row in predictor_of(scores, glue.data / "STS-B").split("test")[0]]
    rows = [f"{number}\t{min(5.0, max(0.0, score)):.3f}" for number, score in enumerate(predicted)]
    assert tables["STS-B.tsv"] == ["index\tprediction", *rows] and len(tables["WNLI.tsv"]) == 147
    printed_lines = capsys.readouterr().out.splitlines()
    assert printed_lines[0] == f"{out}/submission.zip: {', '.join(made_by)}"
    assert {"SST-2.tsv", "RTE.tsv"} <= {line.partition(":")[0] for line in printed_lines}


def test_an_invalid_submission_is_rejected_before_any_prediction(glue, tmp_path, monkeypatch):
    out = tmp_path / "submission"
    monkeypatch.setattr(prediction.Predictor, "split", None)
    with pytest.raises(UserError, match=f"{tmp_path}/none"):
        predict.submit(glue.runs, tmp_path / "none", out)
    (tmp_path / "wnli" / "checkpoint_best.pt").rename(tmp_path / "moved.pt")
    with pytest.raises(FileNotFoundError, match="checkpoint_best"):
        predict.submit(glue.runs, glue.data, out)
    source = TASKS["AX"].source
    source = replace(source, files={"test": replace(source.files["test"], rows=9)})
    monkeypatch.setitem(TASKS, "AX", replace(TASKS["AX"], source=source))
    with pytest.raises(UserError, match=r"AX\.tsv"):
        predict.submit(glue.runs, glue.data, out)
    assert not list(tmp_path.glob("submission*"))
