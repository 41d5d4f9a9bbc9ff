"""How many updates a run has that counts epochs, and over how many of them its learning rate warms up."""

import math

from omegaconf import DictConfig

from ..errors import check

WARM_UP = 0.06  # of the updates, as RoBERTa's recipes for GLUE have it (Liu et al. 2019, table 10)


def updates_of(rows: float, batch_size: int) -> int:
    """The updates that see so many rows, at least one."""
    return max(1, math.ceil(rows / batch_size))


def updates_of_epochs(epochs: float, rows: int, batch_size: int) -> int:
    """The updates of so many epochs, at least one; each epoch ends with a batch of what is left."""
    return max(1, math.ceil(round(epochs * updates_of(rows, batch_size), 6)))  # 0.1 x 30 is a little above 3


def warm_up_of(updates: int) -> int:
    """The updates over which the learning rate of a run that counts epochs rises."""
    return round(WARM_UP * updates)


def plan(cfg: DictConfig, rows: int | None) -> None:
    """Gives a training that counts epochs alone its updates and warm-up, in place: schedules are by updates.

    Args:
        cfg: fairseq's whole configuration.
        rows: of the training set; None where they are not known.

    Raises:
        UserError: there is nothing to count them by.
    """
    if cfg.optimization.max_update > 0 or "total_num_update" not in cfg.lr_scheduler:
        return
    if cfg.lr_scheduler.total_num_update > 0:  # as fairseq's recipes for GLUE have it, beside max_epoch
        return
    counted = rows is not None and cfg.dataset.batch_size is not None and cfg.optimization.max_epoch > 0
    by_rows = cfg.dataset.max_tokens is None  # which makes batches of fewer rows
    allowed = (
        "above 0 (or lr_scheduler.total_num_update be given) with max_tokens, "
        "or without a prepared task, batch_size and max_epoch"
    )
    check("optimization.max_update", 0, counted and by_rows, allowed)
    multiple = cfg.dataset.required_batch_size_multiple  # by another one fairseq makes smaller batches, and more
    allowed = "1, or optimization.max_update be given"
    check("dataset.required_batch_size_multiple", multiple, multiple == 1, allowed)
    allowed = "false, or optimization.max_update be given"
    skips = cfg.optimization.skip_remainder_batch
    check("optimization.skip_remainder_batch", skips, not skips, allowed)
    summed = cfg.optimization.update_freq
    check("optimization.update_freq", summed, len(set(summed)) == 1, "the same in all epochs, or max_update be given")
    batch_size = cfg.dataset.batch_size * cfg.distributed_training.distributed_world_size * summed[0]
    updates = updates_of_epochs(cfg.optimization.max_epoch, rows or 0, batch_size)
    cfg.optimization.max_update = updates
    cfg.lr_scheduler.total_num_update = updates
    cfg.lr_scheduler.warmup_updates = cfg.lr_scheduler.warmup_updates or warm_up_of(updates)
