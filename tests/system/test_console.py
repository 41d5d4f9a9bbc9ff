"""What is left out of fairseq's log, and what is not."""

import logging

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from torch import nn

import fairseq_linformer  # noqa: F401 (leaves it out)


@pytest.mark.parametrize(
    ("logger", "message", "shown"),
    [
        ("fairseq_cli.train", nn.Linear(2, 2), False),
        ("fairseq_cli.train", "done training in 1.0 seconds", True),
        ("fairseq.trainer", "detected shared parameter: a <- b", False),
        ("fairseq.trainer", "Loaded checkpoint a.pt (epoch 1 @ 3 updates)", True),
        ("fairseq.tasks.fairseq_task", "can_reuse_epoch_itr = True", False),
    ],
)
def test_what_says_nothing_is_left_out(caplog, logger, message, shown):
    caplog.set_level(logging.INFO)
    logging.getLogger(logger).info(message)
    assert bool(caplog.records) == shown


def test_no_warning_is_left_out(caplog):
    logging.getLogger("fairseq.trainer").warning("detected shared parameter that must not be")
    assert caplog.records


@pytest.mark.parametrize("hydra", [True, False])
def test_options_are_left_out_where_hydra_writes_them_to_a_file(caplog, monkeypatch, hydra):
    monkeypatch.setattr(HydraConfig, "initialized", lambda: hydra)
    caplog.set_level(logging.INFO)
    logging.getLogger("fairseq_cli.train").info(OmegaConf.create({"a": 1}))
    assert bool(caplog.records) != hydra
