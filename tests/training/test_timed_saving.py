"""Checkpoints by time, with a clock of the test's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.training.timed_saving import TimedSaving


def config(**changes):
    options = {
        "checkpoint": {"save_interval_updates": 100, "no_save": False, "no_last_checkpoints": False},
        "dataset": {"validate_interval_updates": 0, "validate_after_updates": 50, "disable_validation": False},
        "optimization": {"max_update": 200},
    }
    return OmegaConf.merge(options, OmegaConf.from_dotlist([f"{name}={value}" for name, value in changes.items()]))


def iterator(ends=False):
    return SimpleNamespace(end_of_epoch=lambda: ends)


def test_a_save_is_due_when_the_last_one_is_too_long_ago():
    now = [0.0]
    saving = TimedSaving(config(), 15, clock=lambda: now[0])
    now[0] = 899.0
    assert not saving.is_due()
    now[0] = 900.0
    assert saving.is_due()
    saving.saved(Path("checkpoint_last.pt"))
    assert not saving.is_due()
    assert not TimedSaving(config(), 0, clock=lambda: now[0]).is_due()


def test_one_update_is_saved_without_validation_and_the_settings_come_back():
    cfg = config()
    saving = TimedSaving(cfg, 15)
    saving.request(37, iterator())
    assert (cfg.checkpoint.save_interval_updates, cfg.dataset.disable_validation) == (37, True)
    assert cfg.dataset.validate_after_updates == 0  # fairseq would not save before it, either
    saving.restore()
    assert cfg == config()


@pytest.mark.parametrize(
    ("updates", "changes", "ends"),
    [
        (100, {}, False),  # fairseq saves, and validates, by itself
        (40, {"dataset.validate_interval_updates": 20}, False),
        (37, {}, True),  # the end of an epoch is validated
        (200, {}, False),  # and so is the end of the run
        (37, {"checkpoint.no_save": True}, False),
    ],
)
def test_where_fairseq_saves_or_validates_itself_nothing_is_changed(updates, changes, ends):
    cfg = config(**changes)
    TimedSaving(cfg, 15).request(updates, iterator(ends))
    assert cfg == config(**changes)


def test_a_timed_save_leaves_the_last_checkpoint_alone(tmp_path):
    """fairseq writes two copies; those named after updates would fill the disk where it is told to keep them all."""
    copy = tmp_path / "checkpoint_1_37.pt"
    for changes, stays in (({}, False), ({"checkpoint.no_last_checkpoints": True}, True)):
        copy.write_bytes(b"")
        saving = TimedSaving(config(**changes), 15)
        saving.request(37, iterator())
        saving.restore()
        saving.saved(copy)
        assert copy.exists() == stays
    copy.write_bytes(b"")
    TimedSaving(config(), 15).saved(copy)
    assert copy.exists()  # asked for by the user
