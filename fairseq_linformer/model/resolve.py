"""From the options that a user gave to the complete, validated configuration of a model."""

from argparse import Namespace
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ..errors import UserError, check
from .architecture import Architecture, architecture_defaults, layers_to_keep, projection_defaults, validate
from .compat import translate_flags, without_gone
from .config import OPTIONS, LinformerRobertaConfig, ResolvedConfig
from .roberta_options import validate_training

_TYPES = OmegaConf.structured(LinformerRobertaConfig)  # made once, as that takes longer than all that follows


def resolve_config(cfg: Any, task_length: int | None) -> ResolvedConfig:
    """The complete, validated configuration of a model.

    Args:
        cfg: a Namespace of flags, or a config from Hydra or a checkpoint.
        task_length: the task's longest sequence, in tokens; the default of ``max_positions``.

    Raises:
        UserError: an option is unknown, is missing or its value cannot work.
    """
    options = _typed(cfg)
    architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    options |= {name: size for name, size in architecture_defaults(architecture).items() if options[name] is None}
    options["max_positions"] = _longest_sequence(options["max_positions"], task_length)
    for name, own in OPTIONS.items():  # the allocator would refuse what is far too large later, or never
        value, largest = options[name], own.metadata["largest"]
        check(name, value, not isinstance(value, int) or value <= largest, f"at most {largest}")
    options |= translate_flags(options)
    options |= projection_defaults(options)
    options |= layers_to_keep(options)
    config = ResolvedConfig(**options)
    validate(cast(Architecture, config))
    validate_training(config)
    return config


def _typed(cfg: Any) -> dict[str, Any]:
    """Every option as plain data of its type; None for what is left open."""
    if isinstance(cfg, Namespace):  # with the flags of everything else
        cfg = {name: value for name, value in vars(cfg).items() if name in OPTIONS}
    try:
        given = without_gone(cfg) if isinstance(cfg, DictConfig) else cfg
        merged = OmegaConf.merge(_TYPES, given)
        options = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: an integer beyond all floats
        name = getattr(error, "full_key", None) or "model"
        version = "; a checkpoint that has it is of another version of this plugin" * isinstance(error, ConfigKeyError)
        raise UserError(f"{name}: {str(error).splitlines()[0]}{version}") from error
    return {name: options[name] for name in OPTIONS}


def _longest_sequence(max_positions: int | None, task_length: int | None) -> int:
    if not isinstance(task_length, int | None):
        raise UserError(
            f"the task's longest sequence is {task_length!r}, it must be a number of tokens, as with the tasks "
            "dynamic_masked_lm, text_prediction, masked_lm and sentence_prediction"
        )
    if max_positions is None and task_length is None:
        raise UserError("max_positions is missing: the task names no longest sequence, so the model must")
    if max_positions is not None and task_length is not None and max_positions < task_length:
        raise UserError(f"max_positions={max_positions} is below the task's longest sequence, {task_length}")
    return cast(int, task_length if max_positions is None else max_positions)
