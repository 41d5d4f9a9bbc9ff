"""Encoders that others have published, whose arithmetic is ours: BERT and its relatives.

Post-norm, learned positions, softmax attention: an encoder of ours with ``attention=softmax``. Of the types of tokens
only the first comes along, in the embeddings of positions, to which it is added.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from ..checkpoint import FIRST_POSITION
from ..errors import UserError, check, did_you_mean
from .names import BERT, DISTILBERT, ENCODER, HEAD, STOCK, STOCK_OPTIONS, fairseq_names

OF_PAIRS = (
    "its classifier knows a second text by token type 1, which does not come along: as a cross-encoder, of pairs, it "
    "gives other scores until it is fine-tuned; of single texts the same"
)
HEAD_NAME = "sentence_classification_head"  # what fairseq's tasks name it

# Their activations by the names of ours. All three of the tanh kind are one formula.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "gelu_fast": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "relu": "relu",
}


class Published(NamedTuple):
    """How a type of model becomes ours.

    Attributes:
        prefix: of the encoder's parameters where there is a head.
        names: patterns of the parameters' names.
        options: our options by the names of theirs, without the activation.
        constants: options that it does not name.
        activation: what it calls its activation.
        activations: those that can be.
        after_padding: whether its positions count from the padding index + 1, as RoBERTa's, not from 0.
    """

    prefix: str
    names: tuple[tuple[str, str], ...]
    options: Mapping[str, str]
    constants: Mapping[str, Any] = {}
    activation: str = "hidden_act"
    activations: tuple[str, ...] = tuple(ACTIVATIONS)
    after_padding: bool = False


_ROBERTA = Published("roberta.", STOCK, STOCK_OPTIONS, activations=("gelu",), after_padding=True)  # as its LM head
_DISTILBERT_OPTIONS = STOCK_OPTIONS | {
    "encoder_ffn_embed_dim": "hidden_dim",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}
del _DISTILBERT_OPTIONS["layer_norm_eps"]
PUBLISHED = {
    "bert": Published("bert.", BERT, STOCK_OPTIONS),
    "distilbert": Published(
        "distilbert.",
        DISTILBERT,
        _DISTILBERT_OPTIONS,
        {"layer_norm_eps": 1e-12, "pooler_activation_fn": "relu"},
        "activation",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
}
_PRESENT = {"gamma": "weight", "beta": "bias"}
REASONS = {
    "albert": "all its layers are one, and its embeddings are narrower than they",
    "bart": "it has a decoder",
    "big_bird": "its blocks are chosen in another way than ours",
    "deberta": "its attention adds terms of relative positions",
    "deberta-v2": "its attention adds terms of relative positions",
    "electra": "its embeddings may be narrower than its layers, and its head tells tokens that were replaced",
    "eurobert": "it has rotary positions and RMS norms",
    "gpt2": "it is a decoder",
    "longformer": "its windows are others than ours",
    "megatron-bert": "it is pre-norm",
    "modernbert": "it has rotary positions of two bases, norms without biases before each block and gated feed-forward "
    "networks",
    "mpnet": "its attention adds a bias of relative positions",
    "nomic_bert": "it has rotary positions and gated feed-forward networks",
    "nystromformer": "its convolution and landmarks are others than ours",
    "roberta-prelayernorm": "it is pre-norm",
    "t5": "it has a decoder and a bias of relative positions",
}


def check_published(content: Mapping[str, Any], file: str) -> None:
    """Refuses what is no encoder of these types, from its config.json alone.

    Raises:
        UserError: it is not; the message says which part.
    """
    named = content.get("model_type")
    if named not in PUBLISHED:
        known = ", ".join(["linformer_roberta", *PUBLISHED])
        reason = f": {REASONS[named]}" if named in REASONS else did_you_mean(str(named), PUBLISHED)
        raise UserError(f"model_type={named} in {file} cannot be imported, only {known}{reason}")
    kind = content.get("position_embedding_type", "absolute")
    check("position_embedding_type", kind, kind == "absolute", f"absolute, in {file}")
    for name in ("is_decoder", "add_cross_attention"):
        check(name, content.get(name), not content.get(name), f"false, in {file}: encoders alone can be imported")
    pruned = content.get("pruned_heads")
    check("pruned_heads", pruned, not pruned, f"empty, in {file}: layers have as many heads as each other here")


def published_options(config: PretrainedConfig) -> dict[str, Any]:
    """The options of the model of ours.

    Raises:
        UserError: its activation is none of ours.
    """
    kind = PUBLISHED[config.model_type]
    activation = getattr(config, kind.activation)
    check(kind.activation, activation, activation in kind.activations, f"one of {', '.join(kind.activations)}")
    return {
        "attention": "softmax",
        "max_positions": config.max_position_embeddings - _first_position(config),
        "activation_fn": ACTIVATIONS[activation],
        **{ours: getattr(config, theirs) for ours, theirs in kind.options.items()},
        **kind.constants,
    }


def _first_position(config: PretrainedConfig) -> int:
    return config.pad_token_id + 1 if PUBLISHED[config.model_type].after_padding else 0


def _present_name(name: str) -> str:
    """Google's first BERT models came from TensorFlow with its names of a norm's gains and biases."""
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda found: f"LayerNorm.{_PRESENT[found[1]]}", name)


def published_state(weights: Mapping[str, Tensor], config: PretrainedConfig) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters by their names in fairseq, and what is left out, in words.

    Args:
        weights: by their names in transformers; those of an encoder that was saved without a head lack its prefix.
        config: theirs.
    """
    kind = PUBLISHED[config.model_type]
    weights = {_present_name(name): tensor for name, tensor in weights.items()}
    if not any(name.startswith(kind.prefix) for name in weights):
        weights = {kind.prefix + name: tensor for name, tensor in weights.items()}
    names = fairseq_names(weights, kind.names, HEAD_NAME)
    head = {f"{HEAD}{HEAD_NAME}.{part}.weight" for part in ("dense", "out_proj")}
    if not head <= {*names.values()}:  # a pooler alone, or a head of another kind
        names = {theirs: ours for theirs, ours in names.items() if not ours.startswith(HEAD)}
    state = {ours: weights[theirs].float() for theirs, ours in names.items()}
    positions, first = f"{ENCODER}embed_positions.weight", _first_position(config)
    types = weights.get(f"{kind.prefix}embeddings.token_type_embeddings.weight")
    if positions in state:
        if types is not None and bool(types[0].any()):  # zeros in what came from fairseq
            state[positions] = state[positions] + types[0].float()
        if first != FIRST_POSITION:
            state[positions] = F.pad(state[positions][first:], (0, 0, FIRST_POSITION, 0))
    others = (name for name in weights if name not in names and ".embeddings." not in name)
    left_out = sorted({name.rpartition(".")[0] for name in others})
    remarks = [f"left out: {', '.join(left_out)}"] if left_out else []
    if head <= state.keys() and types is not None and len(types) > 1 and not torch.equal(types[0], types[1]):
        remarks.append(OF_PAIRS)
    return state, remarks
