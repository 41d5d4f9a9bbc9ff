"""Architectures: their sizes, and the configuration that their layers read. This module does not import fairseq."""

from dataclasses import Field, fields
from typing import Protocol

from ..attention.base import ATTENTIONS
from ..attention.options import AttentionConfig

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
