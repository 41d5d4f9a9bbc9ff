"""Own labelled data, from the rows of tables to the folder that fine-tuning reads."""

from pathlib import Path

import pytest

from fairseq_linformer.data.dictionaries import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labels import Columns
from fairseq_linformer.data.prepare.own_data import OwnData, own_data
from fairseq_linformer.data.prepare.table import Row, parse_rows
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.task_record import read_summary
from fairseq_linformer.errors import UserError
from linformer_cli.command import main

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}


def rows_of(*values, columns=("text", "label"), name="FILE") -> list[Row]:
    return [Row(f"{name}, line {line}", dict(zip(columns, row, strict=True))) for line, row in enumerate(values, 2)]


def labelled(*labels) -> list[Row]:
    return rows_of(*((f"text {number}", label) for number, label in enumerate(labels)))


def own(rows, kind=None, fractions=None, seed=1, **others) -> OwnData:
    """Return what a table gives; `others` are further tables, and columns but for text and label."""
    tables = {"train": rows, **{split: others.pop(split) for split in ("valid", "test") if split in others}}
    columns = Columns(**{"text": "text", "labels": ("label",), **others})
    return own_data("own", tables, columns, {"train": 1.0} if fractions is None else fractions, kind, seed)


def texts(data, split) -> list:
    return [example.text for example in data.splits[split]]


def labels_of(data) -> list:
    return [example.label for example in data.splits["train"]]


TWO = rows_of(("good film", "pos"), ("bad film", "neg"), ("fine", "pos"), ("poor", "neg"))
SCORES = [f"{number / 7:.3f}" for number in range(30)]


@pytest.mark.parametrize(
    ("values", "columns", "kind", "labels"),
    [
        (("pos", "neg"), {}, "single-label", ["pos", "neg"]),
        ((1, 2.0, "1", 2), {}, "single-label", ["1", "2", "1", "2"]),
        (("007", "8"), {}, "single-label", ["007", "8"]),
        (("NA", "EU", "NA"), {}, "single-label", ["NA", "EU", "NA"]),
        (("[x]", "[x y], [1]"), {}, "single-label", ["[x]", "[x y], [1]"]),
        (SCORES, {}, "regression", SCORES),
        ((["x", "y"], [], ["x"]), {}, "multi-label", [("x", "y"), (), ("x",)]),
        (('["x", "y, z"]', "[]"), {}, "multi-label", [("x", "y, z"), ()]),
        (("['x', \"y's, z\"]", "[1,2.0]"), {}, "multi-label", [("x", "y's, z"), ("1", "2")]),
        (("x; y", "", "x"), {"separator": ";"}, "multi-label", [("x", "y"), (), ("x",)]),
        ((["y", "x", "y"], ["x"]), {}, "multi-label", [("y", "x"), ("x",)]),
        (([0, 1], [1]), {}, "multi-label", [("0", "1"), ("1",)]),
    ],
)
def test_the_type_of_label_follows_from_the_values(values, columns, kind, labels):
    data = own(labelled(*values), **columns)
    assert (data.task.kind, labels_of(data)) == (kind, labels)


def test_several_label_columns_are_classes():
    rows = rows_of(("a", "1.0", 0), ("b", 0, True), ("c", "0.0", "false"), columns=("text", "toxic", "rude"))
    data = own(rows, labels=("toxic", "rude"))
    assert (data.task.kind, labels_of(data)) == ("multi-label", [("toxic",), ("rude",), ()])
    with pytest.raises(UserError, match="line 2: rude"):
        own(rows_of(("a", 1, 2), columns=("text", "toxic", "rude")), labels=("toxic", "rude"))


def test_lists_of_words_have_a_label_for_each():
    data = own(rows_of((["Ann", "ran"], ["B-PER", "O"]), (["No", "."], ["O", "O"])))
    assert (data.task.kind, labels_of(data)) == ("token-label", [("B-PER", "O"), ("O", "O")])
    assert data.task.headline == ("entity_f1",)
    assert own(rows_of((["Ann"], ["NOUN"]), (["no"], ["DET"]))).task.headline == ("accuracy",)


