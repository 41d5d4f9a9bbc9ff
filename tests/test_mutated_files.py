"""Mutated tables and checkpoints are read correctly, or rejected by an error that names them."""

import io
import json
import os
import pickle
import re
import shutil
import zipfile

import pytest
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_linformer.checkpoint import read_progress
from fairseq_linformer.data.prepare.table import read_table
from fairseq_linformer.model.roberta import LinformerRobertaModel
from tests.helpers.exports import write_pretrained

ROWS = [["text", "label"], *(5 * [["the old dog sees", "good"], ["naïve  cats", "bad"], ["it runs; it rests", "bad"]])]
ODD = [b"", b"\0", b"\n", b'"', b"\\", b"\t", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b" " * 5000, b"[" * 100_000]
ODD += [b"null", b"NaN", b"-1e999", b"9" * 5000, b"PK\3\4", b"\x1f\x8b", "\u2028".encode(), b"\xed\xa0\x80", None]
BEFORE_ZIP = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)  # the start of files of torch before 1.6
EDIT = st.tuples(st.floats(0, 1), st.sampled_from([None, 0, 1, 30, 10**9]), st.sampled_from(ODD) | st.binary())
LIMITS = settings(max_examples=40, deadline=10_000, derandomize=True, database=None)


def mutate(content, edits):
    """Replace spans of a file by other bytes, of the same length if none is given; None doubles a span."""
    for position, length, new in edits:
        start = int(position * len(content))
        span = content[start:][: len(new or ODD) if length is None else length]
        content = content[:start] + (2 * span if new is None else new) + content[start + len(span) :]
    return content


def with_mutations(test):
    """Test a whole file, one with another byte at each of 20 positions, and others, the same ones in every run."""
    for edits in [], *([(position / 20, None, b"\xa5")] for position in range(20)):
        test = example(edits=edits)(test)
    return LIMITS(given(edits=st.lists(EDIT, max_size=3))(test))


def read_or_reject(path, content, read):
    """Write a file and read it; None if it is rejected by an error that names it."""
    path.write_bytes(content)
    try:
        return read(path)
    except (ValueError, FileNotFoundError) as error:
        assert re.search(f"{path.name}|the checkpoint", str(error))
    except pickle.UnpicklingError as error:  # torch's own
        assert read is weights_to_resume and "Weights only load failed" in str(error)


def is_in_text(rows, content):
    """Return True if the file holds every word of every cell."""
    text = content.decode()
    text += text.replace('""', '"')
    return all(word in text for row in rows for cell in row for word in ([cell] if isinstance(cell, str) else cell))


def is_json(rows, content):
    """Return True if the rows are those that Python reads, nan included, which is not equal to itself."""
    lines = [json.loads(line) for line in content.decode().removeprefix("\ufeff").split("\n") if line.strip()]
    return repr(rows) == repr([list(line.values()) for line in lines])


TABLES = {
    "table.csv": ("\n".join(f'"{text}",{label}' for text, label in ROWS).encode(), is_in_text),
    "table.tsv": ("\n".join(map("\t".join, ROWS)).encode(), is_in_text),
    "table.conll": ("\n".join(f"{text.split()[0]} {label}" for text, label in ROWS).encode(), is_in_text),
    "table.jsonl": ("\n".join(json.dumps(dict(zip("ab", row, strict=True))) for row in ROWS).encode(), is_json),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated")


@pytest.mark.parametrize("name", TABLES)
@with_mutations
def test_tables(name, folder, edits):
    content, is_right = mutate(TABLES[name][0], edits), TABLES[name][1]
    rows = read_or_reject(folder / name, content, lambda path: [[*row.values.values()] for row in read_table(path)[""]])
    assert edits if rows is None else is_right(rows, content)


def weights_of(path):
    return LinformerRobertaModel.from_pretrained(str(path.parent), path.name).model.state_dict()


def weights_to_resume(path):
    """Return the weights as fairseq's trainer reads them."""
    return load_checkpoint_to_cpu(str(path))["model"]


@pytest.fixture(scope="module")
def checkpoint(vocabulary, folder):
    shutil.copytree(vocabulary, folder, dirs_exist_ok=True)
    path = write_pretrained(folder / "run", vocabulary, projected_length=4)
    state = torch.load(path, weights_only=True)
    state["cfg"]["task"]["data"] = "data"  # the same bytes in every run
    torch.save(state, path)
    return path.read_bytes()


@example(edits=[(0.0, 0, BEFORE_ZIP)])
@example(edits=[(0.0, 30, BEFORE_ZIP)])
@example(edits=[(0.0, 10**9, BEFORE_ZIP)])
@with_mutations
def test_checkpoints(checkpoint, folder, edits):
    """torch does not compare the checksums that it writes: it would read some of these files with other weights."""
    saved = torch.load(io.BytesIO(checkpoint), weights_only=True)["model"]
    for read in (weights_of, weights_to_resume):
        weights = read_or_reject(folder / "changed.pt", mutate(checkpoint, edits), read)
        assert edits if weights is None else all(torch.equal(weights[name], saved[name]) for name in saved)
    assert read_or_reject(folder / "changed.pt", mutate(checkpoint, edits), read_progress) or edits


@with_mutations
def test_checkpoints_with_right_checksums(checkpoint, folder, edits):
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(checkpoint)) as whole, zipfile.ZipFile(stream, "w") as changed:
        for name in whole.namelist():
            changed.writestr(name, mutate(whole.read(name), edits if name.endswith("data.pkl") else []))
    weights = read_or_reject(folder / "packed.pt", stream.getvalue(), weights_of)
    assert edits or weights is not None


class MakeFolder(str):
    def __reduce__(self):  # what unpickling does
        return os.mkdir, (str(self),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["model", "cfg", "args", "extra_state", "task_state", None])
def test_checkpoints_run_no_code(place, zipped, checkpoint, folder):
    call, stream = MakeFolder(folder / "executed"), io.BytesIO()
    content = {**torch.load(io.BytesIO(checkpoint), weights_only=True), place: call} if place else call
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    for read in (weights_of, read_progress):
        assert read_or_reject(folder / "call.pt", stream.getvalue(), read) is None
    assert not (folder / "executed").exists()
