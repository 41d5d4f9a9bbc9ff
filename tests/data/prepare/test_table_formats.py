"""The files of texts that users have, and what is said where they are not what they should be."""

import codecs
import io

import pytest

from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.table_formats import read_rows


def texts_of(content, kind, *names) -> list[tuple[str, ...]]:
    rows = list(read_rows(io.BytesIO(content), kind, "FILE", *names))
    assert {row.label for row in rows} <= {None}
    return [(row.text,) if row.second is None else (row.text, row.second) for row in rows]


def test_lines_of_text():
    content = '"quoted"\ttab\n\r\n one\rtwo \r\nclichés\u2028last'.encode()
    assert texts_of(content, "txt") == [('"quoted"\ttab',), ("",), (" one\rtwo ",), ("clichés\u2028last",)]
    assert texts_of(b"", "txt") == []


def test_columns_of_a_table():
    content = b'number\ttext\tother\n1\t"it opens\t\n2\tand closes"\tb\rc\r\n'
    assert texts_of(content, "tsv") == [('"it opens',), ('and closes"',)]
    assert texts_of(content, "tsv", "other", "text") == [("", '"it opens'), ("b\rc", 'and closes"')]


def test_keys_of_json_lines():
    content = b'{"text": "a\\nb", "n": [1]}\n{"n": null, "text": "\\ud83d\\ude00"}\r\n'
    assert texts_of(content, "jsonl") == [("a\nb",), ("\U0001f600",)]
    assert texts_of(b'{"a": "1", "b": "2"}', "jsonl", "a", "b") == [("1", "2")]


def test_cells_of_csv_hold_quotes_delimiters_and_line_ends():
    content = b'number,text\n1,"a, ""b""\nc\r\nd"\n\n2,NA\r\n3,say "x"\n4,\n'
    assert texts_of(content, "csv") == [('a, "b"\nc\r\nd',), ("NA",), ('say "x"',), ("",)]
    assert texts_of(b"text;b\n1,5;2\n", "csv") == [("1,5",)]
    assert texts_of(b'text\tb\n"x\ty"\t2\n', "csv") == [("x\ty",)]
    long = b"word " * 100_000
    assert texts_of(b"text,b\n" + long + b",2\n", "csv") == [(long.decode(),)]


def test_blank_lines_at_the_end_of_json_lines_are_no_rows():
    assert texts_of(b'{"text": "x"}\n\n \n', "jsonl", "text") == [("x",)]


def test_a_blank_line_in_a_table_of_one_column_is_a_row():
    with pytest.raises(ValueError, match="line 3: 0 fields, but the header has 1"):
        texts_of(b"text\nx\n\ny\n", "csv")


def test_sentences_in_columns():
    content = b"-DOCSTART- -X- O\n\nAnn NN B-PER\n# NN O\n\n\n-DOCSTART- -X- O\nran VB O\n"
    assert texts_of(content, "conll", "0") == [(("Ann", "#"),), (("ran",),)]
    assert [row.text for row in read_rows(io.BytesIO(content), "conll", "FILE", "-1")] == [("B-PER", "O"), ("O",)]
    with pytest.raises(ValueError, match=r"^FILE, line 4: 1 columns, but the first word has 2$"):
        texts_of(b"a B\n\na B\nc\n", "conll", "0")
    with pytest.raises(ValueError, match=r"^FILE, line 1: no column '-1' among 0$"):
        texts_of(b"a\nb\n", "conll", "-1")
    commented = b"# sent_id = 1\nAnn 1 NN B\n# 2 = 7\n\n# newdoc\n# text = Bob ran\nBob 1 NN B\n\n# 1 NN O\n"
    assert texts_of(commented, "conll", "0") == [(("Ann", "#"),), (("Bob",),), (("#",),)]
    assert texts_of(b"# comment\n#\tNN\tO\nhello\tNN\tB\n", "conll", "0") == [(("#", "hello"),)], "a word, by its tab"
    line = "\t_" * 6
    universal = f"# text = du vin\n1-2\tdu\t_\t_{line}\n1\tde\t_\tADP{line}\n# x\n2\tle\t_\tDET{line}\n"
    assert texts_of(universal.encode(), "conll", "1") == [(("de", "le"),)]
    assert texts_of(universal.encode(), "conll", "3") == [(("ADP", "DET"),)]


@pytest.mark.parametrize(
    ("kind", "content"),
    [("txt", b"x\n"), ("csv", b"text,b\nx,y\n"), ("tsv", b"text\nx\n"), ("jsonl", b'{"text": "x"}\n')],
)
def test_an_editors_mark_is_no_text(kind, content):
    assert texts_of(codecs.BOM_UTF8 + content, kind) == [("x",)]


@pytest.mark.parametrize(
    ("kind", "content", "places"),
    [
        ("csv", b'text,b\n"x\ny",1\n\nz,2\n', [2, 5]),
        ("csv", b"\r\ntext;b\r\nx;1\r\n", [3]),
        ("tsv", b'text\n"x\ny\n', [2, 3]),
        ("jsonl", b'{"text": "x"}\n{"text": "y"}\n', [1, 2]),
        ("conll", b"# a comment\n\na\nb\n\n\nc\n", [3, 7]),
    ],
)
def test_a_row_says_where_it_begins(kind, content, places):
    rows = read_rows(io.BytesIO(content), kind, "FILE", "0" if kind == "conll" else "text")
    assert [row.where for row in rows] == [f"FILE, line {place}" for place in places]


