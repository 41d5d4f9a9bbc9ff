"""bfloat16: chosen where there are instructions for it, and kept by a run that resumes.

tests/attention/test_contract.py and tests/training/test_training.py compare results with those in float32.
"""

import pytest
import torch
from omegaconf import OmegaConf

from fairseq_linformer import precision
from fairseq_linformer.errors import UserError
from fairseq_linformer.training import options as training_options
from fairseq_linformer.training.options import choose_precision


def configuration(save_dir="", **common):
    options = {"cpu": True, "tpu": False, "fp16": False, "bf16": False, "amp": False, **common}
    return OmegaConf.create({"common": options, "checkpoint": {"save_dir": str(save_dir)}})


@pytest.mark.parametrize(
    ("typed", "instructions", "chosen"),
    [("auto", "AVX512_BF16", "yes"), ("auto", None, "no"), ("yes", None, "yes"), ("no", "AMX", "no")],
)
def test_auto_takes_bfloat16_where_there_are_instructions(typed, instructions, chosen, tmp_path, monkeypatch):
    monkeypatch.setattr(training_options, "bfloat16_instructions", lambda on_gpu: instructions)
    cfg = configuration(tmp_path)
    assert choose_precision(cfg, typed) == chosen and not cfg.common.bf16
    assert choose_precision(configuration(tmp_path, amp=True), typed) == "no"


@pytest.mark.parametrize("began", ["yes", "no"])
def test_a_run_resumes_in_the_precision_that_it_began_with(began, tmp_path, monkeypatch):
    monkeypatch.setattr(training_options, "bfloat16_instructions", lambda on_gpu: None if began == "yes" else "AMX")
    (tmp_path / "config.yaml").write_text(f"task: {{bfloat16: '{began}'}}\n")
    assert choose_precision(configuration(tmp_path), "auto") == began


def test_a_gpu_uses_fairseqs_bfloat16(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(training_options, "describe_precision", lambda *arguments: "")
    cfg = configuration(tmp_path, cpu=False)
    assert choose_precision(cfg, "yes") == "yes" and cfg.common.bf16


def test_another_value_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"task\.bfloat16"):
        choose_precision(configuration(tmp_path), "true")


def test_the_description_names_the_instructions(monkeypatch):
    monkeypatch.setattr(precision, "INSTRUCTIONS", {"AMX": lambda: False, "AVX512_BF16": lambda: True})
    assert "AVX512_BF16" in precision.describe_precision(True, on_gpu=False)
