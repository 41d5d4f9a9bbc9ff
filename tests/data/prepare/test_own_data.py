"""Own labelled data, from the rows of tables to the folder that fine-tuning reads."""

from collections import Counter

import pytest

from fairseq_linformer.cli.command import main
from fairseq_linformer.data.prepare.labels import Columns
from fairseq_linformer.data.prepare.own_data import OwnData, own_data, quantile_bins, split_rows
from fairseq_linformer.data.prepare.table import Row, parse_rows
from fairseq_linformer.data.task_record import read_summary
from fairseq_linformer.errors import UserError

SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}


def rows_of(*values, columns=("text", "label"), name="FILE") -> list[Row]:
    return [Row(f"{name}, line {line}", dict(zip(columns, row, strict=True))) for line, row in enumerate(values, 2)]


def labelled(*labels) -> list[Row]:
    return rows_of(*((f"text {number}", label) for number, label in enumerate(labels)))


def prepare_own(rows, kind=None, fractions=None, valid=None, test=None, **columns) -> OwnData:
    """Return the task of tables; `columns` are those besides text and label."""
    tables = {"train": rows, "valid": valid, "test": test}
    tables = {split: table for split, table in tables.items() if table is not None}
    columns = Columns(**{"text": "text", "labels": ("label",), **columns})
    return own_data("own", tables, columns, {"train": 1.0} if fractions is None else fractions, kind)


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
        (("1.0", "0.0", "1"), {}, "single-label", ["1", "0", "1"]),  # pandas writes so where cells are empty
        ((f"{10**18}.0", f"{10**18 + 1}.0"), {}, "single-label", [f"{10**18}", f"{10**18 + 1}"]),
        (("1.0", "other", "other"), {}, "single-label", ["1.0", "other", "other"]),
        (("[x]", "[x y], [1]"), {}, "single-label", ["[x]", "[x y], [1]"]),
        (SCORES, {}, "regression", SCORES),
        ((["x", "y"], [], ["x"]), {}, "multi-label", [("x", "y"), (), ("x",)]),
        (('["x", "y, z"]', "[]"), {}, "multi-label", [("x", "y, z"), ()]),
        (("['x', \"y's, z\"]", "[1,2.0]"), {}, "multi-label", [("x", "y's, z"), ("1", "2")]),
        (("x; y", "", "x"), {"separator": ";"}, "multi-label", [("x", "y"), (), ("x",)]),
        ((["y", "x", "y"], [0]), {}, "multi-label", [("y", "x", "y"), ("0",)]),
    ],
)
def test_the_type_of_label_follows_from_the_values(values, columns, kind, labels):
    data = prepare_own(labelled(*values), **columns)
    assert (data.task.kind, labels_of(data)) == (kind, labels)


def test_several_label_columns_are_classes():
    rows = rows_of(("a", "1.0", 0), ("b", 0, True), ("c", "0.0", "false"), columns=("text", "toxic", "rude"))
    data = prepare_own(rows, labels=("toxic", "rude"))
    assert (data.task.kind, labels_of(data)) == ("multi-label", [("toxic",), ("rude",), ()])
    with pytest.raises(UserError, match="line 2: rude"):
        prepare_own(rows_of(("a", 1, 2), columns=("text", "toxic", "rude")), labels=("toxic", "rude"))


def test_lists_of_words_have_a_label_for_each():
    data = prepare_own(rows_of((["Ann", "ran"], ["B-PER", "O"]), (["No", "."], ["O", "O"])))
    assert (data.task.kind, labels_of(data)) == ("token-label", [("B-PER", "O"), ("O", "O")])
    assert data.task.headline == ("entity_f1",)
    assert prepare_own(rows_of((["Ann"], ["NOUN"]), (["no"], ["DET"]))).task.headline == ("accuracy",)


@pytest.mark.parametrize("values", [range(30), ("3.5", "2.5"), [*SCORES, "NA", "3,5"], ("1", "2", "NA")])
def test_an_ambiguous_type_of_label_is_an_error(values):
    with pytest.raises(UserError, match="--kind"):
        prepare_own(labelled(*values))


