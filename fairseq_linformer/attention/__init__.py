"""Attention mechanisms, one file each; importing this package registers them all."""

import importlib
import pkgutil

from .base import ATTENTIONS, Attention, get_attention, register_attention
from .options import AttentionConfig, Options, option

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["ATTENTIONS", "Attention", "AttentionConfig", "Options", "get_attention", "option", "register_attention"]
