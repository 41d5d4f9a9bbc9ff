"""Running fairseq-hydra-train: what is run again, what not, and what ends with it. A script stands in for fairseq."""

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fairseq_linformer.errors import UserError
from fairseq_linformer.training import launch as running
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.launch import LOG_FILE, RUN_FILE, job_device, override, side_by_side, train
from tests.helpers import ROOT
from tests.helpers.processes import running_in_group, wait_until

pytestmark = pytest.mark.slow

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
    """Puts the stand-in beside Python, and is the file that it counts its calls in."""
    path = tmp_path / "calls"
    program = tmp_path / "bin" / "fairseq-hydra-train"
    program.parent.mkdir()
    program.write_text(TRAINER.format(python=sys.executable, calls=str(path)))
    program.chmod(0o755)
    monkeypatch.setattr(running.sys, "executable", str(program.with_name("python")))
    return path


@pytest.fixture
def data(tmp_path) -> str:
    """The override that names a folder of data."""
    (tmp_path / "data" / "input0").mkdir(parents=True)
    (tmp_path / "data" / "input0" / "train.bin").write_bytes(b"12345")
    return override("task.data", tmp_path / "data")


@pytest.mark.parametrize(
    "value",
    ["/home/josé, (1)=x", "it's", "back\\slash", "both\\'", "ends\\", "''", "a b", "true", "nan", "1e5", "-a"],
)
def test_a_value_that_hydra_would_read_otherwise_is_quoted(value):
    word = override("task.data", value)
    assert OverridesParser.create().parse_override(word).value() == value
    assert word != f"task.data={value}"


@pytest.mark.parametrize("value", ["data", "data-bin", "nano", "none", "a/1", "/a_b/c.d"])
def test_others_stand_as_they_are(value):
    assert override("task.data", value) == f"task.data={value}"
    assert OverridesParser.create().parse_override(f"task.data={value}").value() == value


# What has a meaning for Hydra, OmegaConf or YAML, what only looks odd, and words that are no text there.
PIECES = ["\t", " ", "\u00a0", *"${}\\'\",=:;#()[]<>|&!?*~@%^`+-./aZ0é犬🐕"]
PIECES += ["null", "true", "1e5", "???", "\\'", "\\\\", "${", "\\${", "${a}", "$ {", "\u2028", "\x0b", "'\"", "../"]


def test_any_path_means_what_was_typed_in_training_and_in_the_checkpoint():
    """Composed by Hydra, resolved by fairseq-hydra-train, resolved into a checkpoint, and read from it."""
    chance = random.Random(1)
    paths = ["/" + "".join(chance.choices(PIECES, k=chance.randint(1, 12))) for _ in range(1500)]
    allowed = [path for path in paths if "${" not in path]
    assert 300 < len(allowed) < 1200
    words = [override(f"+model.number{number}", path) for number, path in enumerate(allowed)]
    composed = compose_configuration("pretrain/tiny_512", ["task.data=/d", *words])
    saved = OmegaConf.to_container(OmegaConf.create(composed), resolve=True, enum_to_str=True)
    model = OmegaConf.create(saved).model
    assert [model[f"number{number}"] for number in range(len(allowed))] == allowed
    for path in set(paths) - set(allowed):
        with pytest.raises(UserError):
            override("task.data", path)


def test_a_complete_run_is_not_run_again_and_a_folder_keeps_to_its_settings(calls, data, tmp_path):
    """Otherwise the figures of one run would be shown as those of another."""
    rows = [train("pretrain/tiny_512", [data, "optimization.lr=[1]"], tmp_path / "run", 2) for _ in range(2)]
    assert len(calls.read_text().splitlines()) == 1
    training, validation = {"loss": 2.5, "num_updates": 1.0}, {"valid_loss": 2.0, "valid_num_updates": 2.0}
    assert rows[0] == rows[1] == [{"epoch": 1.0, **training}, {"epoch": 1.0, **validation}]
    assert not Path(calls.read_text().split()[0]).exists(), "its temporary files"
    for lr, updates in ((2, 2), (1, 3)):
        with pytest.raises(UserError, match=r"optimization\."):
            train("pretrain/tiny_512", [data, f"optimization.lr=[{lr}]"], tmp_path / "run", updates)
    assert len(calls.read_text().splitlines()) == 1


def test_a_folder_keeps_to_the_content_of_what_it_was_made_of(calls, data, tmp_path, monkeypatch):
    """Under the same names, and whatever the times say; what only moved is the same."""
    initial = tmp_path / "initial.pt"
    initial.write_bytes(b"weights")
    words = [data, override("checkpoint.finetune_from_model", initial)]
    train("pretrain/tiny_512", words, tmp_path / "run", 2)
    bin_file = tmp_path / "data" / "input0" / "train.bin"
    for file, content, part in ((bin_file, b"54321", "data"), (initial, b"WEIGHTS", "checkpoint")):
        before = file.read_bytes()
        file.write_bytes(content)
        os.utime(file, (1, 1))  # older than the run
        with pytest.raises(UserError, match=rf"{part} .*other content"):
            train("pretrain/tiny_512", words, tmp_path / "run", 2)
        file.write_bytes(before)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert train("pretrain/tiny_512", [override("task.data", tmp_path / "moved"), words[1]], tmp_path / "run", 2)


def test_data_replaced_while_it_trains_ends_in_no_complete_run(calls, data, tmp_path):
    words = [data, "common.wandb_project=replace"]
    with pytest.raises(ValueError, match="since the run began"):
        train("pretrain/tiny_512", words, tmp_path / "run", 2)
    assert not json.loads((tmp_path / "run" / RUN_FILE).read_text())["complete"]