@pytest.mark.parametrize(
    "values",
    [
        range(30),
        ("3.5", "2.5"),
        [f"label {number}" for number in range(30)],
        [*SCORES, "NA", "3,5"],
        ("1", "2", "NA"),
    ],
)
def test_labels_that_leave_doubt_are_asked_for(values):
    with pytest.raises(UserError, match="--kind"):
        own(labelled(*values))


def test_whole_numbers_with_decimals_are_the_same_classes():
    """pandas writes 1.0 for 1 where the column has empty cells."""
    whole, decimals = [str(row % 2) for row in range(20)], [f"{row % 2}.0" for row in range(20)]
    assert own(labelled(*whole, *decimals, "")).task.classes == ("0", "1")
    data = own(labelled(*whole), fractions={}, valid=rows_of(("v", "0.0"), ("w", "1.0")))
    assert data.task.classes == ("0", "1")
    large = [f"{10**18 + row % 2}.0" for row in range(4)]  # one number in floating point
    assert own(labelled(*large), "single-label").task.classes == (f"{10**18}", f"{10**18 + 1}")
    assert own(labelled("1.0", "other", "other")).task.classes == ("1.0", "other")


def test_scores_are_divided_by_the_highest_of_train():
    assert own(labelled(*(1 + row % 10 for row in range(40)))).task.kind == "single-label"
    assert own(labelled(*(1 + row % 10 for row in range(40))), "regression").task.scale == 10.0
    assert own(labelled(-8, 2), "regression").task.scale == 8.0
    assert own(labelled(0, 0.0), "regression").task.scale == 1.0


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([*TWO, *rows_of(("x", ["pos"]))], "single-label", "line 2: label"),
        (labelled("1.5", "high"), "regression", "line 3: label"),
        (labelled("1.5", "nan"), "regression", "line 3: label"),
        (TWO, "token-label", "line 2: label"),
        (TWO, "multi-label", "line 2: label"),
        (rows_of((["a", "b"], ["O"])), None, "line 2: 2 words"),
        (labelled({"x": 1}), None, "line 2: label"),
        (rows_of(("a", "x"), (["b"], "x")), None, "line 3: text"),
        (labelled("['x' 'y']"), None, "line 2: label"),
        (labelled("['x\n 'y']"), None, "line 2: label"),
        (labelled("[0. 1. 0.]"), None, "line 2: label"),
        (labelled("[('x', 'y')]"), None, "line 2: label"),
        (labelled([0, 1, 0], [1, 0, 0]), None, "line 2: label"),
        (labelled([0.0, 1.0], [1.0, 0.0]), None, "line 2: label"),
        (labelled("[true, false]", "[false, false]"), "multi-label", "line 2: label"),
        (rows_of((5, "x")), None, "line 2: text"),
        (rows_of(("a", "x"), columns=("txt", "label")), None, "line 2: .*did you mean txt"),
        (labelled("x", "x"), None, "one class"),
        (labelled([], []), None, "no class"),
        ([], "single-label", "train"),
    ],
)
def test_what_cannot_be_used_is_named(rows, kind, message):
    with pytest.raises(UserError, match=message):
        own(rows, kind)


def test_empty_rows_are_left_out_and_counted():
    data = own([*TWO, *rows_of((" \n\u200b\ufeff\ufffd", "pos"), (None, "pos"), ("x", ""), ("y", None), ("NA", "neg"))])
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor", "NA"]
    assert {"train: 2 rows with an empty text are left out", "train: 2 rows with an empty label are left out"} <= {
        *data.notes
    }
    pairs = [("a", "b", "x"), ("c", None, "y"), (None, "d", "y"), ("e", "f", "y")]
    assert texts(own(rows_of(*pairs, columns=("text", "to", "label")), second="to"), "train") == ["a", "e"]


