"""Own labelled data, from the files that users have to the folder that fine-tuning reads."""

from pathlib import Path

import pytest

from fairseq_linformer.data.dictionaries import DICTIONARY_FILE, load_dictionary
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.label_kinds import Columns
from fairseq_linformer.data.prepare.own_data import OwnData, own_data
from fairseq_linformer.data.prepare.table_formats import Row, parse_rows
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.summary import read_summary
from fairseq_linformer.data.tokenizer import load_tokenizer
from fairseq_linformer.errors import UserError
from linformer_cli.command import main

THIRDS = {"train": 0.8, "valid": 0.1, "test": 0.1}


def rows_of(*values, columns=("text", "label"), name="FILE") -> list[Row]:
    return [Row(f"{name}, line {number}", columns, row) for number, row in enumerate(values, 2)]


def own(rows, kind=None, fractions=None, seed=1, **others) -> OwnData:
    """What a table gives; `others` are further tables, and columns but for text and label."""
    tables = {"train": rows, **{split: others.pop(split) for split in ("valid", "test") if split in others}}
    columns = Columns(**{"text": "text", "labels": ("label",), **others})
    return own_data("own", tables, columns, {"train": 1.0} if fractions is None else fractions, kind, seed)


def texts(data, split) -> list:
    return [example.text for example in data.splits[split]]


TWO = rows_of(("good film", "pos"), ("bad film", "neg"), ("fine", "pos"), ("poor", "neg"))


@pytest.mark.parametrize(
    ("rows", "columns", "kind", "labels"),
    [
        (TWO, {}, "single-label", ["pos", "neg", "pos", "neg"]),
        (rows_of(("a", 1), ("b", 2.0), ("c", "1"), ("d", 2)), {}, "single-label", ["1", "2", "1", "2"]),
        (
            rows_of(*((f"t{i}", f"{i / 7:.3f}") for i in range(30))),
            {},
            "regression",
            [f"{i / 7:.3f}" for i in range(30)],
        ),
        (rows_of(("a", ["x", "y"]), ("b", []), ("c", ["x"])), {}, "multi-label", [("x", "y"), (), ("x",)]),
        (rows_of(("a", '["x", "y, z"]'), ("b", "[]")), {}, "multi-label", [("x", "y, z"), ()]),
        (rows_of(("a", "['x', \"y's, z\"]"), ("b", "[1,2.0]")), {}, "multi-label", [("x", "y's, z"), ("1", "2")]),
        (rows_of(("a", "[x]"), ("b", "[x y], [1]")), {}, "single-label", ["[x]", "[x y], [1]"]),
        (rows_of(("a", "x; y"), ("b", ""), ("c", "x")), {"separator": ";"}, "multi-label", [("x", "y"), (), ("x",)]),
        (
            rows_of(("a", "1.0", 0), ("b", 0, True), ("c", "0.0", "false"), columns=("text", "toxic", "rude")),
            {"labels": ("toxic", "rude")},
            "multi-label",
            [("toxic",), ("rude",), ()],
        ),
        (
            rows_of((["Ann", "ran"], ["B-PER", "O"]), (["No", "."], ["O", "O"])),
            {},
            "token-label",
            [("B-PER", "O"), ("O", "O")],
        ),
    ],
)
def test_the_kind_is_what_the_labels_say(rows, columns, kind, labels):
    data = own(rows, **columns)
    assert data.task.kind == kind and data.notes[0].startswith(f"{kind}, as ")
    assert [example.label for example in data.splits["train"]] == labels


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([(f"t{i}", i) for i in range(30)], "label holds 30 different numbers, which may be classes or scores: give"),
        ([("a", "3.5"), ("b", "2.5")], "label holds 2 different numbers, which may be"),
        (
            [(f"t{i}", f"label {i}") for i in range(30)],
            "label holds 30 different texts in 30 rows, which are no classes",
        ),
    ],
)
def test_labels_of_several_kinds_are_asked_for(values, message):
    with pytest.raises(ValueError, match=message):
        own(rows_of(*values))


