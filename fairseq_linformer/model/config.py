"""The complete configuration of a model, from the options that a user gave (``options.py`` declares them)."""

from argparse import Namespace
from dataclasses import fields
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ..attention.kernels import flex
from ..errors import UserError, check
from .architecture import Architecture
from .compat import ExampleFlags, layers_to_keep, translate_flags
from .options import OPTIONS, LinformerRobertaConfig, ResolvedConfig
from .resolution import (
    REMOVED_OPTION,
    architecture_defaults,
    check_probability,
    check_removed,
    complete_options,
    validate,
)

EXAMPLE_FLAGS = [opt.name for opt in fields(ExampleFlags) if opt.name != "_name"]
_TYPES = OmegaConf.structured(LinformerRobertaConfig)  # built once, because this is slower than resolving options


def resolve_config(cfg: Namespace | DictConfig, task_length: int | None) -> ResolvedConfig:
    """Return the complete, validated configuration of a model.

    Args:
        cfg: a Namespace of flags, or a config from Hydra or a checkpoint.
        task_length: the task's longest sequence, in tokens; the default of ``max_positions``.

    Raises:
        UserError: an option is unknown or missing, or its value is invalid.
    """
    options = _typed(cfg)
    architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    options |= {name: size for name, size in architecture_defaults(architecture).items() if options[name] is None}
    if options["max_positions"] is None:
        options["max_positions"] = task_length
    n, smallest = options["max_positions"], task_length or 1
    check("max_positions", n, n is not None and n >= smallest, f"at least {smallest}, the task's longest sequence")
    if any(options[flag] is not None for flag in EXAMPLE_FLAGS):
        options |= translate_flags(options)
    options = complete_options(options)
    if options["encoder_layers_to_keep"]:
        options |= layers_to_keep(options)
    config = ResolvedConfig(**options)
    validate(cast(Architecture, config))
    _validate_training(config)
    return config


def _validate_training(config: ResolvedConfig) -> None:
    """Check the options that only fairseq's model has."""
    check_probability("encoder_layerdrop", config.encoder_layerdrop)
    recomputes, compiles = config.checkpoint_activations, config.compile_layers
    allowed = "false together with checkpoint_activations=true: the recomputation would draw other dropout masks"
    check("compile_layers", compiles, not (compiles and recomputes), allowed)
    allowed = "true only together with checkpoint_activations=true"
    check("offload_activations", config.offload_activations, recomputes or not config.offload_activations, allowed)
    if config.flex_attention:
        flex.validate(config)


def _typed(cfg: Namespace | DictConfig) -> dict[str, Any]:
    """Return every option as plain data of its type; None for an option without a value."""
    check_removed(cfg if isinstance(cfg, DictConfig) else vars(cfg))
    if isinstance(cfg, Namespace):  # it also has flags of other components
        cfg = OmegaConf.create({name: value for name, value in vars(cfg).items() if name in OPTIONS})
    elif isinstance(cfg, DictConfig) and REMOVED_OPTION in cfg:
        cfg = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != REMOVED_OPTION])
    try:
        merged = OmegaConf.merge(_TYPES, cfg)
        options = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    except OmegaConfBaseException as error:
        name = getattr(error, "full_key", None) or "model"
        version = "; a checkpoint that has it is of another version of this plugin" * isinstance(error, ConfigKeyError)
        raise UserError(f"{name}: {str(error).splitlines()[0]}{version}") from error
    return {name: options[name] for name in OPTIONS}
