"""Export of a checkpoint as a folder for transformers, without fairseq."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from fairseq.models.roberta import RobertaHubInterface
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from safetensors.torch import save
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from ..attention import get_attention
from ..checkpoint import FIRST_POSITION, checkpoint_file, read_checkpoint, read_task_state
from ..data.subword_models import JsonTokenizer, load_tokenizer
from ..data.task_record import Task, has_pairs
from ..data.tokenizer import Tokenizer
from ..errors import check
from ..files import staged_folder
from ..finetune.prediction import record_of
from ..model.options import PROJECTION_OPTIONS, ResolvedConfig
from ..model.roberta import LinformerRobertaModel as FairseqModel
from ..sentence_modules import write_sentence_modules
from . import MODELS, LinformerRobertaConfig
from . import modeling_linformer_roberta as models
from .bundle import CONFIGURATION, MODELING, write_code
from .card import FEATURES, model_card, usage_example
from .published import (
    HEAD,
    LINFORMER_NAMES,
    ROBERTA_CONSTANTS,
    ROBERTA_NAMES,
    ROBERTA_OPTIONS,
    ROBERTA_REQUIREMENTS,
    fairseq_names,
    modernbert_arguments,
    modernbert_weights,
)
from .tokenizer import word_starts, write_tokenizer

WEIGHTS_FILE = "model.safetensors"
CARD = "README.md"
TOLERANCE = 1e-5  # of outputs, in float32
WORD_STARTS = "words.begins"  # of models for token labels
WORDS_REMARK = (
    "all pieces of a word have the label of its first piece, with I- instead of B-; for words between single spaces, "
    "aggregation_strategy none, simple and first give the labels of linformer predict; average and max do so only if "
    "no label begins with B-"
)
PIECES_REMARK = (
    "its tokenizer does not mark where words begin: only the first piece of a word has its label, as in linformer "
    "predict, and no aggregation_strategy of transformers gives the labels of words"
)
DRAWN_HEAD_REMARK = "left out: its LM head, which is not trained; masked language modelling trains one"
NO_LM_HEAD_REMARK = "left out: its LM head, which ModernBERT's classifiers in transformers do not have"
CLASSIFIER_REMARK = "left out: its classifier; linformer finetune gives a checkpoint whose export has one"


ROBERTA, MODERNBERT = "Roberta", "ModernBert"  # families in transformers: the first part of their classes' names


class _Classes(NamedTuple):
    """Model classes for a type of label, or for models without labels.

    Attributes:
        model: class of this package.
        stock: classes of transformers, by family.
        problem_type: transformers' name of the type of label.
    """

    model: type[PreTrainedModel]
    stock: Mapping[str, type[PreTrainedModel]]
    problem_type: str | None = None


def _stock(task: str, *families: str) -> dict[str, type[PreTrainedModel]]:
    return {family: getattr(transformers, family + task) for family in families}


_TEXTS = (
    models.LinformerRobertaForSequenceClassification,
    _stock("ForSequenceClassification", ROBERTA, MODERNBERT),
)
_CLASSES: dict[str | None, _Classes] = {
    None: _Classes(models.LinformerRobertaForMaskedLM, _stock("ForMaskedLM", ROBERTA, MODERNBERT)),
    FEATURES: _Classes(models.LinformerRobertaModel, _stock("Model", ROBERTA, MODERNBERT)),
    "single-label": _Classes(*_TEXTS, "single_label_classification"),
    "multi-label": _Classes(*_TEXTS, "multi_label_classification"),
    "regression": _Classes(*_TEXTS, "regression"),
    "token-label": _Classes(  # RoBERTa's head has one layer
        models.LinformerRobertaForTokenClassification, _stock("ForTokenClassification", MODERNBERT)
    ),
}


@dataclass(frozen=True)
class Exported:
    """Checkpoint to export.

    Attributes:
        state: content of its file.
        hub: model, task and configuration.
        record: task of fine-tuning; None for a masked language model.
        tokenizer: tokenizer of the training.
    """

    state: dict[str, Any]
    hub: RobertaHubInterface
    record: Task | None
    tokenizer: Tokenizer

    @property
    def options(self) -> ResolvedConfig:
        return self.hub.model.args

    @property
    def head(self) -> str:
        """Name of the classification head."""
        return self.hub.task.cfg.classification_head_name if self.record else ""

    @property
    def label_type(self) -> str | None:
        """Type of label; None for a masked language model, FEATURES if its LM head is untrained."""
        if self.record is not None:
            return self.record.kind
        return FEATURES if self.has_drawn_head else None

    @property
    def has_drawn_head(self) -> bool:
        """True if the LM head has random values and was not trained."""
        return read_task_state(self.state.get("task_state"))["drawn_lm_head"]

    @property
    def sentence_modules(self) -> dict[str, str]:
        """Files of sentence-transformers; none with a classifier."""
        return {} if self.record else read_task_state(self.state.get("task_state"))["sentence_modules"]

    @cached_property
    def family(self) -> str | None:
        """Family in transformers with a model that equals this one; None if only this package has its class."""
        options, record = self.options, self.record
        if modernbert_arguments(options) is not None:
            family, head = MODERNBERT, {"pooler_activation_fn": "gelu", "pooler_norm": True}
        elif all(getattr(options, name) == value for name, value in ROBERTA_REQUIREMENTS.items()):
            family, head = ROBERTA, {"pooler_activation_fn": "tanh", "pooler_norm": False, "classifier_pooling": "cls"}
        else:
            return None
        has_equal_head = record is None or (
            record.scale == 1
            and family in _CLASSES[record.kind].stock
            and all(getattr(options, name) == value for name, value in head.items())
            # If the tokenizer marks words, only this package's class copies the label of a word's first piece.
            and (record.kind != "token-label" or isinstance(self.tokenizer, JsonTokenizer))
        )
        return family if has_equal_head else None

    def model_class(self, label_type: str | None) -> type[PreTrainedModel]:
        """Return the class in transformers for a type of label."""
        classes = _CLASSES[label_type]
        return classes.model if self.family is None else classes.stock.get(self.family, classes.model)

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a sequence."""
        cfg, longest = self.hub.task.cfg, self.options.max_positions
        return min(longest, (self.record and getattr(cfg, "truncate_to", None)) or longest)


