"""Runs of fairseq-hydra-train: repetition, rejection and interruption. A script replaces fairseq-hydra-train."""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer.cli.program import program
from fairseq_linformer.errors import UserError
from fairseq_linformer.training import launch
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.launch import LOG_FILE, RUN_FILE, Training, job_device, override, side_by_side
from tests.helpers.commands import PROCESSES
from tests.helpers.processes import running_in_group, wait_until

pytestmark = pytest.mark.slow

# Logs two updates as Hydra does, counts its calls, and fails or waits by its arguments.
TRAINER = """\
#!{python}
import os, pathlib, subprocess, sys, tempfile, time
pathlib.Path({calls!r}).open("a").write(os.environ["TMPDIR"] + " " + str(os.getpid()) + "\\n")
tempfile.mkdtemp()
folder = next(word.partition("=")[2] for word in sys.argv if word.startswith("checkpoint.save_dir="))
log = pathlib.Path(folder, "hydra", "hydra_train.log").open("a", buffering=1)
print('train | {{"epoch": 1, "loss": "2.5", "num_updates": "1"}}', file=log)
print('train | {{"epoch": 1, "loss": "2.', file=log)
if "common.wandb_project=fail" in sys.argv:
    sys.exit("out of memory")
if "common.wandb_project=wait" in sys.argv:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # as a worker of a DataLoader
    time.sleep(60)
if "common.wandb_project=replace" in sys.argv:
    data = next(word.partition("=")[2] for word in sys.argv if word.startswith("task.data="))
    pathlib.Path(data, "input0", "train.bin").write_bytes(b"54321")
print('valid | {{"epoch": 1, "valid_loss": "2.0", "valid_num_updates": "2"}}', file=log)
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Write the script into the folder of a pretended Python; return the file in which it counts its calls."""
    path = tmp_path / "calls"
    trainer = tmp_path / "bin" / "fairseq-hydra-train"
    trainer.parent.mkdir()
    trainer.write_text(TRAINER.format(python=sys.executable, calls=str(path)))
    trainer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(trainer.with_name("python")))
    return path


@pytest.fixture
def data(tmp_path) -> str:
    """Override with a folder of data."""
    (tmp_path / "data" / "input0").mkdir(parents=True)
    (tmp_path / "data" / "input0" / "train.bin").write_bytes(b"12345")
    return override("task.data", tmp_path / "data")


# Characters and words with a meaning for Hydra, OmegaConf or YAML, and unusual ones.
PIECES = ["\t", " ", "\u00a0", *"${}\\'\",=:;#()[]<>|&!?*~@%^`+-./aZ0é犬🐕"]
PIECES += ["null", "true", "1e5", "???", "\\'", "\\\\", "${", "\\${", "${a}", "$ {", "\u2028", "\x0b", "'\"", "../"]


def test_any_path_is_the_same_in_training_and_in_the_checkpoint():
    """Composed by Hydra, resolved by fairseq-hydra-train, resolved into a checkpoint, and read from it."""
    chance = random.Random(1)
    paths = ["/" + "".join(chance.choices(PIECES, k=chance.randint(1, 12))) for _ in range(600)]
    paths += ["/home/josé, (1)=x", "it's", "back\\slash", "ends\\", "''", "a b", "true", "nan", "1e5", "-a"]
    allowed = [path for path in paths if "${" not in path]
    assert 120 < len(allowed) < 480
    words = [override(f"+model.number{number}", path) for number, path in enumerate(allowed)]
    composed = compose_configuration("pretrain/tiny_512", ["task.data=/d", *words])
    saved = OmegaConf.to_container(OmegaConf.create(composed), resolve=True, enum_to_str=True)
    model = OmegaConf.create(saved).model
    assert [model[f"number{number}"] for number in range(len(allowed))] == allowed
    for path in set(paths) - set(allowed):
        with pytest.raises(UserError):
            override("task.data", path)


def test_a_complete_run_is_not_repeated_and_other_settings_are_rejected(calls, data, tmp_path):
    """Otherwise the figures of one run would be those of another."""
    rows = [Training("pretrain/tiny_512", [data, "optimization.lr=[1]"], tmp_path / "run", 2).run() for _ in range(2)]
    assert len(calls.read_text().splitlines()) == 1
    training, validation = {"loss": 2.5, "num_updates": 1.0}, {"valid_loss": 2.0, "valid_num_updates": 2.0}
    assert rows[0] == rows[1] == [{"epoch": 1.0, **training}, {"epoch": 1.0, **validation}]
    assert not Path(calls.read_text().split()[0]).exists(), "its temporary files"
    for lr, updates in ((2, 2), (1, 3)):
        with pytest.raises(UserError, match=r"optimization\."):
            Training("pretrain/tiny_512", [data, f"optimization.lr=[{lr}]"], tmp_path / "run", updates).run()
    assert len(calls.read_text().splitlines()) == 1


