"""What fairseq gets from this package: importing this file registers the model, the tasks, the criteria, the optimizer
and the learning-rate schedule.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.file_io import PathManager

from .checkpoints.files import CheckpointFiles
from .cli.fairseq_errors import install_excepthook
from .finetune.criterion import TextPredictionCriterion
from .model import LinformerRobertaModel
from .system.console import hide_noise
from .training.distillation import MaskedLmDistillation
from .training.fused_adam import FusedAdam
from .training.masked_lm import DynamicMaskedLMTask
from .training.text_prediction import TextPredictionTask
from .training.trapezoidal import TrapezoidalSchedule

# Plain data that torch.load reads with this, while it still refuses everything that could run code (weights_only stays
# on): fairseq-train's checkpoints hold their arguments as an argparse.Namespace, and those of tasks that are chosen by
# a correlation the best of it as one of numpy's numbers, whose module has another name before numpy 2.
_scalar, (_float64, _) = np.float64().__reduce__()
_scalars: list[tuple[Any, str]] = [(_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]
torch.serialization.add_safe_globals([argparse.Namespace, *_scalars, np.dtype, type(_float64)])

# As hydra_plugins has it for common.cpu=true: with a GPU in sight fairseq clips gradients and joins processes there.
if "--cpu" in sys.argv and Path(sys.argv[0]).name.startswith("fairseq-"):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

PathManager.register_handler(CheckpointFiles())
hide_noise()
install_excepthook()

__all__ = [
    "DynamicMaskedLMTask",
    "FusedAdam",
    "LinformerRobertaModel",
    "MaskedLmDistillation",
    "TextPredictionCriterion",
    "TextPredictionTask",
    "TrapezoidalSchedule",
]