def test_scores_are_divided_by_the_highest_of_train():
    stars = [(f"film {i}", 1 + i % 10) for i in range(40)]
    assert own(rows_of(*stars)).task.kind == "single-label"
    data = own(rows_of(*stars), "regression")
    assert data.task.scale == 10.0 and "scores from 1 to 10, written divided by 10" in data.notes
    assert own(rows_of(("a", -8), ("b", 2)), "regression").task.scale == 8.0
    assert own(rows_of(("a", 0), ("b", 0.0)), "regression").task.scale == 1.0
    years = [(f"book {i}", 1800 + i) for i in range(100)]
    assert (
        "warning: the scores' standard deviation, 28.9, is less than 5%" in own(rows_of(*years), "regression").notes[-1]
    )


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([*TWO, *rows_of(("x", ["pos"]))], "single-label", r"FILE, line 2: label of a text is \"\['pos'\]\", but for"),
        (
            rows_of(("a", "1.5"), ("b", "high")),
            "regression",
            "line 3: label is 'high', which is no number, as in 1 of 2 rows",
        ),
        (rows_of(("a", "1.5"), ("b", "nan")), "regression", "line 3: label is 'nan', .*: leave the cell of a missing"),
        (TWO, "token-label", "line 2: label of a text is 'pos', but for token-label it must be a list with"),
        (rows_of((["a", "b"], ["O"])), None, "line 2: 2 words in text, but 1 in label"),
        (rows_of(("a", {"x": 1})), None, "line 2: label is {'x': 1}, a label must be text or a number"),
        (rows_of(("a", "x"), (["b"], "x")), None, "line 3: text must hold text in all rows, or lists of words in all"),
        (rows_of(("a", "['x' 'y']")), None, r"line 2: label is \"\['x' 'y'\]\", but a list must be as JSON has it"),
        (rows_of(("a", "['x\n 'y']")), None, "line 2: label is .*, but a list must be as JSON has it"),
        (rows_of(("a", "[0. 1. 0.]")), None, r"line 2: label is '\[0. 1. 0.\]', but a list must be as JSON has it"),
        (rows_of(("a", "[('x', 'y')]")), None, r"line 2: label is \('x', 'y'\), a label must be text or a number"),
        (rows_of((5, "x")), None, "line 2: text is 5, it must be text"),
        (
            rows_of(("a", "x"), columns=("txt", "label")),
            None,
            r"no column 'text' \(did you mean 'txt'\?\) among txt, label",
        ),
        (
            rows_of(("a", "x", "y"), columns=("text", "label", "label")),
            None,
            "two columns 'label' among text, label, la",
        ),
        (rows_of(("a", "x"), ("b", "<s>"), ("c", "<s>")), None, "^FILE, line 3: label '<s>': a name is printable"),
        (rows_of(("a", "x"), ("b", "x")), None, "^train has one class, 'x': two are needed$"),
        (rows_of(("a", []), ("b", [])), None, "^train has no class: two are needed$"),
        ([], "single-label", "the table of train has no row with a text"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(rows, kind, message):
    with pytest.raises(ValueError, match=message):
        own(rows, kind)


SCORES = [(f"t{i}", f"{i / 7:.3f}") for i in range(30)]


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            [*SCORES, ("x", "NA"), ("y", "3,5"), ("z", "NA")],
            None,
            r"^FILE, line 32: label is 'NA', which is no number, as in 3 of 33 rows \('NA' in 2, '3,5' in 1\): write "
            "3.5 for 3,5 .*; leave the cell of a missing value empty, and the row is left out, or fill it$",
        ),
        ([(f"t{i}", f"{i},5") for i in range(30)], None, r"line 2: label is '0,5', .* in 30 of 30 .* in 1, …\): write"),
        (
            [*SCORES, ("x", "high")],
            None,
            r"line 32: label is 'high', .*1 of 31 rows \('high' in 1\): mend or remove th",
        ),
        ([("a", "1"), ("b", "2"), ("c", "NA")], None, "line 4: label is 'NA', .*; --kind single-label takes them as"),
        ([("a", "1,5"), ("b", "2"), ("c", "3")], None, "line 2: label is '1,5', .* or give --separator , where"),
        ([*SCORES, ("x", "n/a"), ("y", "N/A")], "regression", "line 32: label is 'n/a', .* 2 of 32 rows"),
    ],
)
def test_labels_among_numbers_that_are_none_are_listed_with_the_remedy(values, kind, message):
    """NA as a class, or "31 different texts, which are no classes"."""
    with pytest.raises(ValueError, match=message):
        own(rows_of(*values), kind)


