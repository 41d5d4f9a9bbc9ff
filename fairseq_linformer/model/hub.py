"""Models from checkpoints: ours, those of fairseq's ``examples/linformer`` and of its RoBERTa."""

from argparse import Namespace
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task, prune_state_dict
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.roberta import RobertaHubInterface, RobertaModel
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from ..attention.base import get_attention
from ..checkpoint import check_fits, data_folder, read_checkpoint
from ..checkpoint import checkpoint_file as file_of
from ..data.dictionaries import DICTIONARY_FILE
from ..data.fairseq_encoders import SentencePieceEncoder, TokenizersEncoder
from ..data.subword_models import A_SUBWORD_MODEL, load_tokenizer, subword_model_options
from ..errors import UserError
from .architecture import PER_LAYER
from .compat import add_multipliers, rename_parameters
from .config import resolve_config
from .options import OPTIONS, ResolvedConfig

# For short use rather than long training.
LOADED = {"load_checkpoint_heads": True, "compile_layers": False, "flex_attention": False}


class HubInterface(RobertaHubInterface):
    """fairseq's hub interface with padded batches and ``classifier_pooling`` in ``predict``."""

    classify: Callable[..., Any]  # finetune.prediction.classify

    def predict(self, head: str, tokens: Tensor, return_logits: bool = False) -> Tensor:
        """Return log-probabilities, or logits, (B, classes), of token ids (B, n) or (n,), padded on the right."""
        logits, _ = self.model(torch.atleast_2d(tokens).to(self.device), classification_head_name=head)
        return logits if return_logits else logits.log_softmax(-1)

    def fill_mask(self, masked_input: str, topk: int = 5) -> list[tuple[str, float, str]]:
        """Return the most probable pieces for <mask>, each as (whole text, probability, piece)."""
        if not isinstance(self.bpe, TokenizersEncoder):
            return super().fill_mask(masked_input, topk)
        by_piece = copy(self)  # fairseq decodes each piece alone, without the space before it
        by_piece.bpe = SimpleNamespace(encode=self.bpe.encode, decode=self.bpe.text_of)
        return super(HubInterface, by_piece).fill_mask(masked_input, topk)


