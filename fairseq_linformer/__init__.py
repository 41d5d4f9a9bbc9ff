"""Linformer for RoBERTa-style pretraining with fairseq: importing this package registers what ``plugin.py`` lists.

Without fairseq, ``fairseq_linformer.attention`` and the models of ``fairseq_linformer.hf`` can be imported alone.
"""

from importlib.util import find_spec

if find_spec("fairseq") is not None:
    from .plugin import *  # noqa: F403
    from .plugin import __all__ as __all__
