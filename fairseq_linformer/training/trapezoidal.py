"""The registered learning-rate schedule ``trapezoidal``: warm-up, a constant rate, and a linear decay at the end."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import dataclass, field
from typing import Any

from fairseq.optim.lr_scheduler import register_lr_scheduler
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import (
    PolynomialDecayLRSchedule,
    PolynomialDecayLRScheduleConfig,
)

from ..errors import check


@dataclass
class TrapezoidalConfig(PolynomialDecayLRScheduleConfig):
    """Options of ``trapezoidal``: those of ``polynomial_decay``, and when the decay begins."""

    decay_share: float = field(
        default=0.2, metadata={"help": "share of the updates, the last ones, in which lr decays"}
    )


@register_lr_scheduler("trapezoidal", dataclass=TrapezoidalConfig)
class TrapezoidalSchedule(PolynomialDecayLRSchedule):
    """``polynomial_decay`` whose decay begins late (Hägele et al. 2024, arXiv 2405.18392).

    Warm-up over ``warmup_updates``, then ``lr``, and over the last ``decay_share`` of ``total_num_update`` down to
    ``end_learning_rate``, linearly unless ``power`` says otherwise.

    Raises:
        UserError: the decay would begin before the warm-up ends, or has no length.
    """

    def __init__(self, cfg: TrapezoidalConfig, optimizer: Any):
        warmup, total, share = cfg.warmup_updates, cfg.total_num_update, cfg.decay_share
        allowed = f"above 0, and at most what warmup_updates={warmup} leaves of {total:g} updates"
        check("decay_share", share, share > 0 and warmup + share * total <= total, allowed)
        super().__init__(cfg, optimizer)
        self.decay_from = total - share * total

    def step_update(self, num_updates: int) -> float:
        """Sets the learning rate after an update, and returns it."""
        if num_updates <= self.cfg.warmup_updates:
            return super().step_update(num_updates)
        remaining = (self.total_num_update - num_updates) / (self.total_num_update - self.decay_from)
        falling = min(1.0, max(0.0, remaining)) ** self.power
        self.optimizer.set_lr(self.end_learning_rate + (self.lr - self.end_learning_rate) * falling)
        return self.optimizer.get_lr()