def test_names_that_hold_a_number_or_none_stay_classes():
    for labels in (("10-K", "8-K"), ("none", "mild"), ("1", "2", "other"), ("NA", "EU")):
        rows = rows_of(*((f"text {i}", label) for i, label in enumerate(labels)))
        assert own(rows).task.classes == tuple(sorted(labels))
    rows = rows_of(("a", "1"), ("b", "NA"), ("c", "2"))
    assert own(rows, "single-label").task.classes == ("1", "2", "NA")


def test_whole_numbers_with_decimals_are_the_same_classes():
    """Four classes, and with a test set of its own "label '0.0' of test is not in train"."""
    rows = [(f"t{i}", str(i % 2) if i < 20 else f"{i % 2}.0") for i in range(40)]
    data = own(rows_of(*rows, ("empty", "")))
    assert data.task.classes == ("0", "1") and "as label holds 2 different whole numbers" in data.notes[0]
    assert own(rows_of(*rows[:20]), fractions={}, valid=rows_of(*rows[20:])).task.classes == ("0", "1")
    many = [(f"t{i}", f"{i}.000") for i in range(30)]
    assert own(rows_of(*many, *rows), "single-label").task.classes == tuple(sorted(str(i) for i in range(30)))
    large = [(f"t{i}", f"{10**18 + i % 2}.0") for i in range(4)]  # one number in floating point
    assert own(rows_of(*large), "single-label").task.classes == (f"{10**18}", f"{10**18 + 1}")
    assert own(rows_of(("a", "007"), ("b", "8"))).task.classes == ("007", "8")
    assert own(rows_of(("a", "1.0"), ("b", "other"))).task.classes == ("1.0", "other")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("Good", "good", "good"), "'Good' (1) and 'good' (2)"),
        (("TRUE", "True", "true", "false"), "'TRUE' (1) and 'True' (1) and 'true' (1)"),
        (("1", "1.0", "other"), "'1' (1) and '1.0' (1)"),
        (("7", "007", "8"), "'007' (1) and '7' (1)"),
        (("good", "gooD", "bad", "BAD"), "'gooD' (1) and 'good' (1), 'BAD' (1) and 'bad' (1)"),
    ],
)
def test_classes_that_may_be_one_are_named(labels, said):
    notes = own(rows_of(*((f"t{i}", label) for i, label in enumerate(labels)))).notes
    assert f"warning: classes that differ only in capitals, or are one number: {said}" in notes
    assert "misspelt" not in "".join(notes)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("a;b", "b;c", "a", "c;a"), "'a;b' look like several classes: --separator ';'"),
        (("a|b", "b|c", "a"), "'a|b' look like several classes: --separator '|'"),
        (("a, b", "b, c", "a, c"), "'a, b' look like several classes: --separator ','"),
        (("Paris, France", "Lyon, France", "Rome, Italy"), None),
        (("a;b", "c;d", "e"), None),
        (("a", "b;"), None),
    ],
)
def test_several_classes_in_a_label_are_seen(labels, said):
    notes = "\n".join(own(rows_of(*((f"t{i}", label) for i, label in enumerate(labels)))).notes)
    assert f"warning: labels such as {said}" in notes if said else "--separator" not in notes


def test_a_class_that_may_be_no_label_is_named():
    notes = "\n".join(own(rows_of(("a", "x"), ("b", "NaN"), ("c", "y"), ("d", "NaN"))).notes)
    assert "warning: a class that may mean that none is known: 'NaN' (2 rows); leave the cells empty" in notes
    assert "none is known" not in "\n".join(own(rows_of(("a", ["x", "none"]), ("b", ["none"]), ("c", ["x"]))).notes)


