"""From the options that a user gave to the complete, validated configuration of a model."""

from argparse import Namespace
from enum import Enum
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .attention import ATTENTIONS, by_layer
from .attention.projection import PROJECTIONS
from .compat import translate_flags
from .config import (
    LinformerRobertaConfig,
    ResolvedConfig,
    apply_architecture,
    check_magnitudes,
)
from .errors import UserError, check

# Options that may differ from layer to layer, and what numbers between FIRST and LAST are rounded to a multiple of.
BY_LAYER: dict[str, int] = {
    "projected_length": 1,
    **{
        name: own.metadata["by_layer"]
        for kind in ATTENTIONS.values()
        for name, own in kind.option_fields()
        if own.metadata["by_layer"]
    },
}


def resolve_config(cfg: Any, task_length: int | None) -> ResolvedConfig:
    """The complete, validated configuration of a model.

    Args:
        cfg: a Namespace of flags, or a config from Hydra or a checkpoint.
        task_length: the task's longest sequence, in tokens; the default of ``max_positions``.

    Raises:
        ValueError: an option is unknown, is missing or its value cannot work.
    """
    architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    if isinstance(cfg, Namespace):
        cfg = LinformerRobertaConfig.from_namespace(cfg)
    try:
        typed = OmegaConf.merge(OmegaConf.structured(LinformerRobertaConfig), cfg)
        options = cast(dict[str, Any], OmegaConf.to_container(typed, resolve=True))
    except (OmegaConfBaseException, OverflowError) as error:  # the latter: an integer beyond all floats
        name = getattr(error, "full_key", None) or "model"
        raise UserError(f"{name}: {str(error).splitlines()[0]}") from error
    given = {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}
    given.pop("_name", None)
    args = Namespace(**given)
    apply_architecture(architecture, args)
    args.max_positions = _longest_sequence(args.max_positions, task_length)
    check_magnitudes(vars(args))
    complete = {**vars(args), **translate_flags(vars(args))}
    config = ResolvedConfig(**_spread_over_layers(_fill_in_projection(complete)))
    if config.encoder_layers_to_keep:
        kept = _kept_layers(config.encoder_layers_to_keep, config.encoder_layers)
        config.encoder_layers = len(kept)
        for name in BY_LAYER:
            whole = getattr(config, name)
            setattr(config, name, whole and [whole[layer] for layer in kept])
    config.validate()
    return config


def _longest_sequence(max_positions: int | None, task_length: int | None) -> int:
    if not isinstance(task_length, int | None):
        raise UserError(f"the task's longest sequence is {task_length!r}, it must be a number of tokens")
    if max_positions is None and task_length is None:
        raise UserError("max_positions is missing: the task names no longest sequence, so the model must")
    if max_positions is not None and task_length is not None and max_positions < task_length:
        raise UserError(f"max_positions={max_positions} is below the task's longest sequence, {task_length}")
    return cast(int, task_length if max_positions is None else max_positions)


def _fill_in_projection(options: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the projection complete, as fairseq's examples/linformer has them where left open."""
    kind = PROJECTIONS[options["projection"]]
    k = options["projected_length"]
    return {
        **options,
        "projected_length": max(1, options["max_positions"] // 4) if k is None else k,
        "sharing": options["sharing"] or kind.SHARINGS[0],
        "projection_init": options["projection_init"] or next(iter(kind.INITIALISATIONS), None),
    }


def _spread_over_layers(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a list, one value a layer, for each that may differ from layer to layer and is not left open."""
    given = {name: options[name] for name in BY_LAYER if options[name] is not None}
    layers = options["encoder_layers"]
    return {**options, **{name: by_layer(name, value, layers, BY_LAYER[name]) for name, value in given.items()}}


def _kept_layers(value: str, layers: int) -> list[int]:
    """The layers that pruning keeps, from the first on, as fairseq's ``prune_state_dict`` numbers them."""
    kept = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(kept) == len(value.split(",")) and kept[-1] < layers, allowed)
    return kept
