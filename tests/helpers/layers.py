"""Attention layers at odd lengths and head counts."""

from argparse import Namespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_linformer.attention import get_attention
from fairseq_linformer.attention.linformer import PROJECTIONS
from fairseq_linformer.attention.pooling import AttentionPooling

N, D = 15, 12


SHORT = {  # short names of options in tests
    "dropout": "attention_dropout",
    "initialisation": "projection_init",
    "multiplier": "projection_multiplier",
    "adaptive": "adaptive_length",
    "frozen": "freeze_projection",
    "base": "rotary_base",
    "share": "rotary_share",
}
DEFAULTS = {"attention_dropout": 0.0, "positions": "learned", "rotary_base": 20.0, "rotary_share": 1.0}
DEFAULTS |= {"projection": "linear", "projection_init": None, "projection_multiplier": 1.0, "sharing": "none"}
DEFAULTS |= {"attention_bias": True, "adaptive_length": False, "freeze_projection": False}


def configured(heads=3, k=5, layers=2, n=N, d=D, **options):
    """Return the part of a resolved configuration that ``build_layers`` reads."""
    sizes = {"encoder_layers": layers, "encoder_embed_dim": d, "encoder_attention_heads": heads, "max_positions": n}
    full_names = {SHORT.get(name, name): value for name, value in options.items()}
    config = Namespace(**{**DEFAULTS, **sizes, "projected_length": [k] * layers, **full_names})
    config.projection_init = config.projection_init or next(iter(PROJECTIONS[config.projection].INITIALISATIONS), None)
    return config


def new(name, **options):
    """Return a layer of a mechanism with its initial values, from the current state of the random numbers."""
    return get_attention(name).build_layers(configured(layers=1, **options))[0]


def build(name, seed=0, **options):
    """Return layers of a mechanism with weights so large that attention is far from uniform."""
    torch.manual_seed(seed)
    attentions = get_attention(name).build_layers(configured(**options))
    for attention in attentions:
        for linear in (getattr(attention, part) for part in (*attention.QKV_PROJECTIONS, "out_proj")):
            torch.nn.init.normal_(linear.weight, std=0.5)
            if linear.bias is not None:
                torch.nn.init.normal_(linear.bias, std=0.5)
        for module in attention.modules():
            if isinstance(module, AttentionPooling):  # which starts as the mean
                torch.nn.init.normal_(module.weight, std=0.5)
    return attentions


def leaving_heads(attention, x, first_values=None):
    """Return the heads of a layer for x, (B, n, d), before the last map: (B, h, n, d_h)."""
    calls = []
    attention.join_heads = lambda heads: calls.append(heads) or x
    attention(x, None, *(() if first_values is None else (first_values,)))
    del attention.join_heads
    return calls[0]


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor that is created."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result
