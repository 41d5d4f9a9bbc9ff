"""What cannot be trained on this machine is refused before training starts."""

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from fairseq_linformer.launch_checks import check_precision, check_restore_file


def config(**groups):
    return OmegaConf.merge(OmegaConf.structured(FairseqConfig), groups)


def test_half_precision_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^common.fp16=True is not allowed: .*common.fp16=false"):
        check_precision(config(common={"fp16": True}))
    # What fairseq does without CUDA is not refused.
    for common in ({}, {"bf16": True}, {"fp16": True, "memory_efficient_fp16": True}):
        check_precision(config(common=common))


def test_half_precision_with_a_gpu_is_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_precision(config(common={"fp16": True}))


def test_a_checkpoint_to_go_on_from_that_is_missing_is_refused(tmp_path):
    there = tmp_path / "there.pt"
    there.touch()
    for file in ("checkpoint_last.pt", there):  # the first is fairseq's default, which a new run has none of
        check_restore_file(config(checkpoint={"restore_file": str(file)}))
    with pytest.raises(FileNotFoundError, match=r"restore_file=gone\.pt: there is no such checkpoint"):
        check_restore_file(config(checkpoint={"restore_file": "gone.pt"}))