@pytest.mark.parametrize("content", ['{"settings": ["a=b"], "complete": true}', '{"settings"', "[]", None])
def test_a_run_without_a_fingerprint_is_rejected(calls, data, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_last.pt").touch()
    if content is not None:
        (tmp_path / "run" / RUN_FILE).write_text(content)
    with pytest.raises(UserError, match=r"run\.json"):
        train("pretrain/tiny_512", [data], tmp_path / "run", 2)
    assert not calls.is_file()


def test_what_hydra_does_not_compose_is_one_line_before_any_work(calls, data, tmp_path):
    for word in ("optimization.rate=1", "+precison=bf16"):
        with pytest.raises(UserError, match=rf"^{word.partition('=')[0].lstrip('+')}: there is no such option"):
            train("pretrain/tiny_512", [data, word], tmp_path / "run", 2)
    with pytest.raises(FileNotFoundError, match="/none"):
        train("pretrain/tiny_512", ["task.data=/none"], tmp_path / "run", 2)
    assert not (tmp_path / "run").exists()


def test_a_run_that_failed_says_why_and_is_run_again(calls, data, tmp_path):
    for _ in range(2):
        with pytest.raises(OSError, match=r"ended with status 1; its last lines:\n(.*\n)*out of memory"):
            train("pretrain/tiny_512", [data, "common.wandb_project=fail"], tmp_path / "run", 2)
    assert len(calls.read_text().splitlines()) == 2
    assert not json.loads((tmp_path / "run" / RUN_FILE).read_text())["complete"]


def has_logged(folder):
    return (folder / LOG_FILE).is_file() and '"loss"' in (folder / LOG_FILE).read_text()


def test_an_interruption_ends_what_runs_side_by_side(calls, data, tmp_path):
    """Ctrl-C in one of them, and what another has started does not train on unseen."""

    def interrupt():
        wait_until(lambda: has_logged(tmp_path / "run"))
        raise KeyboardInterrupt

    def wait():
        train("pretrain/tiny_512", [data, "common.wandb_project=wait"], tmp_path / "run", 2)

    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupt, wait], jobs=2)
    assert not running._running


def test_each_job_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    barrier = threading.Barrier(3)

    def device():
        barrier.wait(timeout=30)  # all three at once
        return running._job.environment["CUDA_VISIBLE_DEVICES"], job_device()

    found = sorted(side_by_side([device] * 3, jobs=3))
    assert found == [("4", "cuda:0"), ("4", "cuda:0"), ("6", "cuda:1")], "as this process numbers what it sees"
    assert job_device() == ("cuda" if torch.cuda.is_available() else "cpu"), "outside of them"


def test_each_job_has_as_many_gpus_as_its_processes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,5,7")
    barrier = threading.Barrier(2)

    def devices():
        barrier.wait(timeout=30)
        return running._job.environment["CUDA_VISIBLE_DEVICES"], job_device()

    assert sorted(side_by_side([devices] * 2, jobs=2, gpus=2)) == [("1,3", "cuda:0"), ("5,7", "cuda:2")]
    monkeypatch.setattr(barrier, "wait", lambda timeout: None)
    assert side_by_side([devices], jobs=1, gpus=8) == [("1,3,5,7", "cuda:0")], "all that there are"


def test_the_program_is_looked_for_where_pip_may_have_put_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("PATH", str(tmp_path / "user"))
    with pytest.raises(
        FileNotFoundError, match=f"^fairseq-hydra-train is not beside {tmp_path}/bin/python nor in PATH"
    ):
        running._program()
    for folder in ("user", "scripts", "bin"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fairseq-hydra-train").touch(mode=0o755)
        assert running._program() == str(tmp_path / folder / "fairseq-hydra-train")


@pytest.mark.parametrize("ended_by", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGKILL])
def test_two_processes_do_not_train_in_one_folder_and_a_terminated_one_ends_its_training(
    calls, data, tmp_path, ended_by
):
    script = """
        import sys
        from pathlib import Path
        from fairseq_linformer.training import launch as running
        from fairseq_linformer.cli.program import program
        running.sys.executable = sys.argv[1]
        with program():
            running.train("pretrain/tiny_512", [sys.argv[3], "common.wandb_project=wait"], Path(sys.argv[2]), 2)
    """
    command = [PYTHON, "-c", textwrap.dedent(script), str(tmp_path / "bin" / "python"), str(tmp_path / "run"), data]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, start_new_session=True) as process:
        wait_until(lambda: has_logged(tmp_path / "run"))
        with pytest.raises(ValueError, match="another process is training there"):
            train("pretrain/tiny_512", [data, "common.wandb_project=wait"], tmp_path / "run", 2)
        process.send_signal(ended_by)
        process.wait(timeout=30)
    if ended_by == signal.SIGKILL:  # the training lives on, and so does its lock
        with pytest.raises(ValueError, match="another process is training there"):
            train("pretrain/tiny_512", [data, "optimization.lr=[1]"], tmp_path / "run", 2)
        os.killpg(int(calls.read_text().split()[1]), signal.SIGKILL)
        return
    assert process.returncode == 128 + ended_by
    assert not running_in_group(int(calls.read_text().split()[1]))
    train("pretrain/tiny_512", [data, "optimization.lr=[1]"], tmp_path / "run", 2)  # at once
