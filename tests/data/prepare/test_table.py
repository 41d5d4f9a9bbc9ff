"""Tables in all formats: their rows, and errors that name the file and the line."""

import codecs
import gzip
import io
import lzma
from pathlib import Path

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.table import WHOLE, check_filled, read_rows, read_table
from fairseq_linformer.errors import UserError


def texts_of(content, file_format, *columns) -> list:
    rows = list(read_rows(io.BytesIO(content), file_format, "FILE", *columns))
    assert {row.label for row in rows} <= {None}
    return [row.text if row.second is None else (row.text, row.second) for row in rows]


UNIVERSAL = "\t_" * 6


@pytest.mark.parametrize(
    ("file_format", "content", "columns", "texts"),
    [
        ("txt", '"a"\tb\n\r\n one\rtwo \r\né\u2028last'.encode(), (), ['"a"\tb', "", " one\rtwo ", "é\u2028last"]),
        ("tsv", b'n\ttext\n1\t"opens\n2\tand closes"\n', (), ['"opens', 'and closes"']),
        ("tsv", b"text\tother\na\tb\rc\r\n", ("other", "text"), [("b\rc", "a")]),
        ("jsonl", b'{"text": "a\\nb"}\n\n{"n": 1, "text": "\\ud83d\\ude00"}\r\n \n', (), ["a\nb", "\U0001f600"]),
        ("jsonl", b'{"a": "1", "b": "2"}', ("a", "b"), [("1", "2")]),
        ("jsonl", b'{"text": "2020-01-01"}', (), ["2020-01-01"]),
        ("csv", b'n,text\n1,"a, ""b""\nc\r\nd"\n\n2,NA\r\n3,007\n4,\n', (), ['a, "b"\nc\r\nd', "NA", "007", ""]),
        ("csv", b"\r\ntext,b\r\nx,1\r\n", (), ["x"]),
        ("csv", b"text;b\n1,5;2\n", (), ["1,5"]),
        ("csv", b'text\tb\n"x\ty"\t2\n', (), ["x\ty"]),
        ("csv", b"text,b\n" + b"word " * 100_000 + b",2\n", (), ["word " * 100_000]),
        ("conll", b"-DOCSTART- O\n\nAnn B-X\n# O\n\n\n-DOCSTART- O\nran O\n", ("0",), [("Ann", "#"), ("ran",)]),
        ("conll", b"Ann B-X\nran O\n", ("-1",), [("B-X", "O")]),
        ("conll", b"# id = 1\nAnn 1 N B\n# 2 = 7\n\n# newdoc\nBob 1 N B\n", ("0",), [("Ann", "#"), ("Bob",)]),
        ("conll", b"# comment\n#\tNN\tO\nhello\tNN\tB\n", ("0",), [("#", "hello")]),
        (
            "conll",
            f"# text = du\n1-2\tdu\t_\t_{UNIVERSAL}\n1\tde\t_\tADP{UNIVERSAL}\n# x\n2\tle\t_\tD{UNIVERSAL}\n".encode(),
            ("1",),
            [("de", "le")],
        ),
        ("txt", codecs.BOM_UTF8 + b"text\nx\n", (), ["text", "x"]),
        ("csv", codecs.BOM_UTF8 + b"text\nx\n", (), ["x"]),
    ],
)
def test_text_formats(file_format, content, columns, texts):
    assert texts_of(content, file_format, *columns) == texts


@pytest.mark.parametrize(
    ("file_format", "content", "lines"),
    [
        ("csv", b'text,b\n"x\ny",1\n\nz,2\n', [2, 5]),
        ("tsv", b'text\n"x\ny\n', [2, 3]),
        ("conll", b"# a comment\n\na\nb\n\n\nc\n", [3, 7]),
    ],
)
def test_a_row_names_its_first_line(file_format, content, lines):
    rows = read_rows(io.BytesIO(content), file_format, "FILE", "0" if file_format == "conll" else "text")
    assert [row.location for row in rows] == [f"FILE, line {line}" for line in lines]


