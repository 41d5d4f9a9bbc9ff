"""Attention mechanisms: one file each, found here by being in this folder."""

import importlib
import pkgutil

from ..errors import check
from .base import (
    ATTENTIONS,
    Attention,
    AttentionConfig,
    Options,
    by_layer,
    get_attention,
    option,
    register_attention,
)

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionConfig",
    "Options",
    "by_layer",
    "check",
    "get_attention",
    "option",
    "register_attention",
]
