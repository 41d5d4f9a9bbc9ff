"""The checkpoint that a training starts from: which one it is, and the options of the model that come from it."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, open_dict

from ..checkpoint import no_such_checkpoint, read_checkpoint
from ..checkpoint_files import LAST
from ..model.config import LinformerRobertaConfig
from ..model.hub import architecture_options
from ..model.roberta import LinformerRobertaModel
from .configuration import typed_options

RESET = ("optimizer", "lr_scheduler", "dataloader", "meters")  # what is of a checkpoint and can be left out
OF_NO_SIZE = "linformer_roberta"  # the architecture of configs/model/options.yaml

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """The checkpoint that a training starts from, and which of fairseq's options names it."""

    option: str
    checkpoint: Path


def named_start(checkpoint_options: Mapping[str, Any]) -> Start | None:
    """Where a training starts from; None where its weights are new. Of two ``restore_file`` counts, as in ``adapt``."""
    for option, default in (("restore_file", LAST), ("finetune_from_model", None)):
        named = checkpoint_options[option]
        if named and named != default:
            return Start(option, Path(named))
    return None


def checkpoint_to_read(cfg: DictConfig) -> Path | None:
    """The checkpoint that fairseq will read; None where it begins with new weights.

    A run that started from ``restore_file`` goes on from its own last checkpoint, as one from ``finetune_from_model``
    does: fairseq would start again each time that the command is repeated.

    Raises:
        FileNotFoundError: the user names one that is not there. fairseq would train from scratch.
    """
    options, last = cfg.checkpoint, Path(cfg.checkpoint.save_dir, LAST)
    start = named_start(options)
    if last.is_file():
        if start is not None and start.option == "restore_file":
            elsewhere = f"to begin at checkpoint.restore_file={start.checkpoint} name another checkpoint.save_dir"
            logger.info(f"the run goes on from {last}; {elsewhere}")
            options.update({"restore_file": LAST, "optimizer_overrides": "{}"})
            options.update({f"reset_{part}": False for part in RESET})
        return last
    if start is not None and not start.checkpoint.is_file():
        raise no_such_checkpoint(*start)
    return start and start.checkpoint


def adopt_model_options(cfg: DictConfig) -> None:
    """Where a run starts from a pretrained model, sets the model options that nobody gave to that model's.

    Those that are typed stay, and so do values of a configuration that are not the default. Options of training, like
    dropout, are the run's. A run that goes on from another one's ``restore_file`` takes them from there, but for one
    whose configuration names a model and no checkpoint, as in pretraining.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        UserError: it cannot be read, or is of another model.
    """
    start = named_start(cfg.checkpoint)
    if start is None or "projected_length" not in cfg.model:
        return
    of_no_size = getattr(cfg.model, "_name", None) == OF_NO_SIZE
    if start.option == "restore_file" and cfg.checkpoint.finetune_from_model is None and not of_no_size:
        return
    # An interrupted run has them in its own checkpoint, too. That may be damaged, and is replaced only later.
    source = next((path for path in (start.checkpoint, Path(cfg.checkpoint.save_dir, LAST)) if path.is_file()), None)
    if source is None:
        raise no_such_checkpoint(*start)
    options = architecture_options(LinformerRobertaModel.resolve(read_checkpoint(source)["cfg"]))
    adopt(cfg.model, options, typed=typed_options("model"))


def adopt(model: DictConfig, options: Mapping[str, Any], typed: Collection[str] = ()) -> None:
    """Sets the options of a model that are None or have their defaults, and were not typed so, in place."""
    defaults = LinformerRobertaConfig()
    taken = {
        name: value
        for name, value in options.items()
        if name not in typed and model.get(name) in (None, getattr(defaults, name))
    }
    with open_dict(model):
        model.update(taken)
    said = ", ".join(f"{name}={value}" for name, value in taken.items() if value != getattr(defaults, name))
    logger.info(f"the model's options, from the checkpoint: {said}")
