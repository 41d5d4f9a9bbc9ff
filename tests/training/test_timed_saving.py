"""Checkpoints by time, with a clock of the test's own."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.training.timed_saving import TimedSaving


def config(**changes):
    options = {
        "checkpoint": {
            "save_interval": 1,
            "save_interval_updates": 100,
            "keep_interval_updates": -1,
            "no_save": False,
            "no_last_checkpoints": False,
        },
        "dataset": {"validate_interval_updates": 0, "validate_after_updates": 50, "disable_validation": False},
        "optimization": {"max_update": 200, "max_epoch": 0},
    }
    return OmegaConf.merge(options, OmegaConf.from_dotlist([f"{name}={value}" for name, value in changes.items()]))


def iterator(ends=False, epoch=1):
    return SimpleNamespace(end_of_epoch=lambda: ends, epoch=epoch)


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


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(
    ("updates", "changes", "ends"),
    [
        (100, {}, False),  # fairseq saves, and validates, by itself
        (37, {}, True),  # so at the end of an epoch
        (200, {}, False),  # and of the run
        (37, {"checkpoint.no_save": True}, False),
    ],
)
def test_where_fairseq_saves_itself_or_never_nothing_is_changed(updates, changes, ends, stops):
    cfg = config(**changes)
    TimedSaving(cfg, 15).request(updates, iterator(ends), stops)
    assert cfg == config(**changes)


@pytest.mark.parametrize(
    ("updates", "changes", "ends"),
    [
        (40, {"dataset.validate_interval_updates": 20}, False),
        (40, {"checkpoint.save_interval_updates": 20}, False),  # fairseq saves after update 50 alone
        (37, {"checkpoint.save_interval": 5}, True),
    ],
)
def test_where_fairseq_validates_without_saving_a_timed_save_waits_and_a_run_that_stops_does_not(
    updates, changes, ends
):
    cfg = config(**changes)
    saving = TimedSaving(cfg, 15)
    saving.request(updates, iterator(ends))
    assert cfg == config(**changes)
    saving.request(updates, iterator(ends), stops=True)
    assert (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_after_updates) == (updates, 0)
    assert cfg.dataset.disable_validation, "a validation would take its time, and choose a best checkpoint"


def test_a_timed_save_costs_none_of_the_checkpoints_to_keep():
    """fairseq removes the oldest of them while the copy of a timed save is there."""
    cfg = config(**{"checkpoint.keep_interval_updates": 3})
    saving = TimedSaving(cfg, 15)
    for _ in range(2):  # the second as on a rank that saves nothing
        saving.request(37, iterator())
        saving.restore()
        assert cfg.checkpoint.keep_interval_updates == 4
    saving.saved(Path("checkpoint_last.pt"))
    assert cfg.checkpoint.keep_interval_updates == 3
    unlimited = config()
    TimedSaving(unlimited, 15).request(37, iterator())
    assert unlimited.checkpoint.keep_interval_updates == -1


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


@pytest.mark.parametrize("validates", [True, False])
def test_after_the_last_epoch_a_run_is_saved_and_validated_as_it_would_be(tmp_path, validates):
    """fairseq saves after every fifth epoch alone, and ends after the second; the best checkpoint comes first."""
    words = {"checkpoint.save_interval": 5, "optimization.max_epoch": 2, "dataset.disable_validation": not validates}
    cfg = config(**words)
    saving = TimedSaving(cfg, 15)
    assert [saving.is_last(iterator(*place)) for place in ((True, 1), (False, 2), (True, 2))] == [False, False, True]
    saving.request(37, iterator(True, 2))
    assert (cfg.checkpoint.save_interval_updates, cfg.dataset.disable_validation) == (37, not validates)
    saving.restore()
    (tmp_path / "checkpoint_best.pt").touch()
    saving.saved(tmp_path / "checkpoint_best.pt")
    assert (tmp_path / "checkpoint_best.pt").is_file() and cfg == config(**words)
