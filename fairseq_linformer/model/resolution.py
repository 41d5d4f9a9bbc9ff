"""Defaults and validation of the model's options. This module does not import fairseq.

Mechanisms validate their own options, ``config.py`` those that only fairseq's model has.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..attention.base import ATTENTIONS, get_attention
from ..attention.linformer import PROJECTIONS
from ..attention.options import check_width, spread_over_layers
from ..attention.pooling import WindowProjection
from ..attention.positions import POSITIONS, check_rotary_dims
from ..attention.projection import LinearProjection
from ..errors import check
from .architecture import ARCHITECTURES, MECHANISM_OPTIONS, PER_LAYER, POOLINGS, Architecture

REMOVED_OPTION = "linformer_fetch"  # of earlier versions; a checkpoint in which it is 0 in all layers can be loaded


def architecture_defaults(name: str) -> dict[str, int | bool]:
    """Return the default sizes of an architecture; an unknown one has those of the base architecture."""
    return {"layernorm_embedding": True, **ARCHITECTURES.get(name, ARCHITECTURES["linformer_roberta_base"])}


def fill_in(architecture: str, args: Any) -> None:
    """Set the sizes that are None in ``args``, a Namespace or a config, in place, as fairseq requires."""
    for name, size in architecture_defaults(architecture).items():
        if getattr(args, name, None) is None:
            setattr(args, name, size)


def complete_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with defaults of the projection, and with a list of values for each that may differ per layer.

    The defaults are those of fairseq's examples/linformer.
    """
    projection, k = PROJECTIONS[options["projection"]], options["projected_length"]
    completed = {
        **options,
        "projected_length": max(1, options["max_positions"] // 4) if k is None else k,
        "sharing": options["sharing"] or projection.SHARINGS[0],
        "projection_init": options["projection_init"] or next(iter(projection.INITIALISATIONS), None),
    }
    for name, multiple in PER_LAYER.items():
        if completed.get(name) is not None:
            completed[name] = spread_over_layers(name, completed[name], options["encoder_layers"], multiple)
    return completed


def validate(config: Architecture) -> None:
    """Check every option of an architecture.

    Raises:
        UserError: an option is invalid; the message names it, its value and the allowed values.
    """
    for name in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"):
        check(name, getattr(config, name), getattr(config, name) >= 1, "at least 1")
    heads, embed_dim = config.encoder_attention_heads, config.encoder_embed_dim
    check("encoder_attention_heads", heads, embed_dim % heads == 0, f"a divisor of encoder_embed_dim={embed_dim}")
    check("max_positions", config.max_positions, config.max_positions >= 1, "at least 1")
    _validate_attention(config)
    if get_attention(config.attention).uses_projection(config):
        _validate_projection(config)
    layers, allowed = config.encoder_layers, "false with encoder_layers=1: the first layer has none before it"
    check("value_residual", config.value_residual, layers > 1 or not config.value_residual, allowed)
    first_norm, pre_norm = config.first_attention_norm, config.encoder_normalize_before
    check("first_attention_norm", first_norm, first_norm or pre_norm, "true with encoder_normalize_before=false")
    check_width("local_conv", config.local_conv)
    check("classifier_pooling", config.classifier_pooling, config.classifier_pooling in POOLINGS, " or ".join(POOLINGS))
    check("layer_norm_eps", config.layer_norm_eps, config.layer_norm_eps > 0, "above 0")
    for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout"):
        check_probability(name, getattr(config, name))


def check_removed(options: Mapping[str, Any]) -> None:
    """Reject the options of an earlier version's checkpoint if its model can no longer be built."""
    if REMOVED_OPTION in options:
        value = options[REMOVED_OPTION]  # None, a number, a list or text (8,0 or 0..8)
        unused = not re.search("[1-9]", str(value))
        check(REMOVED_OPTION, value, unused, "0, because this option was removed (see docs/experiments/README.md)")


def check_probability(name: str, value: float) -> None:
    """Reject a dropout probability outside [0, 1)."""
    check(name, value, 0.0 <= value < 1.0, "at least 0 and below 1")


def _validate_attention(config: Architecture) -> None:
    mechanism = get_attention(config.attention)
    names = {option.name for option in fields(mechanism.Options)}
    for name in MECHANISM_OPTIONS:
        value = getattr(config, name, None)
        check(name, value, name in names or value is None, f"left out with attention={config.attention}")
    check("positions", config.positions, config.positions in POSITIONS, f"one of {', '.join(POSITIONS)}")
    able = sorted(name for name, cls in ATTENTIONS.items() if cls.RELATIVE_POSITIONS)
    allowed = f"learned with attention={config.attention}; others have {', '.join(able)}"
    check("positions", config.positions, config.positions == "learned" or config.attention in able, allowed)
    base, share = config.rotary_base, config.rotary_share
    check("rotary_base", base, 1 < base < math.inf, "a number above 1")
    check("rotary_share", share, 0 < share <= 1, "above 0 and at most 1")
    if config.positions == "rotary":
        check_rotary_dims(config)
    mechanism.Options.read(config).validate(config)
    rate = config.attention_dropout
    allowed = f"0 with attention={config.attention}, which has no attention weights"
    check("attention_dropout", rate, mechanism.HAS_WEIGHTS or rate == 0, allowed)


def _validate_projection(config: Architecture) -> None:
    cls, n, context = PROJECTIONS[config.projection], config.max_positions, f"with projection={config.projection}"
    for k in config.projected_length:
        check("projected_length", k, 1 <= k <= n, f"from 1 to max_positions={n}")
        divides = not issubclass(cls, WindowProjection) or n % k == 0
        check("projected_length", k, divides, f"a divisor of max_positions={n} {context}")
    check("sharing", config.sharing, config.sharing in cls.SHARINGS, f"one of {', '.join(cls.SHARINGS)} {context}")
    uniform = config.sharing != "layerwise" or len(set(config.projected_length)) == 1
    check("projected_length", config.projected_length, uniform, "one number with sharing=layerwise")
    choices = cls.INITIALISATIONS or (None,)
    allowed = f"one of {', '.join(cls.INITIALISATIONS)}" if cls.INITIALISATIONS else "left out"
    check("projection_init", config.projection_init, config.projection_init in choices, f"{allowed} {context}")
    scale = config.projection_multiplier
    check("projection_multiplier", scale, scale is None or cls is LinearProjection, f"left out {context}")
    check("projection_multiplier", scale, scale is None or 0 < scale < math.inf, "a number above 0")
    freezes = cls.TRAINABLE or not config.freeze_projection
    check("freeze_projection", True, freezes, f"false {context}, where nothing is trained")
