"""Models outside fairseq. Importing this package registers them with transformers' auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .configuration_linformer_roberta import LinformerRobertaConfig
from .modeling_linformer_roberta import (
    LinformerRobertaForMaskedLM,
    LinformerRobertaForSequenceClassification,
    LinformerRobertaForTokenClassification,
    LinformerRobertaModel,
)

AutoConfig.register(LinformerRobertaConfig.model_type, LinformerRobertaConfig)
AutoModel.register(LinformerRobertaConfig, LinformerRobertaModel)
AutoModelForMaskedLM.register(LinformerRobertaConfig, LinformerRobertaForMaskedLM)
AutoModelForSequenceClassification.register(LinformerRobertaConfig, LinformerRobertaForSequenceClassification)
AutoModelForTokenClassification.register(LinformerRobertaConfig, LinformerRobertaForTokenClassification)

__all__ = [
    "LinformerRobertaConfig",
    "LinformerRobertaForMaskedLM",
    "LinformerRobertaForSequenceClassification",
    "LinformerRobertaForTokenClassification",
    "LinformerRobertaModel",
]
