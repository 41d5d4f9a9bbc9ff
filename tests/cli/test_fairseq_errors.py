"""Errors of fairseq's command lines: one line for user input, a traceback for a defect."""

import os
import sys

import pytest
import torch
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from omegaconf import OmegaConf
from torch._utils import ExceptionWrapper

from fairseq_linformer import LinformerRobertaModel  # noqa: F401 (registers the plugin)
from fairseq_linformer.cli.fairseq_errors import install_excepthook, report
from fairseq_linformer.errors import UserError, check
from fairseq_linformer.model.options import LinformerRobertaConfig
from tests.helpers.configs import composed

WITHOUT_A_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the profiler starts")


def reject():
    check("k", 3, False, "from 1 to 2")


def reject_in_worker():
    """Raise as torch's data loader does after an error of its worker."""
    try:
        reject()
    except UserError:
        ExceptionWrapper(where="in DataLoader worker process 0").reraise()


def raise_while_handling(error):
    try:
        reject()
    except UserError:
        raise error  # noqa: B904  a context without a cause, as in fairseq


def printed(capsys, mistake):
    """Return the lines that the hook prints after `mistake`."""
    capsys.readouterr()
    try:
        mistake()
    except Exception:
        report(*sys.exc_info())
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (reject, "k=3"),
        (reject_in_worker, "k=3"),
        (lambda: raise_while_handling(Exception("please ensure that the architectures match")), "k=3"),
        (lambda: MaskedLMTask.setup_task(MaskedLMConfig(data="gone")), "gone/dict.txt"),
        (lambda: OmegaConf.structured(LinformerRobertaConfig).__setattr__("attention", "linfomer"), "mean linformer?"),
        (lambda: str(OmegaConf.structured(MaskedLMConfig).data), "data"),
        (lambda: composed("pretrain", "tiny_512", "task.data=D", "modle.dropout=0"), "did you mean model.dropout?"),
        (lambda: composed("pretrain", "tiny_512", "task.data=D", "model=tiny_521"), "did you mean tiny_512?"),
        (lambda: composed("pretrain", "tiny_512", "task.data=D", "optimization.max_update=x"), "max_update=x"),
        pytest.param(torch.cuda.profiler.profile().__enter__, "common.profile", marks=WITHOUT_A_GPU),
    ],
)
def test_an_error_of_the_user_is_one_line(mistake, name, capsys):
    (line,) = printed(capsys, mistake)
    assert line.startswith("error: ") and name in line


@pytest.mark.parametrize("defect", [lambda: {}["key"], lambda: OmegaConf.structured(MaskedLMConfig).none])
def test_a_defect_keeps_its_traceback(defect, capsys):
    lines = printed(capsys, defect)
    assert lines[0] == "Traceback (most recent call last):" and "error: " not in lines[-1]


def test_an_error_of_the_user_that_led_to_a_defect_comes_last(capsys):
    lines = printed(capsys, lambda: raise_while_handling(TypeError("a defect")))
    assert "TypeError: a defect" in lines and lines[-1].startswith("error: k=3")


@pytest.mark.parametrize(
    ("program", "hook", "full_error", "installed"),
    [
        ("/v/lib/fairseq_cli/hydra_train.py", sys.__excepthook__, "", True),
        ("fairseq-train", print, "", False),
        ("fairseq-train", sys.__excepthook__, "1", False),
        ("/v/bin/pytest", sys.__excepthook__, "", False),
    ],
)
def test_the_hook_is_for_fairseqs_command_lines(monkeypatch, program, hook, full_error, installed):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(sys, "excepthook", hook)
    monkeypatch.setenv("HYDRA_FULL_ERROR", full_error)
    install_excepthook()
    assert (sys.excepthook is report) == installed
    assert (os.environ["HYDRA_FULL_ERROR"] == "1") == (installed or full_error == "1")
