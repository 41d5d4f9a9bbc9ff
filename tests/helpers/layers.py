"""Attention layers at odd lengths and head counts."""

from argparse import Namespace

import torch

from fairseq_linformer.attention import get_attention
from fairseq_linformer.attention.pooling import AttentionPooling
from fairseq_linformer.attention.registry import PROJECTIONS

N, D = 15, 12


def configured(
    heads=3,
    projection="linear",
    sharing="none",
    k=5,
    dropout=0.0,
    layers=2,
    frozen=False,
    n=N,
    d=D,
    initialisation=None,
    multiplier=1.0,
    adaptive=False,
    positions="learned",
    base=20.0,
    share=1.0,
    **own,
):
    """What ``build_layers`` reads of a resolved configuration."""
    return Namespace(
        encoder_layers=layers,
        encoder_embed_dim=d,
        encoder_attention_heads=heads,
        attention_dropout=dropout,
        max_positions=n,
        positions=positions,
        rotary_base=base,
        rotary_share=share,
        projection=projection,
        projection_init=initialisation or next(iter(PROJECTIONS[projection].INITIALISATIONS), None),
        projection_multiplier=multiplier,
        adaptive_length=adaptive,
        projected_length=[k] * layers,
        sharing=sharing,
        freeze_projection=frozen,
        **own,
    )


def new(name, **options):
    """One layer of a mechanism as it starts, with the random numbers of the moment."""
    return get_attention(name).build_layers(configured(layers=1, **options))[0]


def build(name, seed=0, **options):
    """Layers of a mechanism with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    attentions = get_attention(name).build_layers(configured(**options))
    for attention in attentions:
        for linear in (getattr(attention, part) for part in (*attention.INPUT_MAPS, "out_proj")):
            torch.nn.init.normal_(linear.weight, std=0.5)
            torch.nn.init.normal_(linear.bias, std=0.5)
        for module in attention.modules():
            if isinstance(module, AttentionPooling):  # which starts as the mean
                torch.nn.init.normal_(module.weight, std=0.5)
    return attentions


def leaving_heads(attention, x):
    """What leaves the heads of a layer on x, (B, n, d), before the last map: (B, h, n, d_h)."""
    heads = []
    attention.join_heads = lambda own: heads.append(own) or x
    attention(x)
    del attention.join_heads
    return heads[0]
