"""Which of Hydra's overrides a user may add to runs of a command, which says the rest itself."""

from collections.abc import Mapping

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException

from ..errors import UserError, one_line

# What the runs of any command set themselves, and what says it.
SET_BY = {
    "task.data": "--data",
    "checkpoint.save_dir": "--out",
    "common.seed": "--seeds",
    "task.seed": "--seeds",
    "common.log_format": "the command, which reads the log",
    "optimization.lr": "--learning-rates",
    "optimizer.lr": "--learning-rates",
    "lr_scheduler.lr": "--learning-rates",
}
# What those of fine-tuning set beside that, config groups among it.
_FINE_TUNING = {
    "checkpoint.finetune_from_model": "MODEL",
    "checkpoint.restore_file": "MODEL",
    "task.train_rows": "--train-rows",
    "dataset.batch_size": "--batch-sizes",
    "dataset.max_tokens": "--batch-sizes, in rows; optimization.update_freq=[N] sums N smaller batches",
    "dataset.required_batch_size_multiple": "the command, which counts the updates of an epoch",
    "optimization.skip_remainder_batch": "the command, which counts the updates of an epoch",
    "optimization.max_update": "--epochs",
    "optimization.max_epoch": "--epochs",
    "lr_scheduler.warmup_updates": "--epochs",
    "checkpoint.best_checkpoint_metric": "--metric",
    "checkpoint.maximize_best_checkpoint_metric": "--metric: all are better the higher they are",
    "checkpoint.no_save": "the command, which scores the best checkpoint",
    "dataset.disable_validation": "the command, which scores the best checkpoint",
    "dataset.validate_after_updates": "the command, which scores the best checkpoint",
    "recipe": "--tasks",
    "task": "--tasks",
    "criterion": "--tasks",
    "model": "MODEL",
    "hydra": "the command; --launcher names a launcher, and its options are given as hydra.launcher.NAME=VALUE",
    **SET_BY,
}
_OPEN = ("task", "criterion", "model")  # groups whose other options are the user's


def check_override(word: str, set_by: Mapping[str, str] = _FINE_TUNING) -> None:
    """Refuses what is no override, what stands for several values, and what a run sets itself, however it is spelt.

    Args:
        word: the override.
        set_by: what runs set themselves, and what says it.

    Raises:
        UserError: names the override, and what sets it.
    """
    shown = one_line(word)
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{shown} is no override of Hydra's, NAME=VALUE ({reason})") from error
    if override.is_sweep_override():
        raise UserError(f"{shown} has several values, but a run has one of each option: repeat the command with each")
    if override.package is not None:
        raise UserError(f"{shown}: @{override.package} is not allowed, a config group keeps its place here")
    key = override.key_or_group.replace("/", ".")
    # lr_scheduler=fixed: what a run sets of a group, it sets of each.
    chooses = override.type == OverrideType.CHANGE and isinstance(override.value(), str)
    for own, option in set_by.items():
        above = own.startswith(f"{key}.") and not chooses
        below = key.startswith(f"{own}.") and (own not in _OPEN or "/" in override.key_or_group)
        if key == own or above or below:
            raise UserError(f"{shown}: {own} is set by {option}")
