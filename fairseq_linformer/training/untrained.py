"""Initial checkpoints of imported and converted models, which no update has trained yet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf, open_dict
from torch import Tensor

from ..checkpoint import UNTRAINED, digest_vocabulary
from ..checkpoint_files import UnfinishedFile
from ..data.dictionaries import DICTIONARY_FILE, load_dictionary, with_mask
from ..model.config import resolve_config
from ..model.roberta import LinformerRobertaModel
from .masked_lm_options import DynamicMaskedLMConfig


def masked_lm_dictionary(folder: Path) -> Dictionary:
    """Return the dictionary in a folder with <mask> added, as tasks of masked language modelling use it."""
    return with_mask(load_dictionary(folder / DICTIONARY_FILE))


def untrained_model(options: Mapping[str, Any], dictionary: Dictionary) -> LinformerRobertaModel:
    """Return a new model.

    Args:
        options: of ``LinformerRobertaConfig``, including ``max_positions``.
        dictionary: with <mask>.

    Raises:
        UserError: an option is not allowed.
    """
    config = resolve_config(OmegaConf.create(dict(options)), None)
    return LinformerRobertaModel.of_config(config, dictionary)


def save_untrained(
    folder: Path,
    data: Path,
    dictionary: Dictionary,
    options: Mapping[str, Any],
    state: Mapping[str, Tensor],
    inherited: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint of masked language modelling.

    Args:
        folder: output folder, which contains the dictionary and the subword model.
        data: final name of the folder.
        dictionary: dictionary of the folder.
        options: of the model.
        state: parameters of the model.
        inherited: the entries of ``TaskState`` from the source of the model.
    """
    cfg = OmegaConf.structured(FairseqConfig)
    task = DynamicMaskedLMConfig(data=str(data), tokens_per_sample=options["max_positions"])
    with open_dict(cfg):
        cfg.task = OmegaConf.structured(task)
        cfg.task._name = "dynamic_masked_lm"
        cfg.model = {"_name": "linformer_roberta", **options}
        cfg.criterion = {"_name": "masked_lm", "tpu": False}
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    checkpoint = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": dict(state),
        "optimizer_history": [history],
        "task_state": {"vocabulary": digest_vocabulary(dictionary, folder), **(inherited or {})},
        "extra_state": {"train_iterator": {"epoch": 1}, "val_loss": None},
    }
    with UnfinishedFile(str(folder / UNTRAINED)) as stream:
        torch.save(checkpoint, stream)
