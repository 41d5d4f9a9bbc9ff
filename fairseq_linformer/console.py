"""Filters that hide unimportant lines of fairseq's log on the console."""

import logging
import re
import warnings
from functools import partial

from omegaconf import DictConfig
from torch import nn

# Prefixes of the lines that fairseq logs at every start, epoch or save, by logger.
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
# Prefixes of warnings. Hydra's concern its use by fairseq-train and fairseq-validate.
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
    """Hide these lines and warnings, the printed model and configuration on the console; log files keep them all."""
    for logger_name, prefixes in NOISE.items():
        logging.getLogger(logger_name).addFilter(partial(_is_for_the_screen, prefixes))
    for prefix in WARNINGS:
        warnings.filterwarnings("ignore", rf"\s*{re.escape(prefix)}")


def _is_for_the_screen(noise: tuple[str, ...], record: logging.LogRecord) -> bool:
    is_printed = isinstance(record.msg, nn.Module | DictConfig)
    if not is_printed and (record.levelno > logging.INFO or not str(record.msg).startswith(noise)):
        return True
    if not isinstance(record.msg, DictConfig):  # config.yaml has the configuration
        for handler in logging.root.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)
    return False
