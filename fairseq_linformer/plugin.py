"""The fairseq plugin: importing this module registers the model, the tasks, the criteria and the optimizers."""

import os
import sys
from pathlib import Path

from .checkpoint_files import install_checkpoint_files
from .cli.fairseq_errors import install_excepthook
from .console import hide_noise
from .finetune.criterion import TextPredictionCriterion
from .finetune.prediction import Predictor
from .model.roberta import LinformerRobertaModel
from .training.distillation import EncoderDistillation, MaskedLmDistillation
from .training.fused_adam import FusedAdam
from .training.masked_lm import DynamicMaskedLMTask
from .training.muon import Muon
from .training.text_prediction import TextPredictionTask

# As hydra_plugins does for common.cpu=true: fairseq clips gradients and joins processes on a GPU wherever there is one.
if "--cpu" in sys.argv and Path(sys.argv[0]).name.startswith("fairseq-"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

install_checkpoint_files()
hide_noise()
install_excepthook()

__all__ = [
    "DynamicMaskedLMTask",
    "EncoderDistillation",
    "FusedAdam",
    "LinformerRobertaModel",
    "MaskedLmDistillation",
    "Muon",
    "Predictor",
    "TextPredictionCriterion",
    "TextPredictionTask",
]
