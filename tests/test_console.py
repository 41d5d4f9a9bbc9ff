"""Lines of fairseq's log that are hidden on the console."""

import logging
import warnings
from argparse import Namespace

import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import nn

from fairseq_linformer.console import hide_noise


@pytest.mark.parametrize(
    ("logger", "message", "is_printed"),
    [
        ("fairseq_cli.train", nn.Linear(2, 2), False),
        ("fairseq_cli.train", "done training in 1.0 seconds", True),
        ("fairseq.trainer", "detected shared parameter: a <- b", False),
        ("fairseq_cli.validate", OmegaConf.create({"a": 1}), False),  # 8,000 characters, which config.yaml has
    ],
)
def test_unimportant_lines_are_hidden_but_warnings_and_log_files_are_complete(
    caplog, tmp_path, monkeypatch, logger, message, is_printed
):
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers, logging.FileHandler(tmp_path / "log")])
    caplog.set_level(logging.INFO)
    logging.getLogger(logger).info(message)
    assert bool(caplog.records) == is_printed
    if isinstance(message, str):
        assert (tmp_path / "log").read_text() == f"{message}\n"
        logging.getLogger(logger).warning(message)
        assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.filterwarnings("default")
def test_hydras_warnings_about_fairseq_are_hidden():
    with warnings.catch_warnings(record=True) as printed:
        hide_noise()
        convert_namespace_to_omegaconf(Namespace(task=None, arch=None))
        warnings.warn("another", stacklevel=1)
    assert [str(warning.message) for warning in printed] == ["another"]