def test_texts_quoted_as_in_csv_are_counted():
    quoted = rows_of(('"He said ""no"" twice"', "x"), ('"a"', "y"), ('say ""this""', "x"))
    assert "warning: 1 texts stand between quotation marks" in "\n".join(own(quoted).notes)


def test_empty_rows_are_left_out_and_counted():
    data = own([*TWO, *rows_of((" \n\u200b\ufeff\ufffd", "pos"), (None, "pos"), ("x", ""), ("y", None), ("NA", "neg"))])
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor", "NA"]
    for what, number in (("text", 2), ("label", 2)):
        assert f"train: {number} rows with an empty {what} are left out" in data.notes
    pairs = [("a", "b", "x"), ("c", None, "y"), (None, "d", "y"), ("e", "f", "y")]
    pairs = rows_of(*pairs, columns=("text", "to", "label"))
    assert texts(own(pairs, second="to"), "train") == ["a", "e"]


def test_contradictory_and_rare_are_said():
    rows = rows_of(*((f"film {i}", "pos" if i % 2 else "neg") for i in range(100)), ("Film  1", "neg"), ("odd", "rare"))
    notes = "\n".join(own(rows, fractions=THIRDS).notes)
    assert "1 texts stand in several rows (2): each in one split" in notes
    assert "warning: 1 of these texts have different labels (2 rows)" in notes
    assert "warning: 1 classes have fewer than 10 rows in train: rare (1)" in notes


def test_the_order_of_several_classes_is_no_contradiction():
    rows = rows_of(("a", ["x", "y"]), ("a", ["y", "x"]), ("b", ["x"]), ("c", ["y"]))
    notes = own(rows).notes
    assert "1 texts stand in several rows (2): each in one split" in notes and "different labels" not in "".join(notes)
    tagged = rows_of((["a", "b"], ["x", "y"]), (["a", "b"], ["y", "x"]))
    assert "warning: 1 of these texts have different labels (2 rows)" in own(tagged).notes


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (([0, 1, 0], [1, 0, 0]), {}),
        (([0.0, 1.0], [1.0, 0.0]), {}),
        (("[true, false, true]", "[false, false, false]"), {"kind": "multi-label"}),
        (("0;1;1", "0;0;0"), {"separator": ";"}),
    ],
)
def test_vectors_of_0_and_1_are_no_names_of_classes(values, options):
    """They became "multi-label: 0 = 0, 1 = 1"."""
    rows = rows_of(*((f"t{i}", value) for i, value in enumerate(values)))
    said = r"^FILE, line 2: label is \[.*\], and all lists are of [23] times 0 or 1: write the names .*--label A B C"
    with pytest.raises(UserError, match=said):
        own(rows, **options)


def test_classes_of_rows_may_be_called_0_and_1():
    for values in (([0, 1], [1]), ([0, 1], []), ([0], [1])):
        assert own(rows_of(*((f"t{i}", value) for i, value in enumerate(values)))).task.classes == ("0", "1")
    tagged = own(rows_of((["a", "b"], [0, 1]), (["c", "d"], [1, 1])))
    assert [example.label for example in tagged.splits["train"]] == [("0", "1"), ("1", "1")]


def test_a_class_that_a_row_names_twice_counts_once():
    data = own(rows_of(("a", ["y", "x", "y"]), ("b", ["x"])))
    assert [example.label for example in data.splits["train"]] == [("y", "x"), ("x",)]
    assert "warning: 2 classes have fewer than 10 rows in train: y (1), x (2)" in data.notes


