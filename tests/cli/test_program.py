"""Exit status after signals and errors, and models of the Hub."""

import os
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fairseq_linformer.cli.program import HUB_FILES, program, resolve_model
from fairseq_linformer.errors import UserError
from tests.helpers import ROOT

START = """
import os, signal, sys, time
from fairseq_linformer.cli.program import program
def end(): os.kill(os.getpid(), signal.{name})
"""
TWICE = """
with program():
    try: end(); time.sleep(30)
    finally: end(); time.sleep(0.1); print("cleaned up")
"""
UNDER_NOHUP = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith program(): end()\nend()"


def run(body, name="SIGINT", **streams):
    command = [sys.executable, "-c", START.format(name=name) + body]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(command, check=False, cwd=ROOT, text=True, timeout=60, **streams)


@pytest.mark.parametrize(
    ("body", "name", "status"),
    [
        ("with program(): end(); time.sleep(30)", "SIGINT", 130),
        (TWICE, "SIGTERM", 143),
        (TWICE, "SIGHUP", 129),
        (UNDER_NOHUP, "SIGHUP", 0),
    ],
)
def test_a_signal_ends_the_program_with_its_status(body, name, status):
    done = run(body, name)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert (done.stdout == "cleaned up\n") == (body == TWICE)


def test_a_closed_pipe_ends_the_program_silently():
    reading, writing = os.pipe()
    os.close(reading)
    done = run("with program(): print('a')", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_errors_of_the_user_are_one_line_and_others_keep_their_traceback():
    for error in (UserError("k=3 is not allowed"), FileNotFoundError(2, "No such file", "a.txt")):
        with pytest.raises(SystemExit) as ended, program():
            raise error
        assert ended.value.code == f"error: {error}"
    with pytest.raises(KeyError), program():
        raise KeyError("a defect")


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The names of downloaded models; every name can be downloaded."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    names: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: names.append(name) or "cached")
    monkeypatch.chdir(tmp_path)
    return names


def test_a_name_on_the_hub_is_downloaded_unless_it_is_a_path(downloads):
    Path("runs").mkdir()
    for name in ("/no/such", "../there", "checkpoint.pt", "runs", "runs/missing", "a/b/c"):
        assert str(resolve_model(Path(name))) == name and not downloads
    for name in ("roberta-base", "FacebookAI/roberta-base"):
        assert str(resolve_model(Path(name))) == "cached" and downloads.pop() == name


def test_a_model_that_cannot_be_downloaded_is_named(downloads, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: Path("no/network").read_text())
    with pytest.raises(UserError, match=r"roberta-base.*no/network"):
        resolve_model(Path("roberta-base"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"roberta-base.*huggingface_hub"):
        resolve_model(Path("roberta-base"))


def test_no_code_is_downloaded():
    for name in ("config.json", "model-00001-of-00002.safetensors", "vocab.txt", "sentencepiece.bpe.model"):
        assert any(fnmatch(name, pattern) for pattern in HUB_FILES), name
    for name in ("modeling.py", "pytorch_model.bin", "rust_model.ot", "x/model.safetensors", "onnx/model.onnx"):
        assert not any(fnmatch(name, pattern) for pattern in HUB_FILES), name
