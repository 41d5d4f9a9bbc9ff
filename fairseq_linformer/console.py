"""Keeps the lines of fairseq's log that nobody needs to read from the screen."""

import logging
import re
import warnings
from functools import partial

from omegaconf import DictConfig
from torch import nn

# Beginnings of the lines that fairseq logs at every start, epoch or save, by logger.
NOISE = {
    "fairseq_cli.validate": (),
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
# Of warnings. Hydra's are about how fairseq-train and fairseq-validate use it.
WARNINGS = (
    "'pin_memory' argument is set as true",
    "`torch.cuda.amp.autocast(args...)` is deprecated",
    "hydra.experimental.",
    "The version_base parameter is not specified",
    "In 'config': Usage of deprecated keyword",
    "'config' is validated against ConfigStore schema",
    "The strict flag in the compose API is deprecated",
)


def hide_noise() -> None:
    """Keeps them from this process's screen, with the printed model and configuration. Log files have them all."""
    for name, beginnings in NOISE.items():
        logging.getLogger(name).addFilter(partial(_is_for_the_screen, beginnings))
    for beginning in WARNINGS:
        warnings.filterwarnings("ignore", rf"\s*{re.escape(beginning)}")


def _is_for_the_screen(noise: tuple[str, ...], record: logging.LogRecord) -> bool:
    is_printed = isinstance(record.msg, nn.Module | DictConfig)
    if not is_printed and (record.levelno > logging.INFO or not str(record.msg).startswith(noise)):
        return True
    if not isinstance(record.msg, DictConfig):  # which is in config.yaml, beside the log
        for handler in logging.root.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)
    return False
