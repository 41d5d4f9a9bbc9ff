"""Saves by time, and errors of training that are divergence."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.dataclass.configs import CheckpointConfig, DatasetConfig
from omegaconf import OmegaConf

from fairseq_linformer.training.updates import TimedSaving, is_not_finite


def saving_config(**changes):
    options = {
        "checkpoint": {**vars(CheckpointConfig()), "save_interval_updates": 100, "model_parallel_size": 1},
        "dataset": {**vars(DatasetConfig()), "batch_size": 1, "validate_after_updates": 50},
        "optimization": {"max_update": 200, "max_epoch": 0},
        "distributed_training": {"distributed_world_size": 1},
    }
    return OmegaConf.merge(options, OmegaConf.from_dotlist([f"{name}={value}" for name, value in changes.items()]))


def iterator(ends=False, epoch=1):
    return SimpleNamespace(end_of_epoch=lambda: ends, epoch=epoch)


def test_a_save_is_due_after_its_interval(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fairseq_linformer.training.updates.time.monotonic", lambda: now[0])
    saving, never = TimedSaving(saving_config(), 15), TimedSaving(saving_config(), 0)
    now[0] = 899.0
    assert not saving.is_due()
    now[0] = 900.0
    assert saving.is_due() and not never.is_due()
    saving.saved(Path("checkpoint_last.pt"))
    assert not saving.is_due()


@pytest.mark.parametrize(
    ("updates", "changes", "ends", "saves", "saves_before_stop"),
    [
        (37, {}, False, True, True),
        (100, {}, False, False, False),  # fairseq saves at its interval, at the end of an epoch and of the run
        (37, {}, True, False, False),
        (200, {}, False, False, False),
        (37, {"checkpoint.no_save": True}, False, False, False),
        # fairseq validates without saving: a timed save waits, unless the run stops
        (40, {"dataset.validate_interval_updates": 20}, False, False, True),
        (40, {"checkpoint.save_interval_updates": 20}, False, False, True),  # it saves from update 50 on only
        (37, {"checkpoint.save_interval": 5}, True, False, True),
    ],
)
def test_a_save_is_requested_without_validation(updates, changes, ends, saves, saves_before_stop):
    for stops, is_requested in ((False, saves), (True, saves_before_stop)):
        cfg = saving_config(**changes)
        saving = TimedSaving(cfg, 15)
        saving.request(updates, iterator(ends), stops)
        if is_requested:
            assert (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_after_updates) == (updates, 0)
            assert cfg.dataset.disable_validation, "a validation would choose a best checkpoint"
            saving.restore()
        assert cfg == saving_config(**changes)


def test_a_timed_save_costs_none_of_the_checkpoints_to_keep(tmp_path):
    """fairseq writes two copies, and removes the oldest of all while both exist."""
    copy = tmp_path / "checkpoint_1_37.pt"
    for changes, stays in (({}, False), ({"checkpoint.no_last_checkpoints": True}, True)):
        copy.write_bytes(b"")
        cfg = saving_config(**changes, **{"checkpoint.keep_interval_updates": 3})
        saving = TimedSaving(cfg, 15)
        saving.request(37, iterator())
        saving.restore()
        assert cfg.checkpoint.keep_interval_updates == (3 if stays else 4)
        saving.saved(copy)
        assert copy.exists() == stays and cfg.checkpoint.keep_interval_updates == 3
    copy.write_bytes(b"")
    TimedSaving(saving_config(), 15).saved(copy)
    assert copy.exists()  # asked for by the user


@pytest.mark.parametrize("validates", [True, False])
def test_after_the_last_epoch_a_run_is_saved_and_validated_as_it_would_be(tmp_path, validates):
    """fairseq saves after every fifth epoch only, and ends after the second; it writes the best checkpoint first."""
    words = {"checkpoint.save_interval": 5, "optimization.max_epoch": 2, "dataset.disable_validation": not validates}
    cfg = saving_config(**words)
    saving = TimedSaving(cfg, 15)
    assert [saving.is_last(iterator(*end)) for end in ((True, 1), (False, 2), (True, 2))] == [False, False, True]
    saving.request(37, iterator(True, 2))
    assert (cfg.checkpoint.save_interval_updates, cfg.dataset.disable_validation) == (37, not validates)
    saving.restore()
    (tmp_path / "checkpoint_best.pt").touch()
    saving.saved(tmp_path / "checkpoint_best.pt")
    assert (tmp_path / "checkpoint_best.pt").is_file() and cfg == saving_config(**words)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("nan"), False),
        (FloatingPointError("gradients are Nan/Inf"), True),
        (FloatingPointError("gradients are inconsistent between workers.\nrank   0 = 1.5\nrank   1 = 1.7\n"), False),
        (FloatingPointError("gradients are inconsistent between workers.\nrank   0 = 1.5\nrank   1 = nan\n"), True),
    ],
)
def test_gradients_that_differ_between_ranks_are_no_divergence(error, expected):
    """fairseq raises the same error for both, with the norm of each rank."""
    assert is_not_finite(error) == expected
