"""From the options that a user gave to the complete, validated configuration of a model."""

from argparse import Namespace
from enum import Enum
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .attention.projection import PROJECTIONS
from .config import LinformerRobertaConfig, ResolvedConfig, apply_architecture, check
from .example import translate_flags


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
        options = cast(dict[str, Any], OmegaConf.to_container(typed))
    except OmegaConfBaseException as error:
        name = getattr(error, "full_key", None) or "model"
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
    given = {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}
    given.pop("_name", None)
    args = Namespace(**given)
    apply_architecture(architecture, args)
    args.max_positions = _longest_sequence(args.max_positions, task_length)
    complete = {**vars(args), **translate_flags(vars(args))}
    config = ResolvedConfig(**_fill_in_projection(complete))
    if config.encoder_layers_to_keep:
        kept = _kept_layers(config.encoder_layers_to_keep, config.encoder_layers)
        config.encoder_layers = len(kept)
        config.projected_length = [config.projected_length[layer] for layer in kept]
    config.validate()
    return config


def _longest_sequence(max_positions: int | None, task_length: int | None) -> int:
    if max_positions is None and task_length is None:
        raise ValueError("max_positions is missing: the task names no longest sequence, so the model must")
    if max_positions is not None and task_length is not None and max_positions < task_length:
        raise ValueError(f"max_positions={max_positions} is below the task's longest sequence, {task_length}")
    return cast(int, task_length if max_positions is None else max_positions)


def _fill_in_projection(options: dict[str, Any]) -> dict[str, Any]:
    """The options with those of the projection complete, as fairseq's examples/linformer has them where left open."""
    kind = PROJECTIONS[options["projection"]]
    k = options["projected_length"]
    if k is None:
        k = max(1, options["max_positions"] // 4)
    return {
        **options,
        "projected_length": _lengths_by_layer(k, options["encoder_layers"]),
        "sharing": options["sharing"] or kind.SHARINGS[0],
        "projection_init": options["projection_init"] or next(iter(kind.INITIALISATIONS), None),
    }


def _lengths_by_layer(value: Any, layers: int) -> list[int]:
    """k of each layer, from a number, a list of them (in text: 256,128) or FIRST..LAST, evenly spaced between."""
    text = str(value).strip("[]")
    try:
        if ".." in text:
            first, last = (int(end) for end in text.split(".."))
            return [round(first + (last - first) * layer / max(1, layers - 1)) for layer in range(layers)]
        lengths = [int(length) for length in text.split(",")]
    except ValueError:
        raise ValueError(
            f"projected_length={value} is not allowed: it must be a number, one a layer (256,128,…) or FIRST..LAST"
        ) from None
    check("projected_length", value, len(lengths) in (1, layers), f"one number or {layers}, one a layer")
    return lengths * layers if len(lengths) == 1 else lengths


def _kept_layers(value: str, layers: int) -> list[int]:
    """The layers that pruning keeps, from the first on, as fairseq's ``prune_state_dict`` numbers them."""
    kept = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(kept) == len(value.split(",")) and kept[-1] < layers, allowed)
    return kept
