"""Hides the lines of fairseq's log that nobody needs to read."""

import logging
import re
import warnings
from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from torch import nn

# Beginnings of the lines that fairseq logs at every start, epoch or save, by logger.
NOISE = {
    "fairseq_cli.train": ("num. expert model params", "begin dry-run validation", "Start iterating over samples"),
    "fairseq.trainer": ("detected shared parameter", "Preparing to load", "Saving checkpoint", "Finished saving"),
    "fairseq.checkpoint_utils": ("Preparing to save checkpoint", "State of "),
    "fairseq.tasks.fairseq_task": (
        "can_reuse_epoch_itr",
        "reuse_dataloader",
        "rebuild_batches",
        "creating new batches",
    ),
    "fairseq.data.iterators": ("grouped total_num_itrs",),
}
WARNINGS = ("'pin_memory' argument is set as true", "`torch.cuda.amp.autocast(args...)` is deprecated")


def hide_noise() -> None:
    """Hides them in this process, and also the printed model, and the options that Hydra writes to a file."""
    for name, beginnings in NOISE.items():
        logging.getLogger(name).addFilter(partial(_says_something, beginnings))
    for beginning in WARNINGS:
        warnings.filterwarnings("ignore", re.escape(beginning))


def _says_something(noise: tuple[str, ...], record: logging.LogRecord) -> bool:
    if isinstance(record.msg, nn.Module):
        return False
    if isinstance(record.msg, DictConfig):
        return not HydraConfig.initialized()
    return record.levelno > logging.INFO or not str(record.msg).startswith(noise)