def export(checkpoint: Path, out: Path, data: Path | None = None) -> list[str]:
    """Write a checkpoint as a folder of transformers: weights, configuration, tokenizer, model card and code.

    Before the folder is created, the model is loaded from it, and its outputs are compared with those in fairseq.

    Args:
        checkpoint: file, or folder of a run.
        out: folder to make.
        data: prepared folder with vocabulary and labels; by default that of the training.

    Returns:
        Remarks on differences that the folder cannot represent.

    Raises:
        FileNotFoundError: the checkpoint or its data is missing.
        UserError: the checkpoint cannot be read or has no counterpart in transformers, or `out` exists.
    """
    checkpoint = checkpoint_file(checkpoint)
    exported = _read(checkpoint, data)
    label_type = exported.label_type
    config, model_class = _configuration(exported), exported.model_class(label_type)
    with staged_folder(out, CARD) as (folder, card):
        mask, remarks = _write_tokenizer(exported, folder)
        weights = _weights(exported, config)
        if label_type == "token-label":
            starts = word_starts(exported.tokenizer, folder)
            if exported.family is None:
                all_starts = torch.ones(config.vocab_size).bool()
                weights[WORD_STARTS] = all_starts if starts is None else torch.from_numpy(starts)
            remarks.append(PIECES_REMARK if starts is None else WORDS_REMARK)
        if label_type == FEATURES:
            remarks.append(DRAWN_HEAD_REMARK)
        if exported.record is not None and exported.family == MODERNBERT:
            remarks.append(NO_LM_HEAD_REMARK)
        if exported.record is None and any(name.startswith(HEAD) for name in exported.state["model"]):  # imported
            remarks.append(CLASSIFIER_REMARK)
        (folder / WEIGHTS_FILE).write_bytes(save(weights, {"format": "pt"}))  # save_file would restrict its mode
        config.architectures = [model_class.__name__]
        config.save_pretrained(folder)
        if exported.family is None:
            write_code(folder)
        write_sentence_modules(exported.sentence_modules, folder)
        _check(exported, model_class, folder)
        pairs = exported.record is not None and has_pairs(Path(exported.hub.task.cfg.data))
        code = usage_example(label_type, mask, pairs, bool(exported.sentence_modules), exported.family is None)
        card.write(model_card(checkpoint.parent, exported.state, exported.options, label_type, code, remarks))
    return remarks


def _read(checkpoint: Path, data: Path | None) -> Exported:
    state = read_checkpoint(checkpoint)
    spectral_norm = FairseqModel.resolve(state["cfg"]).spectral_norm_classification_head
    check("spectral_norm_classification_head", spectral_norm, not spectral_norm, "false for an export")
    hub = FairseqModel.load(checkpoint, data)
    hub.eval()
    record = record_of(hub.task, checkpoint) if isinstance(hub.task, SentencePredictionTask) else None
    return Exported(state, hub, record, load_tokenizer(Path(hub.task.cfg.data)))


