"""Tables that are damaged: one error that names the file, whatever their reader makes of them."""

import json

import pytest

from fairseq_linformer.data.prepare import table_files
from fairseq_linformer.data.prepare.own_data import Columns, own_data
from fairseq_linformer.data.prepare.table_files import read_table
from fairseq_linformer.data.prepare.table_formats import Row
from fairseq_linformer.errors import UserError

pyarrow = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = ["alpha beta", "gamma delta", "epsilon zeta"]


def read(path):
    return [row.values for rows in read_table(path).values() for row in rows]


def not_utf8():
    """A column of text whose second value is no UTF-8: writers do not look."""
    offsets = pyarrow.array([0, 1, 2, 3], "int32").buffers()[1]
    return pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, offsets, pyarrow.py_buffer(b"a\xffb")])


def save_dataset(folder, table, metadata=None, name="data-0.arrow"):
    folder.mkdir(exist_ok=True)
    if metadata:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    with ipc.new_stream(str(folder / "data-0.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return folder


def test_text_that_is_not_utf8_in_parquet(tmp_path):
    """A traceback, UnicodeDecodeError, before each batch was validated."""
    parquet.write_table(pyarrow.table({"text": not_utf8()}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet: not Parquet that can be read \(rows 1 to 3, column 'text'.*UTF8"):
        read(tmp_path / "x.parquet")


def test_text_that_is_not_utf8_in_a_saved_dataset(tmp_path):
    save_dataset(tmp_path / "d", pyarrow.table({"text": not_utf8()}))
    with pytest.raises(UserError, match=r"data-0\.arrow: not Arrow that can be read .*UTF8"):
        read(tmp_path / "d")


def test_a_page_with_another_checksum_is_refused(tmp_path):
    """It was read in silence, with another text."""
    path = tmp_path / "x.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, "write_statistics": False}
    parquet.write_table(pyarrow.table({"text": TEXTS}), path, **options)
    assert read(path) == [[text] for text in TEXTS]
    content = path.read_bytes()
    assert content.count(b"gamma") == 1
    path.write_bytes(content.replace(b"gamma", b"gamna"))
    with pytest.raises(UserError, match=r"x\.parquet: not Parquet that can be read \(.*(CRC|checksum)"):
        read(path)


def test_a_reader_that_crashes_is_survived(tmp_path, monkeypatch):
    """Two damaged folders ended the whole command with signal 11."""
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "x.parquet")
    crash = tmp_path / "crash"
    crash.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crash.chmod(0o755)
    monkeypatch.setattr(table_files.sys, "executable", str(crash))
    with pytest.raises(UserError, match=r"x\.parquet: not Parquet that can be read \(reading it ended with SIGSEGV\)"):
        read(tmp_path / "x.parquet")


def test_a_stream_that_was_cut_off_between_two_batches_is_refused(tmp_path):
    folder = save_dataset(tmp_path / "d", pyarrow.table({"text": TEXTS}))
    file = folder / "data-0.arrow"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match="its end mark is missing"):
        read(folder)


@pytest.mark.parametrize("name", ["../d/data-0.arrow", "/etc/hostname"])
def test_the_files_of_a_saved_dataset_cannot_leave_its_folder(tmp_path, name):
    folder = save_dataset(tmp_path / "d", pyarrow.table({"text": TEXTS}), name=name)
    with pytest.raises(UserError, match=r"state\.json: the file .* is not allowed: it must be in the same folder"):
        read(folder)


@pytest.mark.parametrize("number", [2, -2])
def test_a_number_without_a_class_is_refused(tmp_path, number):
    about = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}}}}
    folder = save_dataset(tmp_path / "d", pyarrow.table({"text": TEXTS, "label": [0, number, -1]}), about)
    with pytest.raises(
        UserError, match=rf"row 2: label is {number}, but it must be the number of a class, from 0 to 1"
    ):
        read(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"text,label\nfine,a\nbro\0ken,b\n"),
        ("x.tsv", b"text\tlabel\nfine\ta\nbro\0ken\tb\n"),
        ("x.conll", b"fine a\n\nbro\0ken b\n"),
        ("x.csv", b"text,label\nfine,a\nbro\x1bken,b\n"),
    ],
)
def test_control_characters_are_no_text(tmp_path, name, content):
    """Zero bytes were read as part of a word."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}, line 3: the control character '.x..' is no text"):
        read(tmp_path / name)


def notes_of(labels):
    rows = {
        split: [Row(f"{split}, row {i}", ("text", "label"), (f"{split} {i}", label)) for i, label in enumerate(some)]
        for split, some in (("train", labels), ("valid", ["good", "bad"]))
    }
    return [note for note in own_data("own", rows, Columns("text", ("label",)), {}).notes if "misspelt" in note]


@pytest.mark.parametrize("wrong", ["goood", "god", "gOod", "good.", "xgood"])
def test_a_label_that_may_be_misspelt_is_named(wrong):
    assert notes_of(["good", "bad"] * 10 + [wrong]) == [
        f"warning: labels in one row of train that may be others, misspelt: {wrong!r} ('good': 10 rows)"
    ]


@pytest.mark.parametrize("labels", [["great"], ["gooood", "goo"][:1], ["goood"] * 2])
def test_other_labels_are_not(labels):
    assert notes_of(["good", "bad"] * 10 + labels) == []
