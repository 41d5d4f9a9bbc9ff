"""From the options that a user gave to the complete, validated configuration of a model."""

from argparse import Namespace
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .architecture import per_layer_lists, projection_defaults
from .compat import FORMER_OPTIONS, translate_flags
from .config import OPTIONS, LinformerRobertaConfig, ResolvedConfig, architecture_defaults, check_magnitudes
from .errors import UserError, check


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
    check_magnitudes(options)
    options |= translate_flags(options)
    options |= projection_defaults(options)
    options |= _layers(options)
    config = ResolvedConfig(**options)
    config.validate()
    return config


def _typed(cfg: Any) -> dict[str, Any]:
    """Every option as plain data of its type; None for what is left open."""
    if isinstance(cfg, Namespace):  # with the flags of everything else
        cfg = {name: value for name, value in vars(cfg).items() if name in OPTIONS}
    elif isinstance(cfg, DictConfig) and FORMER_OPTIONS & cfg.keys():
        cfg = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name not in FORMER_OPTIONS])
    try:
        merged = OmegaConf.merge(OmegaConf.structured(LinformerRobertaConfig), cfg)
        options = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: an integer beyond all floats
        name = getattr(error, "full_key", None) or "model"
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from error
    return {name: options[name] for name in OPTIONS}


def _longest_sequence(max_positions: int | None, task_length: int | None) -> int:
    if not isinstance(task_length, int | None):
        raise UserError(f"the task's longest sequence is {task_length!r}, it must be a number of tokens")
    if max_positions is None and task_length is None:
        raise UserError("max_positions is missing: the task names no longest sequence, so the model must")
    if max_positions is not None and task_length is not None and max_positions < task_length:
        raise UserError(f"max_positions={max_positions} is below the task's longest sequence, {task_length}")
    return cast(int, task_length if max_positions is None else max_positions)


def _layers(options: dict[str, Any]) -> dict[str, Any]:
    """The number of layers, after pruning, and the lists of the options that may differ per layer."""
    layers, pruning, lists = options["encoder_layers"], options["encoder_layers_to_keep"], per_layer_lists(options)
    kept = _kept_layers(pruning, layers) if pruning else range(layers)
    allowed = "a list that has layer 0, because value_residual=true needs its values"
    check("encoder_layers_to_keep", pruning, not pruning or 0 in kept or not options["value_residual"], allowed)
    lists = {name: [whole[layer] for layer in kept] for name, whole in lists.items()}
    return {**lists, "encoder_layers": len(kept), "encoder_layers_to_keep": None}


def _kept_layers(value: str, layers: int) -> list[int]:
    """The layers that pruning keeps, from the first on, as fairseq's ``prune_state_dict`` numbers them."""
    kept = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(kept) == len(value.split(",")) and kept[-1] < layers, allowed)
    return kept
