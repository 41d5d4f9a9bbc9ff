"""What is left out of fairseq's log, and what is not."""

import logging
import warnings
from argparse import Namespace

import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import nn

from fairseq_linformer.console import hide_noise


@pytest.mark.parametrize(
    ("logger", "message", "shown"),
    [
        ("fairseq_cli.train", nn.Linear(2, 2), False),
        ("fairseq_cli.train", "done training in 1.0 seconds", True),
        ("fairseq.trainer", "detected shared parameter: a <- b", False),
        ("fairseq.trainer", "Loaded checkpoint a.pt (epoch 1 @ 3 updates)", True),
        ("fairseq.tasks.fairseq_task", "can_reuse_epoch_itr = True", False),
        # One line of 8,000 characters; a run's folder has it as config.yaml.
        ("fairseq_cli.train", OmegaConf.create({"a": 1}), False),
        ("fairseq_cli.validate", OmegaConf.create({"a": 1}), False),
    ],
)
def test_what_says_nothing_is_left_out_unless_it_is_a_warning(caplog, logger, message, shown):
    caplog.set_level(logging.INFO)
    logging.getLogger(logger).info(message)
    assert bool(caplog.records) == shown
    if isinstance(message, str):
        logging.getLogger(logger).warning(message)
        assert caplog.records[-1].levelno == logging.WARNING


def test_a_log_file_has_it_all(caplog, tmp_path, monkeypatch):
    file = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers, file])
    caplog.set_level(logging.INFO)
    for line in ("detected shared parameter: a <- b", "Loaded checkpoint a.pt"):
        logging.getLogger("fairseq.trainer").info(line)
    assert (tmp_path / "log").read_text().splitlines() == [
        "detected shared parameter: a <- b",
        "Loaded checkpoint a.pt",
    ]
    assert len(caplog.records) == 1


@pytest.mark.filterwarnings("default")
def test_hydras_warnings_about_fairseq_are_left_out():
    """Twenty lines at each start of fairseq-train and fairseq-validate."""
    with warnings.catch_warnings(record=True) as shown:
        hide_noise()
        convert_namespace_to_omegaconf(Namespace(task=None, arch=None))
        warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["another"]