def test_a_run_without_a_fingerprint_is_rejected(calls, data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_last.pt").touch()
    for content in (None, '{"settings": ["a=b"], "complete": true}'):
        if content is not None:
            (tmp_path / "run" / RUN_FILE).write_text(content)
        with pytest.raises(UserError, match=r"run\.json"):
            Training("pretrain/tiny_512", [data], tmp_path / "run", 2).run()
    assert not calls.is_file()


def test_mistaken_settings_are_rejected_before_any_work(calls, data, tmp_path):
    for word in ("optimization.rate=1", "+precison=bf16"):
        with pytest.raises(UserError, match=rf"^{word.partition('=')[0].lstrip('+')}: there is no such option"):
            Training("pretrain/tiny_512", [data, word], tmp_path / "run", 2).run()
    with pytest.raises(FileNotFoundError, match="/none"):
        Training("pretrain/tiny_512", ["task.data=/none"], tmp_path / "run", 2).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("case", "text"), [("fail", r"status 1;(.*\n)*out of memory"), ("replace", "since the run")])
def test_a_run_that_failed_or_whose_data_was_replaced_is_incomplete(calls, data, tmp_path, case, text):
    with pytest.raises((OSError, UserError), match=text):
        Training("pretrain/tiny_512", [data, f"common.wandb_project={case}"], tmp_path / "run", 2).run()
    assert not json.loads((tmp_path / "run" / RUN_FILE).read_text())["complete"]
    Training("pretrain/tiny_512", [data], tmp_path / "run", 2).run()
    assert len(calls.read_text().splitlines()) == 2


def has_logged(folder):
    return (folder / LOG_FILE).is_file() and '"loss"' in (folder / LOG_FILE).read_text()


def test_an_interruption_ends_all_concurrent_trainings(calls, data, tmp_path):

    def interrupt():
        wait_until(lambda: has_logged(tmp_path / "run"))
        raise KeyboardInterrupt

    def wait():
        Training("pretrain/tiny_512", [data, "common.wandb_project=wait"], tmp_path / "run", 2).run()

    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupt, wait], jobs=2)
    assert not launch._running


@pytest.mark.parametrize(
    ("visible", "jobs", "gpus", "expected"),
    [
        ("4,6", 3, 1, [("4", "cuda:0"), ("4", "cuda:0"), ("6", "cuda:1")]),  # devices are numbered by this process
        ("1,3,5,7", 2, 2, [("1,3", "cuda:0"), ("5,7", "cuda:2")]),
        ("1,3,5,7", 1, 8, [("1,3,5,7", "cuda:0")]),
    ],
)
def test_concurrent_trainings_share_the_gpus(monkeypatch, visible, jobs, gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(visible.split(",")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    barrier = threading.Barrier(jobs)

    def devices():
        barrier.wait(timeout=30)  # all at once
        return launch._job.environment["CUDA_VISIBLE_DEVICES"], job_device()

    assert sorted(side_by_side([devices] * jobs, jobs=jobs, gpus=gpus)) == expected
    assert job_device() == ("cuda" if torch.cuda.is_available() else "cpu")


def train_in_a_program(python, folder, data):
    """Train in a process, as a command of ``linformer`` does."""
    sys.executable = python
    with program():
        Training("pretrain/tiny_512", [data, "common.wandb_project=wait"], folder, 2).run()


@pytest.mark.parametrize("ended_by", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL])
def test_two_processes_do_not_train_in_one_folder(calls, data, tmp_path, ended_by):
    """A terminated process ends its training; that of a killed one continues, and keeps its lock."""
    folder = tmp_path / "run"
    process = PROCESSES.Process(target=train_in_a_program, args=(sys.executable, folder, data))
    process.start()
    wait_until(lambda: has_logged(folder))
    with pytest.raises(UserError, match="another process is training there"):
        Training("pretrain/tiny_512", [data, "common.wandb_project=wait"], folder, 2).run()
    os.kill(process.pid, ended_by)
    process.join(timeout=30)
    training = int(calls.read_text().split()[1])
    if ended_by == signal.SIGKILL:
        with pytest.raises(UserError, match="another process is training there"):
            Training("pretrain/tiny_512", [data, "optimization.lr=[1]"], folder, 2).run()
        os.killpg(training, signal.SIGKILL)
        return
    assert process.exitcode == 128 + ended_by and not running_in_group(training)
    Training("pretrain/tiny_512", [data, "optimization.lr=[1]"], folder, 2).run()  # without waiting