class PretrainedRoberta(RobertaModel):
    """fairseq's RobertaModel, with loading of checkpoints of other implementations."""

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        rename_parameters(state_dict)
        add_multipliers(state_dict, self)
        super().upgrade_state_dict_named(state_dict, name)

    def load_state_dict(self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None) -> Any:
        """Load the parameters of a checkpoint: ours, of fairseq's ``examples/linformer``, or of its RoBERTa.

        Raises:
            UserError: they do not fit this model; the message names the option to pass.
        """
        self.upgrade_state_dict(state_dict)
        pruned = bool(getattr(model_cfg, "encoder_layers_to_keep", None))
        state_dict = prune_state_dict(state_dict, model_cfg)
        if pruned:  # fairseq has recorded the pruning in model_cfg, which it saves, but not the new sizes
            with open_dict(model_cfg):
                for name in ("encoder_layers", *PER_LAYER):
                    model_cfg[name] = getattr(self.args, name)
            self.upgrade_state_dict(state_dict)  # again, because pruning renumbers layers
        if strict:
            check_fits(self, state_dict)
        return super().load_state_dict(state_dict, strict)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        checkpoint_file: str | None = None,
        data_name_or_path: str | None = None,
        bpe: str | None = None,
        **overrides: Any,
    ) -> HubInterface:
        """Load a checkpoint into fairseq's hub interface: encode, decode, extract_features, fill_mask, predict.

        It may be ours, of fairseq's ``examples/linformer``, or of fairseq's RoBERTa (``attention=softmax``).

        Args:
            model_name_or_path: folder of the checkpoint.
            checkpoint_file: its name in that folder; by default the best one of a run, or the one that was imported or
                converted.
            data_name_or_path: folder of dict.txt and of the subword model; by default the checkpoint's folder
                if it contains a dict.txt (of a fine-tuned checkpoint, the prepared task), else the folder that the
                checkpoint was trained on.
            bpe: fairseq's name of the subword model; by default that of the file in the data's folder.
            overrides: any option of the model, and of the rest of the checkpoint's configuration.

        Raises:
            FileNotFoundError: the checkpoint, its dictionary or its subword model is missing.
            UserError: the checkpoint cannot be read, an override is unknown, or override or vocabulary do not fit it.
        """
        folder = Path(model_name_or_path)
        checkpoint = file_of(folder) if checkpoint_file is None else folder / checkpoint_file
        state = read_checkpoint(checkpoint)
        cfg = state["cfg"]
        cls._adopt(cfg)
        data = Path(data_name_or_path or data_folder(checkpoint, cfg)).absolute()
        subword_model = subword_model_options(data, bpe)
        if not subword_model and bpe is None:
            raise FileNotFoundError(f"{data} has no {A_SUBWORD_MODEL}: name a bpe")
        if subword_model and (data / DICTIONARY_FILE).is_file():
            load_tokenizer(data)  # rejects another model's dictionary, which fairseq would accept
        try:
            _override(cfg, subword_model or {"bpe": str(bpe)}, {**LOADED, "data": str(data), **overrides})
            models, cfg, task = load_model_ensemble_and_task([str(checkpoint)], state=state)
        except OmegaConfBaseException as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"{checkpoint}: its configuration cannot be read ({reason})") from error
        hub = HubInterface(cfg, task, models[0])
        if isinstance(hub.bpe, SentencepieceBPE):
            hub.bpe = SentencePieceEncoder(cfg.bpe)
        return hub

    @classmethod
    def load(cls, checkpoint: Path, data: Path | None = None) -> HubInterface:
        """Load the file of a checkpoint as ``from_pretrained`` does, with an optional folder of data."""
        return cls.from_pretrained(str(checkpoint.parent), checkpoint.name, None if data is None else str(data))

    @classmethod
    def of_checkpoint(cls, state: dict[str, Any], dictionary: Dictionary) -> "PretrainedRoberta":
        """Build the model of a checkpoint, without its classification heads.

        Args:
            state: the result of ``read_checkpoint``.
            dictionary: of the checkpoint's task, with <mask>.

        Raises:
            UserError: the checkpoint has another model or dictionary.
        """
        config = cls.resolve(state["cfg"])
        model = cls.of_config(config, dictionary)
        model.load_state_dict(state["model"])
        return model

    @classmethod
    def resolve(cls, cfg: DictConfig) -> ResolvedConfig:
        """Return the complete model configuration of a checkpoint: ours, of the example, or of fairseq's RoBERTa.

        Raises:
            UserError: the checkpoint has another model, or an unknown task.
        """
        cls._adopt(cfg)
        return resolve_config(cfg.model, cfg.task.get("tokens_per_sample") or cfg.task.get("max_positions"))

    @classmethod
    def _adopt(cls, cfg: DictConfig) -> None:
        """Convert the configuration of a RoBERTa checkpoint to ours, in place."""
        registered = ARCH_MODEL_REGISTRY.get(cfg.model._name, type(None))
        if not issubclass(registered, RobertaModel):
            raise UserError(f"the checkpoint has a model of architecture {cfg.model._name}, which is no RoBERTa")
        if cfg.task._name not in TASK_REGISTRY:
            raise UserError(f"the checkpoint is of the task {cfg.task._name}, which is not registered with fairseq")
        if registered is not cls:
            cfg.model._name, cfg.model.attention = "linformer_roberta", "softmax"


def _override(cfg: DictConfig, subword_model: dict[str, str], overrides: dict[str, Any]) -> None:
    """Override options of a checkpoint's configuration in place; reject names that it does not have."""
    with open_dict(cfg):
        cfg.bpe = None  # otherwise fairseq keeps the checkpoint's bpe and changes only its options
    overwrite_args_by_name(cfg, subword_model)
    groups = [vars(group) if isinstance(group, Namespace) else group for group in cfg.values()]
    option_names = set(OPTIONS).union(*(group.keys() for group in groups if isinstance(group, (dict, DictConfig))))
    unknown = sorted(overrides.keys() - option_names)
    if unknown:
        raise UserError(f"{unknown[0]}={overrides[unknown[0]]}: there is no such option of the model, task or data")
    overwrite_args_by_name(cfg, overrides)
    with open_dict(cfg):  # an older checkpoint may lack options of the model
        for name in OPTIONS.keys() & overrides.keys():
            setattr(cfg.model, name, overrides[name])


def architecture_options(config: ResolvedConfig) -> dict[str, Any]:
    """Return the options from which a model is built, without those of training (``training_only``).

    They include ``attention_dropout=0`` for a mechanism without attention weights.
    """
    values = {name: getattr(config, name) for name, option in OPTIONS.items() if not option.metadata["training_only"]}
    options = {name: value for name, value in values.items() if value is not None}
    for name in options.keys() & set(PER_LAYER):
        numbers = options[name]
        options[name] = numbers[0] if len(set(numbers)) == 1 else ",".join(map(str, numbers))
    return options if get_attention(config.attention).HAS_WEIGHTS else {**options, "attention_dropout": 0.0}
