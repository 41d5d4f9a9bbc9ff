"""What the options of an architecture are and mean, wherever the model runs: nothing here imports fairseq."""

import math
from collections.abc import Mapping
from dataclasses import Field, fields
from types import SimpleNamespace
from typing import Any, Protocol

from ..attention.options import AttentionConfig, check_width, spread_over_layers
from ..attention.pooling import WindowProjection
from ..attention.positions import validate_positions
from ..attention.projection import LinearProjection
from ..attention.registry import ATTENTIONS, PROJECTIONS, get_attention
from ..errors import check

# The options of single mechanisms, and those of E and F.
MECHANISM_OPTIONS: dict[str, Field] = {own.name: own for kind in ATTENTIONS.values() for own in fields(kind.Options)}
PROJECTION_OPTIONS = (
    "projection",
    "projection_init",
    "projection_multiplier",
    "projected_length",
    "adaptive_length",
    "sharing",
    "freeze_projection",
)

# The options that may differ per layer, each with what numbers between FIRST and LAST are rounded to a multiple of.
PER_LAYER: dict[str, int] = {"projected_length": 1}
PER_LAYER |= {name: own.metadata["multiple"] for name, own in MECHANISM_OPTIONS.items() if own.metadata["per_layer"]}


def _sizes(layers: int, embed_dim: int) -> dict[str, int]:
    sizes = {"encoder_layers": layers, "encoder_embed_dim": embed_dim}
    return {**sizes, "encoder_ffn_embed_dim": 4 * embed_dim, "encoder_attention_heads": embed_dim // 64}


ARCHITECTURES: dict[str, dict[str, int]] = {
    "linformer_roberta_tiny": _sizes(4, 256),
    "linformer_roberta_small": _sizes(6, 512),
    "linformer_roberta_base": _sizes(12, 768),
    "linformer_roberta_large": _sizes(24, 1024),
}


POOLINGS = ("cls", "mean")  # what a classification head reads: the features of <s>, or their mean over the text


class Architecture(AttentionConfig, Protocol):
    """What the encoder's layers read of a configuration, resolved and validated."""

    attention: str
    local_conv: int
    value_residual: bool
    layernorm_embedding: bool
    layer_norm_eps: float
    encoder_ffn_embed_dim: int
    activation_fn: str
    classifier_pooling: str
    gated_ffn: bool
    encoder_normalize_before: bool
    dropout: float
    activation_dropout: float
    pooler_dropout: float


def architecture_defaults(name: str) -> dict[str, int | bool]:
    """The sizes of an architecture; an unknown one has those of the base. What the user gives wins over them."""
    return {"layernorm_embedding": True, **ARCHITECTURES.get(name, ARCHITECTURES["linformer_roberta_base"])}


def fill_in(architecture: str, args: Any) -> None:
    """Gives ``args``, a Namespace or a config, the sizes that it leaves open, in place, as fairseq asks for."""
    for name, size in architecture_defaults(architecture).items():
        if getattr(args, name, None) is None:
            setattr(args, name, size)


def projection_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the projection; those left open are as in fairseq's examples/linformer."""
    kind, k = PROJECTIONS[options["projection"]], options["projected_length"]
    return {
        "projected_length": max(1, options["max_positions"] // 4) if k is None else k,
        "sharing": options["sharing"] or kind.SHARINGS[0],
        "projection_init": options["projection_init"] or next(iter(kind.INITIALISATIONS), None),
    }


def per_layer_lists(options: Mapping[str, Any]) -> dict[str, list[int]]:
    """The list of each option that may differ per layer, unless it is left open.

    Raises:
        UserError: a value is none that ``spread_over_layers`` reads.
    """
    return {
        name: spread_over_layers(name, options[name], options["encoder_layers"], multiple)
        for name, multiple in PER_LAYER.items()
        if options.get(name) is not None
    }


def layers_to_keep(options: Mapping[str, Any]) -> dict[str, Any]:
    """The number of layers, after pruning, and the lists of the options that may differ per layer.

    Raises:
        UserError: what is to be kept is no list of layers, leaves out one that the others need, or makes one of another
            kind by its new number.
    """
    layers, pruning, lists = options["encoder_layers"], options["encoder_layers_to_keep"], per_layer_lists(options)
    kept = _kept_layers(pruning, layers) if pruning else range(layers)
    allowed = "a list that has layer 0, because value_residual=true needs its values"
    check("encoder_layers_to_keep", pruning, not pruning or 0 in kept or not options["value_residual"], allowed)
    kind = get_attention(options["attention"]).Options.read(SimpleNamespace(**options)).kind_of_layer
    for new, old in enumerate(kept):
        allowed = "a list that leaves each layer its kind with attention={}: layer {}, {}, would be layer {}, {}"
        allowed = allowed.format(options["attention"], old, kind(old), new, kind(new))
        check("encoder_layers_to_keep", pruning, kind(old) == kind(new), allowed)
    lists = {name: [whole[layer] for layer in kept] for name, whole in lists.items()}
    return {**lists, "encoder_layers": len(kept), "encoder_layers_to_keep": None}


def _kept_layers(value: str, layers: int) -> list[int]:
    """The layers that pruning keeps, from the first on, as fairseq's ``prune_state_dict`` numbers them."""
    kept = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(kept) == len(value.split(",")) and kept[-1] < layers, allowed)
    return kept


def validate(config: Architecture) -> None:
    """Checks every option of an architecture.

    Raises:
        UserError: one cannot work; the message names it, its value and what is allowed.
    """
    for name in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"):
        check(name, getattr(config, name), getattr(config, name) >= 1, "at least 1")
    heads, embed_dim = config.encoder_attention_heads, config.encoder_embed_dim
    check("encoder_attention_heads", heads, embed_dim % heads == 0, f"a divisor of encoder_embed_dim={embed_dim}")
    check("max_positions", config.max_positions, config.max_positions >= 1, "at least 1")
    _validate_attention(config)
    if get_attention(config.attention).USES_PROJECTION:
        _validate_projection(config)
    layers, allowed = config.encoder_layers, "false with encoder_layers=1: the first layer has none before it"
    check("value_residual", config.value_residual, layers > 1 or not config.value_residual, allowed)
    check_width("local_conv", config.local_conv)
    check("classifier_pooling", config.classifier_pooling, config.classifier_pooling in POOLINGS, " or ".join(POOLINGS))
    check("layer_norm_eps", config.layer_norm_eps, 0 < config.layer_norm_eps < 1, "above 0 and below 1")
    for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout"):
        check_probability(name, getattr(config, name))


def check_probability(name: str, value: float) -> None:
    """Refuses a probability of dropout that cannot be one.

    Raises:
        UserError: it is not at least 0 and below 1.
    """
    check(name, value, 0.0 <= value < 1.0, "at least 0 and below 1")


def _validate_attention(config: Architecture) -> None:
    chosen = get_attention(config.attention)
    own = {option.name for option in fields(chosen.Options)}
    for name in MECHANISM_OPTIONS:
        value = getattr(config, name, None)
        check(name, value, name in own or value is None, f"left out with attention={config.attention}")
    validate_positions(config)
    able = sorted(name for name, kind in ATTENTIONS.items() if kind.RELATIVE_POSITIONS)
    allowed = f"learned with attention={config.attention}; others have {', '.join(able)}"
    check("positions", config.positions, config.positions == "learned" or config.attention in able, allowed)
    chosen.Options.read(config).validate(config)
    rate = config.attention_dropout
    allowed = f"0 with attention={config.attention}, which has no attention weights"
    check("attention_dropout", rate, chosen.HAS_WEIGHTS or rate == 0, allowed)


def _validate_projection(config: Architecture) -> None:
    kind, n, beside = PROJECTIONS[config.projection], config.max_positions, f"with projection={config.projection}"
    for k in config.projected_length:
        check("projected_length", k, 1 <= k <= n, f"from 1 to max_positions={n}")
        divides = not issubclass(kind, WindowProjection) or n % k == 0
        check("projected_length", k, divides, f"a divisor of max_positions={n} {beside}")
    check("sharing", config.sharing, config.sharing in kind.SHARINGS, f"one of {', '.join(kind.SHARINGS)} {beside}")
    uniform = config.sharing != "layerwise" or len(set(config.projected_length)) == 1
    check("projected_length", config.projected_length, uniform, "one number with sharing=layerwise")
    starts = kind.INITIALISATIONS or (None,)
    allowed = f"one of {', '.join(kind.INITIALISATIONS)}" if kind.INITIALISATIONS else "left out"
    check("projection_init", config.projection_init, config.projection_init in starts, f"{allowed} {beside}")
    scale = config.projection_multiplier
    check("projection_multiplier", scale, scale is None or kind is LinearProjection, f"left out {beside}")
    check("projection_multiplier", scale, scale is None or 0 < scale < math.inf, "a number above 0")
    freezes = kind.TRAINABLE or not config.freeze_projection
    check("freeze_projection", True, freezes, f"false {beside}, where nothing is trained")