def test_scores_are_divided_by_the_highest_of_train():
    assert prepare_own(labelled(*(1 + row % 10 for row in range(40)))).task.kind == "single-label"
    assert prepare_own(labelled(*(1 + row % 10 for row in range(40))), "regression").task.scale == 10.0
    assert prepare_own(labelled(-8, 2), "regression").task.scale == 8.0
    assert prepare_own(labelled(0, 0.0), "regression").task.scale == 1.0


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([*TWO, *rows_of(("x", ["pos"]))], "single-label", "line 2: label"),
        (labelled("1.5", "nan"), "regression", "line 3: label"),
        (TWO, "token-label", "line 2: label"),
        (rows_of((["a", "b"], ["O"])), None, "line 2: label"),
        (labelled({"x": 1}), None, "line 2: label"),
        (rows_of(("a", "x"), (["b"], "x")), None, "line 3: label"),
        (labelled("[0. 1. 0.]"), None, "line 2: label"),
        (labelled([0.0, 1.0], [1.0, 0.0]), None, "line 2: label"),
        (labelled("[true, false]", "[false, false]"), "multi-label", "line 2: label"),
        (rows_of((5, "x")), None, "line 2: text"),
        (rows_of(("a", "x"), columns=("txt", "label")), None, "line 2: .*'text'"),
        (labelled("x", "x"), None, "classes x"),
        ([], "single-label", "train"),
    ],
)
def test_an_unusable_row_is_named(rows, kind, message):
    with pytest.raises(UserError, match=message):
        prepare_own(rows, kind)


def test_empty_rows_are_left_out_and_counted():
    data = prepare_own(
        [*TWO, *rows_of((" \n\u200b\ufeff\ufffd", "pos"), (None, "pos"), ("x", ""), ("y", None), ("NA", "neg"))]
    )
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor", "NA"]
    assert {"train: 2 rows with an empty text are left out", "train: 2 rows with an empty label are left out"} <= {
        *data.notes
    }
    pairs = [("a", "b", "x"), ("c", None, "y"), (None, "d", "y"), ("e", "f", "y")]
    assert texts(prepare_own(rows_of(*pairs, columns=("text", "to", "label")), second="to"), "train") == ["a", "e"]


def test_notes_on_repeated_texts_and_rare_labels():
    rows = rows_of(*((f"film {i}", "pos" if i % 2 else "neg") for i in range(100)), ("Film  1", "neg"), ("odd", "rare"))
    notes = prepare_own(rows, fractions=SHARES).notes
    assert "1 texts are in several rows (2): each is in one split" in notes
    assert "warning: 1 of these texts have different labels (2 rows)" in notes
    assert "warning: 1 labels occur once in train: rare" in notes
    for values, differ in (
        ((("a", ["x", "y"]), ("a", ["y", "x"]), ("b", ["x"])), False),
        ((("a", "1"), ("a", "1.0"), ("b", "2")), False),
        (((["a", "b"], ["x", "y"]), (["a", "b"], ["y", "x"])), True),
    ):
        assert any("different labels" in note for note in prepare_own(rows_of(*values)).notes) == differ


def test_dev_and_test_sets_in_tables_of_their_own():
    rows = [*TWO, *rows_of(("Shared  text", "pos"), ("in both", "neg"))]
    valid = rows_of(("shared text", "pos"), ("in both", "neg"), ("new", "pos"))
    data = prepare_own(rows, fractions={}, valid=valid, test=rows_of(("IN BOTH", "neg")))
    assert texts(data, "train") == ["good film", "bad film", "fine", "poor"]
    assert texts(data, "valid") == ["shared text", "new"] and texts(data, "test") == ["IN BOTH"]
    assert "train: 2 rows whose text or group is in valid or test are left out" in data.notes
    with pytest.raises(UserError, match="VALID, line 2: label"):
        prepare_own(TWO, fractions={}, valid=rows_of(("t", "x"), name="VALID"))


def test_the_rows_of_a_group_stay_together():
    groups = [number for number in range(20) for _ in range(10)]
    values = ((f"{row}", "xy"[row % 2], group) for row, group in enumerate(groups))
    data = prepare_own(rows_of(*values, columns=("text", "label", "document")), fractions=SHARES, group="document")
    by_split = [{groups[int(text)] for text in texts(data, split)} for split in data.splits]
    assert [len(numbers) for numbers in by_split] == [16, 2, 2] and set.union(*by_split) == set(range(20))


def test_a_test_set_needs_no_labels():
    for test in (rows_of(("t",), columns=("text",)), rows_of(("t", None))):
        data = prepare_own(TWO, fractions={}, valid=rows_of(("v", "pos")), test=test)
        assert [row.label for row in data.splits["test"]] == [None] and data.task.scored == {"valid": ""}
    train, words = (parse_rows(lines, "conll", "FILE") for lines in ([b"Ann B\n", b"ran O\n"], [b"Bob\n", b"ran\n"]))
    data = prepare_own(train, test=words, text="0", labels=("-1",))
    (row,) = data.splits["test"]
    assert (row.text, row.label) == (("Bob", "ran"), None) and data.task.classes == ("B", "O")


