"""Sizes of architectures, and defaults of options that a user does not set. This module does not import fairseq."""

from collections.abc import Mapping
from dataclasses import Field, fields
from types import SimpleNamespace
from typing import Any, Protocol

from ..attention.base import ATTENTIONS, get_attention
from ..attention.linformer import PROJECTIONS
from ..attention.options import AttentionConfig, spread_over_layers
from ..errors import check

# The options of single mechanisms, and those of E and F.
MECHANISM_OPTIONS: dict[str, Field] = {opt.name: opt for cls in ATTENTIONS.values() for opt in fields(cls.Options)}
PROJECTION_OPTIONS = (
    "projection",
    "projection_init",
    "projection_multiplier",
    "projected_length",
    "adaptive_length",
    "sharing",
    "freeze_projection",
)

# The options that may differ per layer; numbers between FIRST and LAST are rounded to a multiple of the value.
PER_LAYER: dict[str, int] = {"projected_length": 1}
PER_LAYER |= {name: opt.metadata["multiple"] for name, opt in MECHANISM_OPTIONS.items() if opt.metadata["per_layer"]}


def _sizes(layers: int, embed_dim: int) -> dict[str, int]:
    sizes = {"encoder_layers": layers, "encoder_embed_dim": embed_dim}
    return {**sizes, "encoder_ffn_embed_dim": 4 * embed_dim, "encoder_attention_heads": embed_dim // 64}


ARCHITECTURES: dict[str, dict[str, int]] = {
    "linformer_roberta_tiny": _sizes(4, 256),
    "linformer_roberta_small": _sizes(6, 512),
    "linformer_roberta_base": _sizes(12, 768),
    "linformer_roberta_large": _sizes(24, 1024),
}


class Architecture(AttentionConfig, Protocol):
    """The resolved and validated configuration that the encoder's layers read."""

    attention: str
    local_conv: int
    value_residual: bool
    layernorm_embedding: bool
    layer_norm_eps: float
    norm_bias: bool
    head_bias: bool
    first_attention_norm: bool
    encoder_ffn_embed_dim: int
    activation_fn: str
    classifier_pooling: str
    pooler_norm: bool
    gated_ffn: bool
    encoder_normalize_before: bool
    dropout: float
    activation_dropout: float
    pooler_dropout: float


def architecture_defaults(name: str) -> dict[str, int | bool]:
    """Return the default sizes of an architecture; an unknown one has those of the base architecture."""
    return {"layernorm_embedding": True, **ARCHITECTURES.get(name, ARCHITECTURES["linformer_roberta_base"])}


def fill_in(architecture: str, args: Any) -> None:
    """Set the sizes that are None in ``args``, a Namespace or a config, in place, as fairseq requires."""
    for name, size in architecture_defaults(architecture).items():
        if getattr(args, name, None) is None:
            setattr(args, name, size)


def projection_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the projection; the defaults are those of fairseq's examples/linformer."""
    projection, k = PROJECTIONS[options["projection"]], options["projected_length"]
    return {
        "projected_length": max(1, options["max_positions"] // 4) if k is None else k,
        "sharing": options["sharing"] or projection.SHARINGS[0],
        "projection_init": options["projection_init"] or next(iter(projection.INITIALISATIONS), None),
    }


def per_layer_lists(options: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the values per layer of each option that may differ per layer and is not None."""
    return {
        name: spread_over_layers(name, options[name], options["encoder_layers"], multiple)
        for name, multiple in PER_LAYER.items()
        if options.get(name) is not None
    }


def layers_to_keep(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers after pruning, and the lists of the options that may differ per layer.

    Pruning must keep a layer that others need, and the type of each layer, which may depend on its index.
    """
    layers, pruning, lists = options["encoder_layers"], options["encoder_layers_to_keep"], per_layer_lists(options)
    remaining = _remaining_layers(pruning, layers) if pruning else range(layers)
    allowed = "a list that has layer 0, because value_residual=true needs its values"
    check("encoder_layers_to_keep", pruning, not pruning or 0 in remaining or not options["value_residual"], allowed)
    layer_type = get_attention(options["attention"]).Options.read(SimpleNamespace(**options)).kind_of_layer
    for new, old in enumerate(remaining):
        allowed = "a list that keeps the type of each layer with attention={}: layer {}, {}, would be layer {}, {}"
        allowed = allowed.format(options["attention"], old, layer_type(old), new, layer_type(new))
        check("encoder_layers_to_keep", pruning, layer_type(old) == layer_type(new), allowed)
    lists = {name: [values[layer] for layer in remaining] for name, values in lists.items()}
    return {**lists, "encoder_layers": len(remaining), "encoder_layers_to_keep": None}


def _remaining_layers(value: str, layers: int) -> list[int]:
    """Return the layers that pruning keeps, in ascending order, as in fairseq's ``prune_state_dict``."""
    remaining = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(remaining) == len(value.split(",")) and remaining[-1] < layers, allowed)
    return remaining
