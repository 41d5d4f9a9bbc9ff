"""Linformer for RoBERTa-style pretraining with fairseq. Importing this package registers the model and the tasks."""

import argparse

import numpy as np
import torch

from .model import LinformerRobertaModel
from .task import DynamicMaskedLMTask, TextPredictionTask

# Plain data that torch.load reads with this, while it still refuses everything that could run code (weights_only stays
# on): fairseq-train's checkpoints hold their arguments as an argparse.Namespace, and those of tasks that are chosen by
# a correlation the best of it as one of numpy's numbers.
_scalar, (_float64, _) = np.float64().__reduce__()
torch.serialization.add_safe_globals([argparse.Namespace, _scalar, np.dtype, type(_float64)])

__all__ = ["DynamicMaskedLMTask", "LinformerRobertaModel", "TextPredictionTask"]
