"""Linformer for RoBERTa-style pretraining with fairseq: importing this package registers what ``plugin.py`` lists.

Without fairseq, ``fairseq_linformer.attention`` and the models of ``fairseq_linformer.hf`` can be imported alone.
"""

from importlib.util import find_spec

if find_spec("fairseq") is not None:
    from .finetune.criterion import TextPredictionCriterion
    from .model import LinformerRobertaModel
    from .training.distillation import MaskedLmDistillation
    from .training.fused_adam import FusedAdam
    from .training.masked_lm import DynamicMaskedLMTask
    from .training.text_prediction import TextPredictionTask
    from .training.trapezoidal import TrapezoidalSchedule

    __all__ = [
        "DynamicMaskedLMTask",
        "FusedAdam",
        "LinformerRobertaModel",
        "MaskedLmDistillation",
        "TextPredictionCriterion",
        "TextPredictionTask",
        "TrapezoidalSchedule",
    ]
