"""Architectures: sizes, and defaults of options that a user does not set. This module does not import fairseq."""

from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, Protocol

from ..attention.base import ATTENTIONS
from ..attention.linformer import PROJECTIONS
from ..attention.options import AttentionConfig, spread_over_layers

# The options of single mechanisms.
MECHANISM_OPTIONS: dict[str, Field] = {opt.name: opt for cls in ATTENTIONS.values() for opt in fields(cls.Options)}
POOLINGS = ("cls", "mean")  # input of a classification head: the features of <s>, or their mean over the text

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