def test_the_audit():
    """Texts in several rows, those with different labels, and labels that occur once."""
    rows = rows_of(*((f"film {i}", "pos" if i % 2 else "neg") for i in range(100)), ("Film  1", "neg"), ("odd", "rare"))
    notes = own(rows, fractions=SHARES).notes
    assert "1 texts stand in several rows (2): each in one split" in notes
    assert "warning: 1 of these texts have different labels (2 rows)" in notes
    assert "warning: 1 labels occur once in train: rare" in notes


@pytest.mark.parametrize(
    ("values", "differ"),
    [
        ((("a", ["x", "y"]), ("a", ["y", "x"]), ("b", ["x"])), False),
        ((("a", "1"), ("a", "1.0"), ("b", "2")), False),
        (((["a", "b"], ["x", "y"]), (["a", "b"], ["y", "x"])), True),
    ],
)
def test_different_labels_of_one_text(values, differ):
    notes = own(rows_of(*values)).notes
    assert "1 texts stand in several rows (2): each in one split" in notes
    assert any("different labels" in note for note in notes) == differ


def test_dev_and_test_sets_of_their_own_stay_as_they_are():
    rows = [*TWO, *rows_of(("Shared  text", "pos"), ("in both", "neg"))]
    valid = rows_of(("shared text", "pos"), ("in both", "neg"), ("new", "pos"))
    data = own(rows, fractions={}, valid=valid, test=rows_of(("IN BOTH", "neg")))
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor"]
    assert texts(data, "valid") == ["shared text", "new"] and texts(data, "test") == ["IN BOTH"]
    assert "train: 2 rows whose text or group is in valid or test are left out" in data.notes
    with pytest.raises(UserError, match="VALID, line 2: label 'x'"):
        own(TWO, fractions={}, valid=rows_of(("t", "x"), name="VALID"))


def test_the_rows_of_a_group_stay_together():
    groups = [number for number in range(20) for _ in range(10)]
    values = ((f"{row}", "xy"[row % 2], group) for row, group in enumerate(groups))
    data = own(rows_of(*values, columns=("text", "label", "document")), fractions=SHARES, group="document")
    by_split = [{groups[int(text)] for text in texts(data, split)} for split in data.splits]
    assert [len(numbers) for numbers in by_split] == [16, 2, 2] and set.union(*by_split) == set(range(20))


def test_a_test_set_needs_no_labels():
    for test in (rows_of(("t",), columns=("text",)), rows_of(("t", None))):
        data = own(TWO, fractions={}, valid=rows_of(("v", "pos")), test=test)
        assert data.splits["test"] == [Example("t", None)] and data.task.scored == {"valid": ""}
    splits = {"valid": rows_of(("v", "x")), "test": rows_of(("t", ""))}
    data = own(rows_of(("a", "x;y"), ("b", "y")), fractions={}, separator=";", **splits)
    assert data.splits["test"] == [Example("t", None)]
    train, words = (parse_rows(lines, "conll", "FILE") for lines in ([b"Ann B\n", b"ran O\n"], [b"Bob\n", b"ran\n"]))
    data = own(train, test=words, text="0", labels=("-1",))
    assert data.splits["test"] == [Example(("Bob", "ran"), None)] and data.task.classes == ("B", "O")


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "sentencepiece.bpe.model"
    lines = ["a good film that is good", "a bad film, not good", "films are long: 0123456789"]
    train_sentencepiece(lines, path, 290, 1)
    return path


def prepare(folder, vocabulary, *words):
    main(["prepare", "table", *map(str, words), "--tokenizer", str(vocabulary), "--out", str(folder / "out" / "mine")])
    return read_summary(folder / "out" / "mine")


def test_a_csv_becomes_a_task(tmp_path, vocabulary, capsys):
    values = [("good", "pos"), ("bad", "neg")] * 25
    rows = [f'"a {word} film, number {row}\n""good""",{label}' for row, (word, label) in enumerate(values)]
    (tmp_path / "films.csv").write_text("\n".join(["review,verdict", *rows]))
    summary = prepare(tmp_path, vocabulary, tmp_path / "films.csv", "--text", "review", "--label", "verdict")
    assert summary.task.classes == ("neg", "pos") and summary.task.columns == ("review",)
    assert summary.task.scored == {"valid": "", "test": "test"} and summary.task.dev_sets == {"valid": ""}
    assert {split: counts.examples for split, counts in summary.splits.items()} == {"train": 40, "valid": 5, "test": 5}
    printed = capsys.readouterr().out
    assert "rows of train by class: pos (20), neg (20)" in printed and "classes are not in" not in printed
    assert "next: " not in printed, "no model is named"


