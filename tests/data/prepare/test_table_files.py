"""Tables that are damaged: one error that names the file, whatever their reader makes of them."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare import table_files
from fairseq_linformer.data.prepare.table_files import WHOLE, read_table
from fairseq_linformer.data.prepare.vocabulary_training import train_sentencepiece
from fairseq_linformer.data.summary import read_summary
from fairseq_linformer.errors import UserError
from linformer_cli.command import main

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


def all_rows(path) -> dict[str, list[dict]]:
    tables = read_table(path)
    return {split: [dict(zip(row.columns, row.values, strict=True)) for row in rows] for split, rows in tables.items()}


ABOUT = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad", "good"]}}}}


def save_dataset(folder, table, metadata=None, name="data-0.arrow"):
    folder.mkdir(parents=True)
    if metadata:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    with ipc.new_stream(str(folder / "data-0.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return folder


def save_splits(folder, **tables):
    for split, table in tables.items():
        save_dataset(folder / split, table, ABOUT)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": [*tables]}))


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """In the current folder: MNLI's splits, IMDB's, and two names of one split; returns what prepares them."""
    monkeypatch.chdir(tmp_path)
    lines = ["a good film that is good", "a bad film, not good", "films are long: 0123456789"]
    train_sentencepiece(lines, Path("sentencepiece.bpe.model"), 290, 1)
    names = {
        "mnli": ("train", "validation_matched", "validation_mismatched", "test_matched"),
        "imdb": ("train", "test", "unsupervised"),
        "two": ("train", "validation", "dev"),
    }
    numbers = iter(range(1000))
    for folder, splits in names.items():
        rows = {split: [next(numbers) for _ in range(60 if split == "train" else 20)] for split in splits}
        tables = {
            split: pyarrow.table({"text": [f"film {n}" for n in own], "label": [n % 2 for n in own]})
            for split, own in rows.items()
        }
        save_splits(tmp_path / folder, **tables)
    options = ["--tokenizer", "sentencepiece.bpe.model", "--out", "out/mine"]
    return lambda words: main(["prepare", "table", *words.split(), *options])


@pytest.mark.parametrize(
    ("words", "counts", "unused"),
    [
        ("imdb", {"train": 54, "valid": 6, "test": 20}, "imdb/unsupervised"),
        (
            "mnli --valid mnli/validation_matched",
            {"train": 60, "valid": 20},
            "mnli/validation_mismatched, mnli/test_matched",
        ),
        ("mnli/train", {"train": 48, "valid": 6, "test": 6}, None),
        ("two/train --valid two/dev --test imdb", {"train": 60, "valid": 20, "test": 20}, None),
    ],
)
def test_splits_that_are_not_used_are_named(saved, capsys, words, counts, unused):
    saved(words)
    assert {split: found.examples for split, found in read_summary(Path("out/mine")).splits.items()} == counts
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "not used" in line] == ([f"not used: {unused}"] if unused else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("mnli", "mnli/test_matched: none is a split by its name, and train would be divided: give --valid mnli/valid"),
        ("mnli --test mnli/test_matched", "mismatched: none is a split by its name, .* or mnli/train alone to divide"),
        ("two", "two: validation and dev are the same split: name the folder of each, as in two/train --valid two/val"),
        ("imdb --valid imdb", "--valid imdb: no split valid among train, test, unsupervised: name the folder of one"),
    ],
)
def test_splits_of_other_names_are_asked_for(saved, words, message):
    """They were dropped, and train was divided; of two names for one split the last one was read."""
    with pytest.raises(SystemExit, match=message):
        saved(words)
    assert not Path("out").exists()


def test_a_folder_per_class(tmp_path):
    for name, text in {"neg/1.txt": "bad\nfilm", "pos/2.txt": "good", "pos/notes.md": "no text"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert all_rows(tmp_path)[WHOLE] == [{"text": "bad\nfilm", "label": "neg"}, {"text": "good", "label": "pos"}]
    with pytest.raises(FileNotFoundError, match="holds neither a folder per class"):
        read_table(tmp_path / "pos")
    (tmp_path / "neg" / "1.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"neg/1\.txt: not UTF-8"):
        all_rows(tmp_path)
    said = {"table.doc": r"ends in none of \.txt, \.csv, .*: --from names its format", "table.XLSX": "is a spreadsheet"}
    for name, what in said.items():
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"{name} {what}"):
            read_table(tmp_path / name)


def test_of_a_folder_per_class_what_is_hidden_is_left_out(tmp_path):
    """A class .ipynb_checkpoints; and files in capitals were left out."""
    for name in ("a/1.TXT", "b/2.txt", "b/.hidden.txt", "b/._2.txt", ".ipynb_checkpoints/3.txt", "__MACOSX/4.txt"):
        (tmp_path / ".data" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / ".data" / name).write_text(name)
    rows = [{"text": "a/1.TXT", "label": "a"}, {"text": "b/2.txt", "label": "b"}]
    assert all_rows(tmp_path / ".data") == {WHOLE: rows}


@pytest.mark.parametrize(("suffix", "packer"), [(".gz", gzip), (".XZ", lzma)])
def test_packed_tables(tmp_path, suffix, packer):
    """ "--from names its format", and then "a zero byte is no text"."""
    rows = [{"text": text, "label": "a"} for text in TEXTS]
    lines = "".join(f"{text}\ta\n" for text in TEXTS)
    packed = {
        f"x.TSV{suffix}": packer.compress(f"text\tlabel\n{lines}".encode()),
        f"x.jsonl{suffix}": packer.compress("".join(json.dumps(row) + "\n" for row in rows).encode()),
    }
    for name, content in packed.items():
        (tmp_path / name).write_bytes(content)
        assert all_rows(tmp_path / name) == {WHOLE: rows}
        for damaged in (content[:-9], b"text\tlabel\n"):
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(UserError, match=rf"{name}: truncated or corrupt archive"):
                all_rows(tmp_path / name)
    for name, said in ((f"x.parquet{suffix}", "unpack it"), (f"x{suffix}", "ends in none of")):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"{name}.* {said}"):
            read_table(tmp_path / name)


def test_parquet_and_saved_datasets(tmp_path):
    table = pyarrow.table({"text": TEXTS, "label": [1, 0, -1]})
    parquet.write_table(table, tmp_path / "plain.parquet")
    assert all_rows(tmp_path / "plain.parquet")[WHOLE][0] == {"text": TEXTS[0], "label": 1}
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(ABOUT)}), tmp_path / "named.parquet")
    named = [{"text": text, "label": label} for text, label in zip(TEXTS, ("good", "bad", None), strict=True)]
    assert all_rows(tmp_path / "named.parquet") == {WHOLE: named}
    save_splits(tmp_path / "saved", train=table, validation=table, unsupervised=table)
    assert all_rows(tmp_path / "saved") == {"train": named, "valid": named, "unsupervised": named}
    assert all_rows(tmp_path / "saved" / "train") == {WHOLE: named}
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"bad\.parquet: not Parquet that can be read"):
        all_rows(tmp_path / "bad.parquet")


def test_text_that_is_not_utf8(tmp_path):
    """A traceback, UnicodeDecodeError, before each batch was validated."""
    table = pyarrow.table({"text": not_utf8()})
    parquet.write_table(table, tmp_path / "x.parquet")
    where = r"\(rows 1 to 3, column 'text'.*UTF8"
    for path, said in (
        (tmp_path / "x.parquet", r"x\.parquet: not Parquet"),
        (save_dataset(tmp_path / "d", table), r"data-0\.arrow: not Arrow"),
    ):
        with pytest.raises(UserError, match=f"{said} that can be read {where}"):
            read(path)


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
    folder = save_dataset(tmp_path / "d", pyarrow.table({"text": TEXTS, "label": [0, number, -1]}), ABOUT)
    with pytest.raises(UserError, match=rf"row 2: label is {number}, but it must be the number of a class, from 0 to"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"text,label\nfine,a\nbro\0ken,b\n"),
        ("x.tsv", b"text\tlabel\nfine\ta\nbro\0ken\tb\n"),
        ("x.conll", b"fine a\n\nbro\0ken b\n"),
    ],
)
def test_zero_bytes_are_no_text(tmp_path, name, content):
    """They were read as part of a word."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}, line 3: a zero byte is no text"):
        read(tmp_path / name)


def test_other_control_characters_are_left_out_and_named(tmp_path, caplog):
    """One review of IMDB begins with backspaces."""
    (tmp_path / "x.csv").write_bytes(b"text,label\nfine,a\n\x08\x08bro\x1bken,b\n")
    (tmp_path / "x.conll").write_bytes(b"fine a\n\nbro\x1bken b\n")
    assert read(tmp_path / "x.csv")[1] == ["broken", "b"]
    assert "x.csv: control characters are left out, first in line 3 (lines: 1)" in caplog.text
    assert "broken" in str(read(tmp_path / "x.conll")[1])
