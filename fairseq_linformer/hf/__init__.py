"""Models of transformers. Importing this package registers them with the auto classes."""

import transformers

from .bundle import write_code
from .configuration_linformer_roberta import LinformerRobertaConfig
from .modeling_linformer_roberta import (
    LinformerRobertaForMaskedLM,
    LinformerRobertaForMultipleChoice,
    LinformerRobertaForQuestionAnswering,
    LinformerRobertaForSequenceClassification,
    LinformerRobertaForTokenClassification,
    LinformerRobertaModel,
)

MODELS = {  # by auto class
    transformers.AutoModel: LinformerRobertaModel,
    transformers.AutoModelForMaskedLM: LinformerRobertaForMaskedLM,
    transformers.AutoModelForMultipleChoice: LinformerRobertaForMultipleChoice,
    transformers.AutoModelForQuestionAnswering: LinformerRobertaForQuestionAnswering,
    transformers.AutoModelForSequenceClassification: LinformerRobertaForSequenceClassification,
    transformers.AutoModelForTokenClassification: LinformerRobertaForTokenClassification,
}
LinformerRobertaConfig.write_code = staticmethod(write_code)
transformers.AutoConfig.register(LinformerRobertaConfig.model_type, LinformerRobertaConfig)
for _auto, _model in MODELS.items():
    _auto.register(LinformerRobertaConfig, _model)