def test_rows_are_read_as_they_are_consumed():
    lines = iter([b"text\n", b"one\n", b"two\n"])
    assert next(read_rows(lines, "tsv", "FILE")) == Example("one", None)
    assert list(lines) == [b"two\n"]


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("txt", b"a\nb\xff\n", r"^FILE, line 2: not UTF-8 \('utf-8' codec can't decode byte 0xff in position 1"),
        ("tsv", b"te\xffxt\n", "^FILE, line 1: not UTF-8"),
        ("jsonl", b'{"text": "\xff"}', "^FILE, line 1: not UTF-8"),
        ("tsv", b"a\tb\n1\t2\n", "^FILE, line 1: no column 'text' among a, b$"),
        ("csv", b"a,b\n1,2\n", "^FILE, line 1: no column 'text' among a, b$"),
        ("csv", b"\n\na;b\n1;2\n", "^FILE, line 3: no column 'text' among a, b$"),
        ("csv", b'"a\nb",c\n1,2\n', "^FILE, line 1: no column 'text' among a\nb, c$"),
        ("csv", b'text,b\n"x\r\ny",1\n\n"z\nz",1\nz\n', "^FILE, line 7: 1 fields, but the header has 2$"),
        ("csv", b'text,b\n"x\ny\xff",1\n', "^FILE, line 3: not UTF-8"),
        ("tsv", b"text\tb\ttext\n1\t2\t3\n", "^FILE, line 1: two columns 'text' among text, b, text$"),
        ("tsv", b"texts\tb\n1\t2\n", r"^FILE, line 1: no column 'text' \(did you mean 'texts'\?\) among texts, b$"),
        ("csv", b'text,b\n"x\ny",1\nz\n', "^FILE, line 4: 1 fields, but the header has 2$"),
        ("csv", b'text,b\nx,1\n"y,2\nz,3\n', r"^FILE, line 3: not CSV \(unexpected end of data\)$"),
        ("csv", b'text,b\n"x" y,1\n', "^FILE, line 2: not CSV"),
        ("csv", b"text,b\nx\xff,1\n", "^FILE, line 2: not UTF-8"),
        ("tsv", b"text\tb\nx\ty\nx\n", "^FILE, line 3: 1 fields between tabs, but the file has 2 columns: text, b$"),
        ("tsv", b"text\tb\nx\ty\tz\n", "^FILE, line 2: 3 fields between tabs"),
        ("tsv", b"text\tb\n\nx\ty\n", "^FILE, line 2: 1 fields between tabs"),
        ("jsonl", b'{"text": "x"}\n\n{"text": "y"}\n', "^FILE, line 2: a blank line, not a JSON object$"),
        ("jsonl", b'[\n  {"text": "x"}\n]\n', "^FILE, line 1: an array; write an object per line"),
        ("jsonl", b'{"text": "x"', r"^FILE, line 1: not JSON \(Expecting ',' delimiter, at character 13\)$"),
        (
            "jsonl",
            b'{"a":' * 100_000,
            r"^FILE, line 1: not JSON that .* \(its brackets are nested too deeply\)$",
        ),
        ("jsonl", b'{"text": "x", "n": ' + b"1" * 9_999 + b"}", r"^FILE, line 1: not JSON that can be read \(.*digits"),
        ("jsonl", b'[{"text": "x"}, {"text": "y"}]\n', "^FILE, line 1: an array; write an object per line"),
        ("jsonl", b'"x"\n', r'^FILE, line 1: not a JSON object, but "x"$'),
        ("txt", b"one\rtwo\rthree\r", "^FILE: its lines end with carriage returns alone: convert it with tr"),
        ("csv", b"text,label\rone,1\rtwo,2", "^FILE: its lines end with carriage returns alone"),
        ("jsonl", b'{"a": 1, "b": 2}\n', "^FILE, line 1: no column 'text' among a, b$"),
        ("jsonl", b"{}\n", "^FILE, line 1: no column 'text' among none$"),
        ("jsonl", b'{"text": 5}\n', "^FILE, line 1: text is 5, it must be text$"),
        ("jsonl", b'{"text": null}\n', "^FILE, line 1: text is None, it must be text$"),
        ("jsonl", b'{"text": "\\ud83d"}\n', r"^FILE, line 1: text is '\\ud83d', it must be text$"),
        ("tsv second", b"text\tb\n1\t2\n", "^FILE, line 1: no column 'second' among text, b$"),
        ("jsonl second", b'{"text": "x"}\n', "^FILE, line 1: no column 'second' among text$"),
    ],
)
def test_a_bad_line_is_named(kind, content, message):
    kind, *second = kind.split()
    with pytest.raises(ValueError, match=message):
        texts_of(content, kind, "text", *second)
