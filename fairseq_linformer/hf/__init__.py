"""Models outside fairseq. Importing this package registers them with transformers' auto classes."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from .bundle import write_code
from .configuration_linformer_roberta import LinformerRobertaConfig
from .modeling_linformer_roberta import (
    LinformerRobertaForMaskedLM,
    LinformerRobertaForSequenceClassification,
    LinformerRobertaForTokenClassification,
    LinformerRobertaModel,
)

MODELS = {  # by the class through which transformers finds each
    AutoModel: LinformerRobertaModel,
    AutoModelForMaskedLM: LinformerRobertaForMaskedLM,
    AutoModelForSequenceClassification: LinformerRobertaForSequenceClassification,
    AutoModelForTokenClassification: LinformerRobertaForTokenClassification,
}
LinformerRobertaConfig.write_code = staticmethod(write_code)
AutoConfig.register(LinformerRobertaConfig.model_type, LinformerRobertaConfig)
for _auto, _model in MODELS.items():
    _auto.register(LinformerRobertaConfig, _model)

__all__ = [
    "MODELS",
    "LinformerRobertaConfig",
    "LinformerRobertaForMaskedLM",
    "LinformerRobertaForSequenceClassification",
    "LinformerRobertaForTokenClassification",
    "LinformerRobertaModel",
]