def test_sentences_in_columns_become_token_labels(tmp_path, vocabulary):
    sentences = "".join(f"{i} B-X\ngood O\n\nfilm{i} O\n\n" for i in range(10))
    (tmp_path / "ner.conll").write_text(f"-DOCSTART- O\n\n{sentences}")
    words = ("--text", "0", "--label", "-1", "--split", "0.5", "0.5")
    summary = prepare(tmp_path, vocabulary, tmp_path / "ner.conll", *words)
    assert (summary.task.kind, summary.task.classes) == ("token-label", ("B-X", "O"))
    assert {split: counts.examples for split, counts in summary.splits.items()} == {"train": 10, "valid": 10}
    dictionary = load_dictionary(tmp_path / "out" / "mine" / "label" / DICTIONARY_FILE)
    assert dictionary.count[dictionary.index("O")] > dictionary.count[dictionary.index("B-X")]


@pytest.mark.parametrize(
    ("words", "counts", "unused"),
    [
        ("imdb", {"train": 54, "valid": 6, "test": 20}, "unsupervised"),
        ("imdb/train", {"train": 48, "valid": 6, "test": 6}, None),
        ("imdb/train --valid imdb/test --test imdb", {"train": 60, "valid": 0, "test": 20}, None),
        ("imdb/train --valid imdb/unsupervised", {"train": 60, "valid": 20}, None),
        ("imdb --valid imdb", None, None),
    ],
)
def test_splits_of_a_saved_data_set(tmp_path, vocabulary, monkeypatch, capsys, words, counts, unused):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    sizes = {"train": 60, "test": 20, "unsupervised": 20}
    splits = {
        name: datasets.Dataset.from_dict(
            {"text": [f"{name} film {row}" for row in range(size)], "label": [row % 2 for row in range(size)]}
        )
        for name, size in sizes.items()
    }
    datasets.DatasetDict(splits).save_to_disk("imdb")
    if counts is None or 0 in counts.values():
        with pytest.raises(SystemExit, match="valid"):
            prepare(tmp_path, vocabulary, *words.split())
        return
    summary = prepare(tmp_path, vocabulary, *words.split())
    assert {split: found.examples for split, found in summary.splits.items()} == counts
    assert [line for line in capsys.readouterr().out.splitlines() if "not used" in line] == (
        [f"not used: imdb, split {unused}"] if unused else []
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "0.5", "0.4"), "--split"),
        (("--split", "1.0"), "--split"),
        (("--test", "TABLE", "--split", "0.8", "0.1", "0.1"), "--split"),
        (("--valid", "TABLE", "--split", "0.9", "0.1"), "--split"),
        (("--label", "verdict"), "'verdict'"),
        (("--kind", "ordinal"), "'ordinal'"),
        (("--valid", "none.csv"), "none.csv"),
        (("--from", "txt"), "'label'"),
    ],
)
def test_what_cannot_be_prepared(tmp_path, vocabulary, capsys, options, message):
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(30)))
    with pytest.raises(SystemExit) as ended:
        prepare(tmp_path, vocabulary, table, *(str(table) if option == "TABLE" else option for option in options))
    assert message in f"{ended.value.code}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["sst_2", "a b", ".hidden", "-x", "x" * 201, "a\nb"])
def test_a_name_that_cannot_be_a_task_is_rejected_before_anything_is_read(tmp_path, vocabulary, name):
    with pytest.raises(SystemExit, match="--out"):
        main(["prepare", "table", "none.csv", "--tokenizer", str(vocabulary), "--out", str(tmp_path / name)])
    assert not list(tmp_path.iterdir())
