"""Linformer for RoBERTa-style pretraining with fairseq.

Importing this package after fairseq, as ``--user-dir`` does, registers the classes that ``plugin.py`` lists; otherwise
the first use of one of them does. The command line, ``fairseq_linformer.attention`` and the models of
``fairseq_linformer.hf`` therefore need no fairseq.
"""

import importlib
import sys
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a class of the plugin."""
    if name[:1].isupper():  # names of modules begin with a small letter
        return getattr(importlib.import_module(".plugin", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if sys.modules.get("fairseq") is not None:
    from . import plugin as plugin