def test_splits_are_stratified_seeded_and_keep_texts_together():
    labels = [[name] for name, count in zip("abcde", (500, 100, 20, 4, 1), strict=True) for _ in range(count)]
    keys = [[f"text {row - (row % 5 == 1)}"] for row in range(len(labels))]  # every fifth text is repeated
    chosen = split_rows(keys, labels, SHARES, seed=1)
    counts = {split: Counter() for split in SHARES}
    for (label,), split in zip(labels, chosen, strict=True):
        counts[split][label] += 1
    for split, share in SHARES.items():
        for label, count in (("a", 500), ("b", 100), ("c", 20)):
            assert counts[split][label] == pytest.approx(share * count, abs=8)
    assert counts["train"].keys() == set("abcde")
    by_text: dict[str, set] = {}
    for (text,), split in zip(keys, chosen, strict=True):
        by_text.setdefault(text, set()).add(split)
    assert all(len(splits) == 1 for splits in by_text.values())
    assert split_rows(keys, labels, SHARES, seed=1) == chosen != split_rows(keys, labels, SHARES, seed=2)


@pytest.mark.parametrize("classes", [1, 2, 40])
@pytest.mark.parametrize(("rows", "fractions"), [(1, SHARES), (7, SHARES), (30, {"train": 0.2, "valid": 0.8})])
def test_few_rows_and_many_classes(rows, classes, fractions):
    labels = [[str(row % classes)] for row in range(rows)]
    chosen = split_rows([[row] for row in range(rows)], labels, fractions, seed=1)
    trained = {label for (label,), split in zip(labels, chosen, strict=True) if split == "train"}
    assert trained == {label for (label,) in labels}, "train has every class"


def test_units_are_connected_rows_and_count_under_their_rarest_label():
    halves = {"train": 0.5, "valid": 0.5}
    keys = [[f"text {row // 2}", ("group", (row + 1) // 2)] if row < 20 else [f"text {row}"] for row in range(40)]
    assert len(set(split_rows(keys, [["a"]] * 40, halves, seed=1)[:20])) == 1
    labels = [["often", "rare"] if row % 10 == 0 else ["often"] for row in range(100)]
    chosen = split_rows([[row] for row in range(100)], labels, halves, seed=1)
    assert Counter(chosen[::10]) == {"train": 5, "valid": 5}


def test_quantile_bins_are_even_and_equal_scores_share_one():
    assert set(Counter(quantile_bins([float(i * i) for i in range(100)])).values()) == {10}
    assert len(set(quantile_bins([1.0] * 50 + [2.0] * 50))) == 2


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


def test_splits_of_a_saved_data_set(tmp_path, vocabulary, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    sizes = {"train": 60, "test": 20, "unsupervised": 20}
    splits = {
        name: datasets.Dataset.from_list([{"text": f"{name} film {row}", "label": row % 2} for row in range(size)])
        for name, size in sizes.items()
    }
    datasets.DatasetDict(splits).save_to_disk("imdb")
    with pytest.raises(SystemExit, match="valid"):
        prepare(tmp_path, vocabulary, "imdb", "--valid", "imdb")
    for words, counts in (
        (["imdb"], {"train": 54, "valid": 6, "test": 20}),
        (["imdb/train", "--valid", "imdb/unsupervised"], {"train": 60, "valid": 20}),
    ):
        summary = prepare(tmp_path / words[0], vocabulary, *words)
        assert {split: read.examples for split, read in summary.splits.items()} == counts
        assert ("not used: imdb, split unsupervised" in capsys.readouterr().out) == (words == ["imdb"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--split", "0.5", "0.4"), "--split"),
        (("--test", "TABLE", "--split", "0.8", "0.1", "0.1"), "--split"),
        (("--valid", "TABLE", "--split", "0.9", "0.1"), "--split"),
        (("--label", "verdict"), "'verdict'"),
    ],
)
def test_options_that_cannot_work(tmp_path, vocabulary, capsys, options, message):
    table = tmp_path / "table.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(30)))
    with pytest.raises(SystemExit) as ended:
        prepare(tmp_path, vocabulary, table, *(str(table) if option == "TABLE" else option for option in options))
    assert message in f"{ended.value.code}{capsys.readouterr().err}"
    assert not (tmp_path / "out").exists()


def test_a_name_that_cannot_be_a_task_is_rejected_before_anything_is_read(tmp_path, vocabulary):
    for name in ("sst_2", "a b"):
        with pytest.raises(SystemExit, match="--out"):
            main(["prepare", "table", "none.csv", "--tokenizer", str(vocabulary), "--out", str(tmp_path / name)])
    assert not list(tmp_path.iterdir())