def _configuration(exported: Exported) -> PretrainedConfig:
    options, record = exported.options, exported.record
    common: dict[str, Any] = {
        "vocab_size": len(exported.hub.task.source_dictionary),
        "tie_word_embeddings": not options.untie_weights_roberta,
        "dtype": "float32",
    }
    if record is not None:
        names = record.classes or ("score",)
        common |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
        common["problem_type"] = _CLASSES[record.kind].problem_type
        if record.kind == "regression":  # CrossEncoder of sentence-transformers would apply a sigmoid
            common["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    if exported.family == MODERNBERT:
        stock_options = modernbert_arguments(options) or {}
        config = transformers.ModernBertConfig(**common, **stock_options, classifier_activation="gelu")
        for name in ("global_rope_theta", "local_rope_theta"):  # for version 4; version 5 keeps them in rope_parameters
            setattr(config, name, stock_options[name])
        return config
    if exported.family == ROBERTA:
        return transformers.RobertaConfig(
            **common,
            **{stock_name: getattr(options, name) for name, stock_name in ROBERTA_OPTIONS.items()},
            **ROBERTA_CONSTANTS,
            classifier_dropout=options.pooler_dropout,
            max_position_embeddings=options.max_positions + FIRST_POSITION,
            type_vocab_size=1,
            bos_token_id=0,
            eos_token_id=2,
        )
    mechanism = get_attention(options.attention)
    # Also those that are None: from_pretrained accepts only options in the configuration.
    mechanism_options = {option.name for option in fields(mechanism.Options)}
    option_names = {*inspect.signature(LinformerRobertaConfig).parameters, *mechanism_options}
    option_names -= set() if mechanism.uses_projection(options) else {*PROJECTION_OPTIONS}
    values: dict[str, Any] = {name: getattr(options, name, None) for name in sorted(option_names)}
    values = {name: value for name, value in values.items() if value is not None or name in mechanism_options}
    if record is not None:
        common["score_scale"] = record.scale
    auto_map = {"AutoConfig": f"{CONFIGURATION.stem}.{LinformerRobertaConfig.__name__}"}
    auto_map |= {auto.__name__: f"{MODELING.stem}.{model.__name__}" for auto, model in MODELS.items()}
    return LinformerRobertaConfig(**common, **values, auto_map=auto_map)


def _weights(exported: Exported, config: PretrainedConfig) -> dict[str, Tensor]:
    """Return the tensors by their names in transformers, each once.

    All types of models include the LM head if it is trained. The exception is a classifier of ModernBERT, whose head
    has the same parameter names.
    """
    names: dict[str, None] = {}
    is_modernbert = exported.family == MODERNBERT
    label_types = [exported.label_type, None] if exported.record else [None]
    for label_type in label_types[:1] if is_modernbert else label_types:
        with torch.device("meta"):
            names |= dict.fromkeys(exported.model_class(label_type)(config).state_dict())
    if config.tie_word_embeddings:
        names.pop("decoder.weight" if is_modernbert else "lm_head.decoder.weight", None)
    if exported.has_drawn_head:
        lm_head = ("head.", "decoder.") if is_modernbert else "lm_head."
        names = {name: None for name in names if not name.startswith(lm_head)}
    state = exported.hub.model.state_dict()
    if is_modernbert:
        return modernbert_weights(names, state, exported.head)
    sources = fairseq_names(names, LINFORMER_NAMES if exported.family is None else ROBERTA_NAMES, exported.head)
    weights = {name: state[source].contiguous() for name, source in sources.items()}
    if exported.family == ROBERTA:
        types = "roberta.embeddings.token_type_embeddings.weight"
        weights[types] = torch.zeros(1, exported.options.encoder_embed_dim)
        if not exported.has_drawn_head:
            weights["lm_head.decoder.bias"] = weights["lm_head.decoder.bias"].clone()  # because lm_head.bias shares it
    return weights


def _write_tokenizer(exported: Exported, folder: Path) -> tuple[str, list[str]]:
    """Write the tokenizer in the formats of transformers and fairseq; return the name of <mask>, and remarks."""
    cfg, remarks = exported.hub.task.cfg, list[str]()
    truncation = str(getattr(cfg, "truncation", "head")) if exported.record else "head"
    if truncation == "head-tail":
        remarks.append(
            f"it was trained on head and tail of texts over {exported.longest} tokens; the tokenizer keeps their head"
        )
    mask = write_tokenizer(
        exported.tokenizer,
        folder,
        max_length=exported.longest,
        truncation_side="left" if truncation == "tail" else "right",
        init_token=exported.record is None or cfg.init_token is not None,
        separator=exported.record is None or cfg.separator_token is not None,
        one_line=exported.record is not None,
    )
    return mask, remarks


@torch.inference_mode()
def _check(exported: Exported, model_class: type[PreTrainedModel], folder: Path) -> None:
    """Compare the exported model's outputs with fairseq's, for a sequence of maximum length and a padded one."""
    length, pad = exported.options.max_positions, 1
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, len(exported.hub.task.source_dictionary), (2, length), generator=generator)
    tokens[1, (length + 1) // 2 :] = pad
    is_token = tokens != pad
    model = model_class.from_pretrained(folder).eval()
    actual = model(tokens, attention_mask=is_token.long())[0]
    if exported.record is None:
        expected = exported.hub.model(tokens, features_only=exported.label_type == FEATURES)[0]
    else:
        expected = exported.hub.model(tokens, classification_head_name=exported.head)[0] * exported.record.scale
    if isinstance(model, models.LinformerRobertaForTokenClassification):
        expected = model.returned(expected, tokens)
    if actual.dim() == 3:
        actual, expected = actual[is_token], expected[is_token]
    difference = float((actual - expected).abs().max() / expected.abs().max().clamp(min=1))
    if not difference <= TOLERANCE:  # also if it is nan
        raise RuntimeError(f"{folder}: outputs differ from fairseq's by {difference:.1e}, {TOLERANCE} is allowed")
