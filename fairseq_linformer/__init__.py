"""Linformer for RoBERTa-style pretraining with fairseq. Importing this package registers the model."""

import argparse

import torch

from .model import LinformerRobertaModel

# fairseq-train's checkpoints hold their arguments as an argparse.Namespace. It is plain data: with this, torch.load
# reads them and still refuses everything that could run code (weights_only stays on).
torch.serialization.add_safe_globals([argparse.Namespace])

__all__ = ["LinformerRobertaModel"]
