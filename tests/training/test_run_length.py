"""How long a run is that counts epochs."""

import pytest
from omegaconf import OmegaConf

from fairseq_linformer.training.run_length import plan


def configuration(**more):
    cfg = {"optimization.max_update": 0, "optimization.max_epoch": 10, "optimization.update_freq": [1]}
    cfg |= {"dataset.batch_size": 32, "distributed_training.distributed_world_size": 1}
    cfg |= {"lr_scheduler.total_num_update": 0.0, "lr_scheduler.warmup_updates": 0}
    return OmegaConf.from_dotlist([f"{name}={value}" for name, value in {**cfg, **more}.items()])


def planned(rows, **more):
    cfg = configuration(**more)
    plan(cfg, rows)
    assert cfg.lr_scheduler.total_num_update == cfg.optimization.max_update
    return cfg.optimization.max_update, cfg.lr_scheduler.warmup_updates


def test_epochs_are_counted_in_updates():
    assert planned(1000) == (313, 19), "10 x 1,000 / 32, and 6 % of it"
    assert planned(3) == (1, 0)
    several = {"distributed_training.distributed_world_size": 2, "optimization.update_freq": [4]}
    assert planned(1000, **several) == (40, 2)
    assert planned(1000, **{"lr_scheduler.warmup_updates": 7}) == (313, 7), "what the user gives stays"


def test_updates_that_are_given_stay():
    for rows in (1000, None):
        given = {"optimization.max_update": 50, "lr_scheduler.total_num_update": 50}
        assert planned(rows, **given) == (50, 0)


def test_other_schedulers_need_no_length():
    cfg = configuration()
    del cfg.lr_scheduler.total_num_update
    plan(cfg, None)
    assert cfg == {**cfg, "optimization": {"max_update": 0, "max_epoch": 10, "update_freq": [1]}}


@pytest.mark.parametrize(
    ("rows", "more"), [(None, {}), (5, {"dataset.batch_size": "null"}), (5, {"optimization.max_epoch": 0})]
)
def test_a_length_that_cannot_be_counted_is_asked_for(rows, more):
    with pytest.raises(ValueError, match=r"^optimization\.max_update=0 is not allowed: it must be above 0"):
        plan(configuration(**more), rows)