@pytest.mark.parametrize(
    ("file_format", "content", "line"),
    [
        ("txt", b"a\nb\xff\n", 2),
        ("txt", b"one\rtwo\rthree\r", None),
        ("csv", b'text,b\n"x\ny\xff",1\n', 3),
        ("csv", b"a,b\n1,2\n", 2),
        ("csv", b"text,b,text\n1,2,3\n", 1),
        ("csv", b'text,b\n"x\r\ny",1\n\n"z\nz",1\nz\n', 7),
        ("csv", b'text,b\nx,1\n"y,2\nz,3\n', 3),
        ("tsv", b"text\tb\nx\ty\nx\n", 3),
        ("jsonl", b'{"text": "x"', 1),
        ("jsonl", b'[{"text": "x"}]\n', 1),
        ("jsonl", b'{"text": 5}\n', 1),
        ("jsonl", b'{"text": "\\ud83d"}\n', 1),
        ("conll", b"text b\n\na b\nc\n", 4),
    ],
)
def test_a_bad_line_is_named(file_format, content, line):
    columns = ("0",) if file_format == "conll" else ("text",)
    with pytest.raises(UserError, match="^FILE" if line is None else f"^FILE, line {line}: "):
        texts_of(content, file_format, *columns)


@pytest.mark.parametrize(("texts", "location"), [([], "FILE"), (["a", " "], "line 1"), ([("a",)], "line 0")])
def test_texts_to_predict_are_checked_before(texts, location):
    rows = [Example(text, None, None, f"line {number}") for number, text in enumerate(texts)]
    with pytest.raises(UserError, match=location):
        check_filled(rows, "FILE", words=False)
    check_filled([Example(("a",), None)], "FILE", words=True)


def values(path) -> dict[str, list[dict]]:
    return {split: [dict(row.values) for row in rows] for split, rows in read_table(path).items()}


def test_packed_tables(tmp_path):
    for suffix, packer in ((".gz", gzip), (".XZ", lzma)):
        path, content = tmp_path / f"x.TSV{suffix}", packer.compress(b"text\tlabel\na\tx\n")
        path.write_bytes(content)
        assert values(path) == {WHOLE: [{"text": "a", "label": "x"}]}
        path.write_bytes(content[:-9])
        with pytest.raises(UserError, match="TSV"):
            values(path)


def test_a_folder_per_class(tmp_path):
    for name in ("neg/1.TXT", "pos/2.txt", "pos/notes.md", "pos/._2.txt", ".ipynb_checkpoints/3.txt", "__MACOSX/4.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert values(tmp_path) == {WHOLE: [{"text": "neg/1.TXT", "label": "neg"}, {"text": "pos/2.txt", "label": "pos"}]}
    (tmp_path / "neg" / "1.TXT").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"neg/1\.TXT"):
        values(tmp_path)


def test_names_of_no_table(tmp_path):
    (tmp_path / "table.doc").touch()
    for name, error in (("table.doc", UserError), ("absent.csv", FileNotFoundError)):
        with pytest.raises(error, match=name):
            values(tmp_path / name)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    """The library with another cache and no network."""
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    return library


def table(datasets):
    """A data set of two classes by name."""
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0], [1, -1], []], "number": [7, 2**60 + 1, None]}
    classes = datasets.ClassLabel(names=["bad", "good"])
    types = {"text": datasets.Value("string"), "label": classes, "number": datasets.Value("int64")}
    return datasets.Dataset.from_dict(rows, datasets.Features({**types, "tags": datasets.List(classes)}))


ROWS = [
    {"text": "a", "label": "good", "tags": ["bad"], "number": 7},
    {"text": "b", "label": "bad", "tags": ["good", None], "number": 2**60 + 1},
    {"text": "c", "label": None, "tags": [], "number": None},
]


def test_parquet_arrow_and_saved_data_sets(datasets, tmp_path):
    rows = table(datasets)
    rows.to_parquet(tmp_path / "x.parquet")
    rows.save_to_disk(tmp_path / "saved")
    splits = {"train": rows, "validation": rows, "unsupervised": rows}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "splits")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    for path in (tmp_path / "x.parquet", tmp_path / "saved", arrow):
        assert values(path) == {WHOLE: ROWS}
    assert values(tmp_path / "splits") == {"train": ROWS, "valid": ROWS, "unsupervised": ROWS}
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"x\.parquet"):
        values(tmp_path / "x.parquet")


def test_a_data_set_of_the_hub(datasets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="owner/name"):
        values(Path("owner/name"))

    def load(*names, streaming):
        assert names == ("owner/name", "small") and streaming
        return datasets.IterableDatasetDict({"train": table(datasets).to_iterable_dataset()})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert values(Path("owner/name:small")) == {"train": ROWS}
