"""The learning-rate schedule ``trapezoidal``, on its own; tests/test_configs.py has it composed."""

import pytest

from fairseq_linformer.training.trapezoidal import TrapezoidalConfig, TrapezoidalSchedule


class Optimizer:
    """The part of fairseq's that a schedule uses."""

    def set_lr(self, lr):
        self.lr = lr

    def get_lr(self):
        return self.lr


@pytest.fixture(autouse=True)
def any_optimizer(monkeypatch):
    monkeypatch.setattr("fairseq.optim.lr_scheduler.fairseq_lr_scheduler.FairseqOptimizer", Optimizer)


def schedule(**options):
    values = {"warmup_updates": 10, "total_num_update": 100, "lr": [2.0], "decay_share": 0.2, **options}
    return TrapezoidalSchedule(TrapezoidalConfig(**values), Optimizer())


@pytest.mark.parametrize(
    ("update", "lr"),
    [(0, 0.0), (5, 1.0), (10, 2.0), (11, 2.0), (50, 2.0), (80, 2.0), (81, 1.9), (90, 1.0), (100, 0.0), (120, 0.0)],
)
def test_the_learning_rate_after_each_update(update, lr):
    assert schedule().step_update(update) == pytest.approx(lr)


def test_power_and_last_learning_rate():
    assert schedule(power=2.0, end_learning_rate=1.0).step_update(90) == pytest.approx(1.25)


def test_without_warm_up_it_begins_at_once():
    own = schedule(warmup_updates=0)
    assert own.step_begin_epoch(1) == own.step_update(1) == 2.0


def test_an_epoch_that_begins_late_does_not_raise_it():
    own = schedule()
    own.step_begin_epoch(3)
    assert own.step_update(90) == pytest.approx(1.0)


@pytest.mark.parametrize("share", [0.0, -0.1, 0.95, 1.5])
def test_a_decay_that_does_not_fit_is_refused(share):
    said = (
        rf"decay_share={share} is not allowed: it must be above 0, and at most what warmup_updates=10 leaves of 100 up"
    )
    with pytest.raises(ValueError, match=said):
        schedule(decay_share=share)
