"""Command lines as users type them, and the options of a small pretraining run."""

import atexit
import contextlib
import logging
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.helpers import ROOT

SIZES = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
SIZES |= {"projected_length": 8, "local_conv": 3, "max_positions": 32}
HYDRA = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "tiny_512", "precision=float32"]

CHECKOUTS = {"linformer": "scripts/clone.py"}  # whether it is installed or not

PROCESSES = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
PROCESSES.set_forkserver_preload(["torch._dynamo", "fairseq.trainer", "fairseq.options", "sklearn.metrics"])


def run(*command, cwd: Path, status: int = 0, root: Path = ROOT) -> str:
    """Return the output of a command line of this environment, standard error included; it must end with `status`.

    The program, a Python script, runs in a process of its own. That process is forked from one that has imported torch
    and fairseq, which takes most of the time of a short command, and nothing of this project.
    """
    with tempfile.NamedTemporaryFile() as output:
        process = _start(command, cwd, Path(output.name), {"PYTHONPATH": str(root)})
        process.join()
        printed = Path(output.name).read_text()
    assert process.exitcode == status, f"{command[0]} ended with {process.exitcode}:\n{printed[-4000:]}"
    return printed


@contextlib.contextmanager
def forked(
    command: list, log: Path, prologue: str = "", cwd: Path | None = None, **environment: str
) -> Iterator[BaseProcess]:
    """A command line as of ``run`` in a process group that ends with the block; the prologue is run before it.

    It runs in the folder of its log, or in `cwd`.
    """
    log.touch()
    process = _start(command, cwd or log.parent, log, environment, f"os.setpgrp()\n{prologue}")
    try:
        yield process
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _start(command: Sequence, cwd: Path, output: Path, environment: dict[str, str], prologue: str = "") -> BaseProcess:
    program, *arguments = map(str, command)
    program = CHECKOUTS.get(program, program)
    script = ROOT / program if program.startswith("scripts/") else Path(sys.executable).parent / program
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    words = [str(script), *arguments]
    process = PROCESSES.Process(target=_run, args=(words, cwd, environment, str(output), prologue))
    process.start()
    return process


def _run(words: list[str], cwd: Path, environment: dict[str, str], output: str, prologue: str) -> None:
    """Run a command line of Python in this process, which is forked."""
    multiprocessing.set_start_method(None, force=True)  # of its workers: the system's default
    exec(prologue, {"os": os})
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv[:] = words
    sys.path[:] = [str(Path(words[0]).parent), environment["PYTHONPATH"], *filter(_is_installed, sys.path)]
    with open(output, "ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    if Path(words[0]).name.startswith("fairseq-"):
        logging.root.handlers.clear()  # these programs set logging up, and import fairseq after that
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            raise
        print(ended.code, file=sys.stderr)
        sys.exit(1)
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _is_installed(folder: str) -> bool:
    return not Path(folder).is_relative_to(ROOT) or Path(folder).is_relative_to(sys.prefix)


def as_flags(options: dict) -> list:
    """The options of a fairseq command line, --name value for each."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]


def with_flags(data, save_dir, updates, *more):
    """fairseq-train with the settings that ``with_hydra`` takes from configs/pretrain/tiny_512.yaml."""
    options = {**SIZES, "sharing": "layerwise", "dropout": 0.1, "attention_dropout": 0.1, "weight_decay": 0.01}
    options |= {"lr": 0.002, "warmup_updates": 2, "total_num_update": 6, "max_update": updates, "seed": 1}
    options |= {"tokens_per_sample": 32, "sample_break_mode": "none", "batch_size": 4, "num_workers": 0}
    options |= {"task": "dynamic_masked_lm", "criterion": "masked_lm", "optimizer": "fused_adam"}
    options |= {"lr_scheduler": "polynomial_decay", "adam_betas": "(0.9,0.98)", "adam_eps": 1e-6, "clip_norm": 0.0}
    options |= {"save_interval_updates": 3, "save_dir": save_dir}
    arch = ["--arch", "linformer_roberta_tiny", "--encoder-normalize-before", "--required-batch-size-multiple", 1]
    plugin = ["--user-dir", ROOT / "fairseq_linformer", "--cpu"]
    return ["fairseq-train", data, *plugin, *arch, *as_flags(options), *more]


def with_hydra(data, save_dir, updates, *more):
    """fairseq-hydra-train with the same settings."""
    sizes = [f"model.{name}={value}" for name, value in SIZES.items()]
    schedule = [f"optimization.max_update={updates}", "optimization.lr=[0.002]", "optimization.clip_norm=0.0"]
    schedule += ["lr_scheduler.warmup_updates=2", "lr_scheduler.total_num_update=6"]
    defaults = ["model.dropout=0.1", "model.attention_dropout=0.1", "dataset.batch_size=4", "dataset.num_workers=0"]
    paths = [f"task.data={data}", f"checkpoint.save_dir={save_dir}", "checkpoint.save_interval_updates=3"]
    return ["fairseq-hydra-train", *HYDRA, *sizes, *schedule, *defaults, *paths, "common.cpu=true", *more]


def continuing(data, *more) -> list:
    """fairseq-hydra-train from a checkpoint that ``checkpoint.finetune_from_model`` names."""
    words = ["--config-dir", ROOT / "configs/pretrain", "--config-name", "continue", f"task.data={data}"]
    return ["fairseq-hydra-train", *words, "common.cpu=true", "dataset.num_workers=0", *more]


def fine_tuning(data, *more) -> list:
    """fairseq-hydra-train on a prepared task, from random parameters."""
    words = [f"task.data={data}", "model=tiny_512", "checkpoint.finetune_from_model=null", "common.cpu=true"]
    words += ["precision=float32", *(f"model.{name}={value}" for name, value in SIZES.items())]
    hydra = ["--config-dir", ROOT / "configs/finetune", "--config-name", "finetune", *words, "dataset.num_workers=0"]
    return ["fairseq-hydra-train", *hydra, *more]


def by_torchrun(ranks: int, command: list, *settings) -> list:
    """fairseq-hydra-train in several processes; settings are torchrun's."""
    program, *words = command
    launcher = ["torchrun", "--standalone", "--nproc-per-node", ranks, *settings, "--no-python"]
    return [*launcher, Path(sys.executable).with_name(program), *words, "+distributed=torchrun"]


def last_line(output):
    return output.rstrip().splitlines()[-1]
