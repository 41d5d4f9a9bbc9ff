"""Alternating attention: each layer is one of two others."""

from fairseq_linformer.attention.longformer import LongformerAttention

from . import longformer, naive_attention


def reference(module, x):
    windowed = isinstance(module, LongformerAttention)
    return longformer.reference(module, x) if windowed else naive_attention.softmax(module, x)
