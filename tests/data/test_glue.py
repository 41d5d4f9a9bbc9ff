"""The reader of GLUE's official files."""

import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairseq_linformer.data.classification import Example
from fairseq_linformer.data.glue import read_glue

ROOT = Path(__file__).resolve().parents[2]


def make_sst_2(source: Path, train: bytes) -> Path:
    (source / "SST-2").mkdir(parents=True)
    (source / "SST-2" / "train.tsv").write_bytes(train)
    (source / "SST-2" / "dev.tsv").write_bytes(b"sentence\tlabel\nfine \t1\n")
    (source / "SST-2" / "test.tsv").write_bytes(b"index\tsentence\n0\tit 's 1 film\n")
    return source


def test_rows_of_every_split(tmp_path: Path) -> None:
    splits = read_glue(make_sst_2(tmp_path, b"sentence\tlabel\nclich\xc3\xa9s \t0\nwit\t1\n"), "SST-2")
    assert {split: list(rows) for split, rows in splits.items()} == {
        "train": [Example("clichés ", "0"), Example("wit", "1")],
        "valid": [Example("fine ", "1")],
        "test": [Example("it 's 1 film", None)],
    }


def test_quotes_and_carriage_returns_are_text(tmp_path: Path) -> None:
    # A csv reader would join the first two rows at the quotes; a text file would end a line at the lone \r.
    content = b'sentence\tlabel\n"it opens\t1\nand closes"\t0\none\rline\t1\nwindows\t0\r\nlast\t1'
    rows = list(read_glue(make_sst_2(tmp_path, content), "SST-2")["train"])
    assert rows == [
        Example('"it opens', "1"),
        Example('and closes"', "0"),
        Example("one\rline", "1"),
        Example("windows", "0"),
        Example("last", "1"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"sentence\tlabel\ngood\t1\nno label\n",
            r"train\.tsv, line 3: 1 instead of 2 tab-separated fields \(sentence",
        ),
        (b"sentence\tlabel\na\tb\t1\n", "line 2: 3 instead of 2"),
        (b"sentence\tlabel\na\t1\n\nb\t1\n", "line 3: 1 instead of 2"),
        (b"label\tsentence\n1\ta\n", r"line 1: the header is \['label', 'sentence'\]"),
        (b"sentence\tlabel\na\t2\n", "line 2: label '2', expected one of 0, 1"),
        (b"sentence\tlabel\na\xff\t1\n", "line 2: not UTF-8"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_glue(make_sst_2(tmp_path, content), "SST-2")["train"])


def test_what_is_missing_is_named_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="task 'SST' is unknown, known are: SST-2"):
        read_glue(tmp_path, "SST")
    make_sst_2(tmp_path, b"")
    (tmp_path / "SST-2" / "dev.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"dev\.tsv is missing"):
        read_glue(tmp_path, "SST-2")


def test_the_script_reports_in_one_line_what_the_user_can_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "none"
    arguments = ["--source", str(tmp_path), "--tokenizer", str(missing), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["prepare_glue.py", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    with pytest.raises(SystemExit, match=f"^error: {missing} is no prepared folder"):
        runpy.run_path(str(ROOT / "scripts" / "prepare_glue.py"), run_name="__main__")


@pytest.mark.real_data
def test_the_official_files(real_data: Path) -> None:
    splits = {split: list(rows) for split, rows in read_glue(real_data / "glue", "SST-2").items()}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 67349, "valid": 872, "test": 1821}
    assert Counter(row.label for row in splits["valid"]) == {"1": 444, "0": 428}
    assert splits["valid"][0] == Example("it 's a charming and often affecting journey . ", "1")
    assert {row.label for row in splits["test"]} == {None}