def test_dev_and_test_sets_of_their_own_stay_as_they_are():
    rows = [*TWO, *rows_of(("Shared  text", "pos"), ("in both", "neg"))]
    valid = rows_of(("shared text", "pos"), ("in both", "neg"), ("new", "pos"))
    test = rows_of(("IN BOTH", "neg"))
    data = own(rows, fractions={}, valid=valid, test=test)
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor"]
    assert texts(data, "valid") == ["shared text", "new"] and texts(data, "test") == ["IN BOTH"]
    assert "train: 2 rows whose text or group is in valid or test are left out" in data.notes
    with pytest.raises(ValueError, match=r"VALID, line 2: label 'x' of valid is not in train: neg \(2\), pos \(2\)"):
        own(TWO, fractions={}, valid=rows_of(("t", "x"), name="VALID"))


def test_the_rows_of_a_group_stay_together_that_numbered_0_too():
    groups = [number for number in range(20) for _ in range(10)]
    rows = rows_of(
        *((f"{row}", "xy"[row % 2], group) for row, group in enumerate(groups)), columns=("text", "label", "document")
    )
    data = own(rows, fractions=THIRDS, group="document")
    found = [{groups[int(text)] for text in texts(data, split)} for split in data.splits]
    assert sum(map(len, found)) == 20, "each in one split"


def test_a_test_set_needs_no_labels():
    for test in (rows_of(("t",), columns=("text",)), rows_of(("t", None))):
        data = own(TWO, fractions={}, valid=rows_of(("v", "pos")), test=test)
        assert data.splits["test"] == [Example("t", None)] and "test: has no labels" in data.notes
        assert data.task.scored == {"valid": ""}


def test_words_alone_are_a_test_set_without_labels():
    train = parse_rows([b"Ann B-X\n", b"ran O\n"], "conll", "FILE")
    test = parse_rows([b"Bob\n", b"ran\n"], "conll", "FILE")
    data = own(train, test=test, text="0", labels=("-1",))
    assert data.splits["test"] == [Example(("Bob", "ran"), None)] and data.task.classes == ("B-X", "O")


def test_blank_cells_of_several_classes_are_no_labels():
    splits = {"valid": rows_of(("v", "x")), "test": rows_of(("t", ""))}
    data = own(rows_of(("a", "x;y"), ("b", "y")), fractions={}, separator=";", **splits)
    assert data.task.scored == {"valid": ""} and data.splits["test"] == [Example("t", None)]


def test_tags_of_entities_are_scored_by_entities():
    assert own(rows_of((["Ann"], ["B-PER"]), (["no"], ["O"]))).task.headline == ("entity_f1",)
    assert own(rows_of((["Ann"], ["NOUN"]), (["no"], ["DET"]))).task.headline == ("accuracy",)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "sentencepiece.bpe.model"
    train_sentencepiece(
        ["a good film that is good", "a bad film, not good", "films are long: 0123456789"], path, 290, 1
    )
    return path


def prepare(folder, vocabulary, *words):
    main(["prepare", "table", *map(str, words), "--tokenizer", str(vocabulary), "--out", str(folder / "out" / "mine")])


def test_a_csv_becomes_a_task(tmp_path, vocabulary, capsys):
    rows = [
        f'"a {"good" if i % 2 else "bad"} film, number {i}\n""good""",{"pos" if i % 2 else "neg"}' for i in range(50)
    ]
    (tmp_path / "films.csv").write_text("\n".join(["review,verdict", *rows]))
    prepare(tmp_path, vocabulary, tmp_path / "films.csv", "--text", "review", "--label", "verdict")
    summary = read_summary(tmp_path / "out" / "mine")
    assert summary.task.classes == ("neg", "pos") and summary.task.columns == ("review",)
    assert summary.task.scored == {"valid": "", "test": "test"} and summary.task.dev_sets == {"valid": ""}
    assert {split: counts.examples for split, counts in summary.splits.items()} == {"train": 40, "valid": 5, "test": 5}
    printed = capsys.readouterr().out
    assert "\nrows of train by class: neg (20), pos (20)\n" in printed and "classes are not in" not in printed
    assert "next: " not in printed, "no model is named"


