"""Running fairseq-hydra-train: what is run again, what not, and what ends with it. A script stands in for fairseq."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fairseq_linformer import running
from fairseq_linformer.running import LOG_FILE, RUN_FILE, check_settings, override, side_by_side, train
from tests.conftest import ROOT, running_in_group

PYTHON = sys.executable

# Logs two updates where Hydra does, counts its calls, and does what its arguments ask for.
TRAINER = """\
#!{python}
import os, pathlib, subprocess, sys, tempfile, time
pathlib.Path({calls!r}).open("a").write(os.environ["TMPDIR"] + " " + str(os.getpid()) + "\\n")
tempfile.mkdtemp()
folder = next(word.partition("=")[2] for word in sys.argv if word.startswith("checkpoint.save_dir="))
log = pathlib.Path(folder, "hydra", "hydra_train.log").open("a", buffering=1)
print('train | {{"epoch": 1, "loss": "2.5", "num_updates": "1"}}', file=log)
print('train | {{"epoch": 1, "loss": "2.', file=log)
if "optimization.lr=fail" in sys.argv:
    sys.exit("out of memory")
if "optimization.lr=wait" in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # as a worker of a DataLoader
    time.sleep(60)
print('valid | {{"epoch": 1, "valid_loss": "2.0", "valid_num_updates": "2"}}', file=log)
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Puts the stand-in beside Python, and is the file that it counts its calls in."""
    path = tmp_path / "calls"
    program = tmp_path / "bin" / "fairseq-hydra-train"
    program.parent.mkdir()
    program.write_text(TRAINER.format(python=sys.executable, calls=str(path)))
    program.chmod(0o755)
    monkeypatch.setattr(running.sys, "executable", str(program.with_name("python")))
    return path


@pytest.mark.parametrize(
    "value", ["/home/josé, (1)=x", "it's", "back\\slash", "both\\'", "ends\\", "''", "a b", "plain"]
)
def test_any_value_is_quoted_for_hydra(value):
    parsed = OverridesParser.create().parse_override(override("task.data", value))
    assert parsed.value() == value


def test_a_complete_run_is_not_run_again(calls, tmp_path):
    rows = [train("pretrain/tiny_512", ["optimization.lr=1"], tmp_path / "run", 2) for _ in range(2)]
    assert len(calls.read_text().splitlines()) == 1
    assert (
        rows[0]
        == rows[1]
        == [
            {"epoch": 1.0, "loss": 2.5, "num_updates": 1.0},
            {"epoch": 1.0, "valid_loss": 2.0, "valid_num_updates": 2.0},
        ]
    )


def test_a_folder_keeps_to_its_settings(calls, tmp_path):
    """Otherwise the figures of one run would be shown as those of another."""
    train("pretrain/tiny_512", ["optimization.lr=1"], tmp_path / "run", 2)
    for lr, updates in ((2, 2), (1, 3)):
        with pytest.raises(ValueError, match=r"run holds a run with other settings .*optimization\."):
            train("pretrain/tiny_512", [f"optimization.lr={lr}"], tmp_path / "run", updates)
    assert len(calls.read_text().splitlines()) == 1


def test_a_run_that_failed_says_why_and_is_run_again(calls, tmp_path):
    for _ in range(2):
        with pytest.raises(OSError, match=r"ended with status 1; its last lines:\n(.*\n)*out of memory"):
            train("pretrain/tiny_512", ["optimization.lr=fail"], tmp_path / "run", 2)
    assert len(calls.read_text().splitlines()) == 2
    assert not json.loads((tmp_path / "run" / RUN_FILE).read_text())["complete"]


def test_a_failed_call_does_not_stop_the_others():
    def fail():
        raise OSError("no space")

    first, second, third = side_by_side([lambda: 1, fail, lambda: 3], jobs=2)
    assert (first, str(second), third) == (1, "no space", 3)


def test_an_interruption_ends_what_runs_side_by_side(calls, tmp_path):
    """Ctrl-C in one of them, and what another has started does not train on unseen."""

    def interrupt():
        log = tmp_path / "run" / LOG_FILE
        deadline = time.monotonic() + 60
        while not (log.is_file() and '"loss"' in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        raise KeyboardInterrupt

    def wait():
        train("pretrain/tiny_512", ["optimization.lr=wait"], tmp_path / "run", 2)

    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupt, wait], jobs=2)
    assert not running._running


def test_a_typing_error_does_not_occupy_the_folder(calls, tmp_path):
    with pytest.raises(OSError, match="out of memory"):
        train("pretrain/tiny_512", ["optimization.lr=fail"], tmp_path / "run", 2)
    train("pretrain/tiny_512", ["optimization.lr=1"], tmp_path / "run", 2)
    assert len(calls.read_text().splitlines()) == 2


def test_a_checkpoint_that_was_cut_short_in_copying_is_copied_again(calls, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with zipfile.ZipFile(folder / "checkpoint_best.pt", "w") as whole:
        whole.writestr("model", "x")
    content = (folder / "checkpoint_best.pt").read_bytes()
    (folder / "checkpoint_last.pt").write_bytes(content[:-10])
    train("pretrain/tiny_512", [], folder, 2)
    assert (folder / "checkpoint_last.pt").read_bytes() == content


def test_each_job_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(running.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    barrier = threading.Barrier(3)

    def device():
        barrier.wait(timeout=30)  # all three at once
        return running._job.environment["CUDA_VISIBLE_DEVICES"]

    assert sorted(side_by_side([device] * 3, jobs=3)) == ["4", "4", "6"]


def test_temporary_files_of_a_run_are_gone_with_it(calls, tmp_path):
    train("pretrain/tiny_512", [], tmp_path / "run", 2)
    assert not Path(calls.read_text().split()[0]).exists()


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_two_processes_do_not_train_in_one_folder_and_a_terminated_one_ends_its_training(calls, tmp_path, ended_by):
    script = """
        import sys
        from pathlib import Path
        from fairseq_linformer import running
        from fairseq_linformer.errors import one_line_errors
        running.sys.executable = sys.argv[1]
        with one_line_errors():
            running.train("pretrain/tiny_512", ["optimization.lr=wait"], Path(sys.argv[2]), 2)
    """
    command = [PYTHON, "-c", textwrap.dedent(script), str(tmp_path / "bin" / "python"), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        log = tmp_path / "run" / LOG_FILE
        deadline = time.monotonic() + 60
        while not (log.is_file() and '"loss"' in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(ValueError, match="another process is training there"):
            train("pretrain/tiny_512", ["optimization.lr=wait"], tmp_path / "run", 2)
        process.send_signal(ended_by)
        process.wait(timeout=30)
    if ended_by == signal.SIGKILL:  # the training lives on, and so does its lock
        with pytest.raises(ValueError, match="another process is training there"):
            train("pretrain/tiny_512", ["optimization.lr=1"], tmp_path / "run", 2)
        os.killpg(int(calls.read_text().split()[1]), signal.SIGKILL)
        return
    assert process.returncode == 128 + signal.SIGTERM
    assert not running_in_group(int(calls.read_text().split()[1]))
    train("pretrain/tiny_512", ["optimization.lr=1"], tmp_path / "run", 2)  # at once


@pytest.mark.parametrize("content", ["", "[]", '{"settings": []}', '{"settings": 1, "complete": true}'])
def test_a_damaged_run_file_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json(:| is damaged:) "):
        check_settings([], tmp_path, 1)
