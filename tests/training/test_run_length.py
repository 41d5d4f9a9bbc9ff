"""How long a run is that counts epochs."""

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.training.run_length import plan


def configuration(**more):
    cfg = {"optimization.max_update": 0, "optimization.max_epoch": 10, "optimization.update_freq": [1]}
    cfg |= {"dataset.batch_size": 32, "dataset.max_tokens": "null", "dataset.required_batch_size_multiple": 1}
    cfg |= {"distributed_training.distributed_world_size": 1, "optimization.skip_remainder_batch": False}
    cfg |= {"lr_scheduler.total_num_update": 0.0, "lr_scheduler.warmup_updates": 0}
    return OmegaConf.from_dotlist([f"{name}={value}" for name, value in {**cfg, **more}.items()])


def planned(rows, **more):
    cfg = configuration(**more)
    plan(cfg, rows)
    assert cfg.lr_scheduler.total_num_update == cfg.optimization.max_update
    return cfg.optimization.max_update, cfg.lr_scheduler.warmup_updates


def test_epochs_are_counted_in_updates():
    assert planned(1000) == (320, 19), "10 times the 31 batches of 32 rows and one of 8, and 6 % of it"
    assert planned(40) == (20, 1) and planned(3) == (10, 1), "each epoch has its last batch, however short"
    several = {"distributed_training.distributed_world_size": 2, "optimization.update_freq": [4]}
    assert planned(1000, **several) == (40, 2)
    assert planned(1000, **{"lr_scheduler.warmup_updates": 7}) == (320, 7), "what the user gives stays"


def test_updates_that_are_given_stay():
    for rows in (1000, None):
        given = {"optimization.max_update": 50, "lr_scheduler.total_num_update": 50}
        assert planned(rows, **given) == (50, 0)


def test_a_schedule_that_is_given_stays():
    """As in fairseq's recipes for GLUE: --total-num-update and --max-epoch, on any data."""
    for rows in (1000, None):
        cfg = configuration(**{"lr_scheduler.total_num_update": 500, "lr_scheduler.warmup_updates": 30})
        given = cfg.copy()
        plan(cfg, rows)
        assert cfg == given


def test_other_schedulers_need_no_length():
    cfg = configuration()
    del cfg.lr_scheduler.total_num_update
    given = cfg.copy()
    plan(cfg, None)
    assert cfg == given


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (None, {}),
        (5, {"dataset.batch_size": "null"}),
        (5, {"dataset.max_tokens": 64}),  # batches of fewer rows than batch_size: max_epoch would be cut short
        (5, {"optimization.max_epoch": 0}),
    ],
)
def test_a_length_that_cannot_be_counted_is_asked_for(rows, more):
    with pytest.raises(ValueError, match=r"^optimization\.max_update=0 is not allowed: it must be above 0"):
        plan(configuration(**more), rows)


def test_batches_of_another_size_are_not_counted():
    with pytest.raises(ValueError, match=r"^dataset\.required_batch_size_multiple=8 is not allowed: it must be 1, or"):
        plan(configuration(**{"dataset.required_batch_size_multiple": 8}), 100)


def test_epochs_without_their_last_batch_are_not_counted():
    with pytest.raises(ValueError, match=r"^optimization\.skip_remainder_batch=True is not allowed: .* false, or"):
        plan(configuration(**{"optimization.skip_remainder_batch": True}), 100)


def test_epochs_of_unlike_updates_are_not_counted():
    with pytest.raises(ValueError, match=r"^optimization\.update_freq=\[1, 2\] is not allowed: it must be the same"):
        plan(configuration(**{"optimization.update_freq": [1, 2]}), 1000)
    assert planned(1000, **{"optimization.update_freq": [2, 2]}) == (160, 10)