def test_sentences_in_columns_become_token_labels(tmp_path, vocabulary):
    (tmp_path / "ner.conll").write_text(
        "-DOCSTART- O\n\n" + "".join(f"{i} B-X\ngood O\n\nfilm{i} O\n\n" for i in range(10))
    )
    prepare(tmp_path, vocabulary, tmp_path / "ner.conll", "--text", "0", "--label", "-1", "--split", "0.5", "0.5")
    summary = read_summary(tmp_path / "out" / "mine")
    assert (summary.task.kind, summary.task.classes) == ("token-label", ("B-X", "O"))
    assert sum(counts.examples for counts in summary.splits.values()) == 20
    dictionary = load_dictionary(tmp_path / "out" / "mine" / "label" / DICTIONARY_FILE)
    assert dictionary.count[dictionary.index("O")] > dictionary.count[dictionary.index("B-X")]
    assert load_tokenizer(tmp_path / "out" / "mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "0.5", "0.4"), "the shares must add up to 1"),
        (("--split", "1.0"), "--split=1.0 is not allowed: it must be the shares of train, valid, test"),
        (("--test", "TABLE", "--split", "0.8", "0.1", "0.1"), "it must be the shares of train, valid"),
        (("--valid", "TABLE", "--split", "0.9", "0.1"), "it must be left out, as valid has rows of its own"),
        (("--label", "verdict"), "no column 'verdict' among text, label"),
        (("--kind", "ordinal"), "invalid choice: 'ordinal'"),
        (("--valid", "none.csv"), "none.csv: no such table"),
        (("--from", "txt"), "no column 'label' among text"),
    ],
)
def test_what_cannot_be_prepared_is_refused(tmp_path, vocabulary, capsys, options, message):
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(30)))
    words = [str(table) if option == "TABLE" else option for option in options]
    with pytest.raises(SystemExit) as ended:
        prepare(tmp_path, vocabulary, table, *words)
    assert message in f"{ended.value.code}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()


def test_a_name_of_another_task_is_refused(tmp_path, vocabulary):
    with pytest.raises(SystemExit, match="the folder's name is the task's, but SST-2 is a task already"):
        main(["prepare", "table", "x.csv", "--tokenizer", str(vocabulary), "--out", str(tmp_path / "sst_2")])


@pytest.mark.parametrize("name", ["a b", "a'b", ".hidden", "-x", "x" * 201, "a\nb", "\x1b[2J"])
def test_a_name_that_could_not_be_a_folders_is_refused_before_anything_is_read(tmp_path, vocabulary, name):
    with pytest.raises(SystemExit, match="is not allowed: it must be a folder whose name has letters, digits"):
        main(["prepare", "table", "none.csv", "--tokenizer", str(vocabulary), "--out", str(tmp_path / name)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("label", ["../x", "a/b", "/etc", "..", "x" * 300, "<img src=x onerror=alert(1)>", "a|b"])
def test_a_label_never_becomes_a_file(tmp_path, vocabulary, label):
    """Any printable text may be a class: it is written into files, and no file is named after it."""
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"the dog {i},{('good', label)[i % 2]}\n" for i in range(30)))
    prepare(tmp_path, vocabulary, table)
    assert set(read_summary(tmp_path / "out" / "mine").task.classes) == {"good", label}
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"mine"}
    splits = [f"{split}.{end}" for split in ("train", "valid", "test") for end in ("bin", "idx")]
    assert {path.name for path in (tmp_path / "out/mine/label").iterdir()} == {"dict.txt", *splits}


@pytest.mark.parametrize("wrong", ["goood", "god", "gold", "good.", "xgood", "great", "gooood", "goood goood"])
def test_a_label_that_may_be_misspelt_is_named(wrong):
    """One that differs by a character from another, and stands in one row."""
    labels = ["good", "bad"] * 10 + wrong.split()
    rows = rows_of(*((f"train {row}", label) for row, label in enumerate(labels)))
    notes = own(rows, fractions={}, valid=rows_of(("v", "good"), ("w", "bad"))).notes
    said = f"warning: labels in one row of train that may be others, misspelt: {wrong!r} ('good': 10 rows)"
    expected = [] if wrong in ("great", "gooood", "goood goood") else [said]
    assert [note for note in notes if "misspelt" in note] == expected
