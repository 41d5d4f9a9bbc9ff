"""Parameter names and options of models in fairseq and in transformers.

The models are those of this package, RoBERTa, BERT and its variants, and ModernBERT.

RoBERTa, BERT and its variants are post-norm with learned positions and full attention (``attention=softmax``). Only
their first token type is used: its embedding is added to those of positions. ModernBERT (Warner et al. 2024, arXiv
2412.13663) is pre-norm with rotary positions and ``attention=alternating``, without biases.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PretrainedConfig

from ..attention.alternating import AlternatingOptions
from ..checkpoint import FIRST_POSITION
from ..errors import check

ENCODER = "encoder.sentence_encoder."
HEAD = "classification_heads."

# Parameter names in transformers, as regular expressions, and in fairseq. HEAD is replaced by the name of the head.
LINFORMER_NAMES = (
    (r"linformer_roberta\.(.*)", rf"{ENCODER}\1"),
    (r"lm_head\.decoder\.(.*)", r"encoder.lm_head.\1"),
    (r"lm_head\.(.*)", r"encoder.lm_head.\1"),
    (r"classifier\.(.*)", r"HEAD.\1"),
)


def _bert_encoder(prefix: str) -> tuple[tuple[str, str], ...]:
    """Return the names of embeddings and layers in BERT and RoBERTa."""
    layer, our_layer = rf"{prefix}\.encoder\.layer\.(\d+)\.", rf"{ENCODER}layers.\1."
    return (
        (rf"{prefix}\.embeddings\.word_embeddings\.(.*)", rf"{ENCODER}embed_tokens.\1"),
        (rf"{prefix}\.embeddings\.position_embeddings\.(.*)", rf"{ENCODER}embed_positions.\1"),
        (rf"{prefix}\.embeddings\.LayerNorm\.(.*)", rf"{ENCODER}layernorm_embedding.\1"),
        (layer + r"attention\.self\.([qkv])\w+\.(.*)", rf"{our_layer}self_attn.\2_proj.\3"),  # query, key, value
        (layer + r"attention\.output\.dense\.(.*)", rf"{our_layer}self_attn.out_proj.\2"),
        (layer + r"attention\.output\.LayerNorm\.(.*)", rf"{our_layer}self_attn_layer_norm.\2"),
        (layer + r"intermediate\.dense\.(.*)", rf"{our_layer}fc1.\2"),
        (layer + r"output\.dense\.(.*)", rf"{our_layer}fc2.\2"),
        (layer + r"output\.LayerNorm\.(.*)", rf"{our_layer}final_layer_norm.\2"),
    )


ROBERTA_NAMES = (*_bert_encoder("roberta"), *LINFORMER_NAMES[1:])
BERT_NAMES = (
    *_bert_encoder("bert"),
    (r"cls\.predictions\.transform\.dense\.(.*)", r"encoder.lm_head.dense.\1"),
    (r"cls\.predictions\.transform\.LayerNorm\.(.*)", r"encoder.lm_head.layer_norm.\1"),
    (r"cls\.predictions\.(?:decoder\.)?(weight|bias)", r"encoder.lm_head.\1"),
    (r"bert\.pooler\.dense\.(.*)", r"HEAD.dense.\1"),
    (r"classifier\.(weight|bias)", r"HEAD.out_proj.\1"),
)
_LAYER, _OUR_LAYER = r"distilbert\.transformer\.layer\.(\d+)\.", rf"{ENCODER}layers.\1."
DISTILBERT_NAMES = (
    *_bert_encoder("distilbert")[:3],
    (_LAYER + r"attention\.([qkv])_lin\.(.*)", rf"{_OUR_LAYER}self_attn.\2_proj.\3"),
    (_LAYER + r"attention\.out_lin\.(.*)", rf"{_OUR_LAYER}self_attn.out_proj.\2"),
    (_LAYER + r"sa_layer_norm\.(.*)", rf"{_OUR_LAYER}self_attn_layer_norm.\2"),
    (_LAYER + r"ffn\.lin1\.(.*)", rf"{_OUR_LAYER}fc1.\2"),
    (_LAYER + r"ffn\.lin2\.(.*)", rf"{_OUR_LAYER}fc2.\2"),
    (_LAYER + r"output_layer_norm\.(.*)", rf"{_OUR_LAYER}final_layer_norm.\2"),
    (r"vocab_transform\.(.*)", r"encoder.lm_head.dense.\1"),
    (r"vocab_layer_norm\.(.*)", r"encoder.lm_head.layer_norm.\1"),
    (r"vocab_projector\.(.*)", r"encoder.lm_head.\1"),
    (r"pre_classifier\.(.*)", r"HEAD.dense.\1"),
    (r"classifier\.(weight|bias)", r"HEAD.out_proj.\1"),
)
_LAYER, _OUR_LAYER = r"model\.layers\.(\d+)\.", rf"{ENCODER}layers.\1."
MODERNBERT_NAMES = (
    (r"model\.embeddings\.tok_embeddings\.(.*)", rf"{ENCODER}embed_tokens.\1"),
    (r"model\.embeddings\.norm\.(.*)", rf"{ENCODER}layernorm_embedding.\1"),
    (_LAYER + r"attn_norm\.(.*)", rf"{_OUR_LAYER}self_attn_layer_norm.\2"),
    (_LAYER + r"attn\.([qkv]_proj)\.(.*)", rf"{_OUR_LAYER}self_attn.\2.\3"),  # parts of Wqkv
    (_LAYER + r"attn\.Wo\.(.*)", rf"{_OUR_LAYER}self_attn.out_proj.\2"),
    (_LAYER + r"mlp_norm\.(.*)", rf"{_OUR_LAYER}final_layer_norm.\2"),
    (_LAYER + r"mlp\.Wi\.(.*)", rf"{_OUR_LAYER}fc1.\2"),
    (_LAYER + r"mlp\.Wo\.(.*)", rf"{_OUR_LAYER}fc2.\2"),
    (r"model\.final_norm\.(.*)", rf"{ENCODER}layer_norm.\1"),
    (r"lm_head\.dense\.(.*)", r"encoder.lm_head.dense.\1"),  # its name in transformers is "head", as in classifiers
    (r"lm_head\.norm\.(.*)", r"encoder.lm_head.layer_norm.\1"),
    (r"decoder\.(weight|bias)", r"encoder.lm_head.\1"),
    (r"classifier_head\.(.*)", r"HEAD.\1"),
    (r"classifier\.(weight|bias)", r"HEAD.out_proj.\1"),
)
QKV = ("q_proj", "k_proj", "v_proj")  # in the order of ModernBERT's Wqkv

ROBERTA_OPTIONS = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
}
ROBERTA_CONSTANTS = {"pad_token_id": 1, "hidden_act": "gelu"}  # of exports as RoBERTa
ROBERTA_REQUIREMENTS = {  # options of a model that equals a RoBERTa of transformers
    **{"attention": "softmax", "positions": "learned", "activation_fn": "gelu", "layernorm_embedding": True},
    **{"attention_bias": True, "norm_bias": True, "head_bias": True},
    **{"local_conv": 0, "gated_ffn": False, "value_residual": False, "encoder_normalize_before": False},
}
PAIRS_REMARK = (
    "its classifier marks a second text by token type 1, which is left out: scores of pairs differ until it is "
    "fine-tuned; scores of single texts are the same"
)
HEAD_NAME = "sentence_classification_head"  # of fairseq's tasks

# Activations in transformers and in this package. gelu_new, gelu_fast and gelu_pytorch_tanh are the same formula.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "gelu_fast": "gelu_accurate",
    "gelu_pytorch_tanh": "gelu_accurate",
    "relu": "relu",
}


def _rename_norms(weights: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """Replace TensorFlow's names of gains and biases of norms, which Google's first BERT models have."""
    renamed = dict(weights)
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        renamed = {name.replace(old, new): tensor for name, tensor in renamed.items()}
    return renamed


def _no_options(config: PretrainedConfig) -> dict[str, Any]:
    return {}


class Published(NamedTuple):
    """Conversion of a type of model in transformers to ours.

    Attributes:
        prefix: prefix of the encoder's parameters in models with a head.
        names: patterns of parameter names.
        options: names of options in this package and in transformers, without the activation.
        constants: options that are not in its configuration.
        activation: name of the activation option.
        activations: supported values of the activation.
        after_padding: True if positions count from the padding index + 1, as in RoBERTa, not from 0.
        derive_options: function of the configuration that returns further options.
        prepare: function of the weights and the configuration that returns weights with the names in `names`.
    """

    prefix: str
    names: tuple[tuple[str, str], ...]
    options: Mapping[str, str] = ROBERTA_OPTIONS
    constants: Mapping[str, Any] = {}
    activation: str = "hidden_act"
    activations: tuple[str, ...] = tuple(ACTIVATIONS)
    after_padding: bool = False
    derive_options: Callable[[PretrainedConfig], dict[str, Any]] = _no_options
    prepare: Callable[[Mapping[str, Tensor], PretrainedConfig], dict[str, Tensor]] = _rename_norms


MODERNBERT_OPTIONS = {
    **{name: ROBERTA_OPTIONS[name] for name in ROBERTA_OPTIONS if name.startswith("encoder_")},
    "dropout": "embedding_dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "mlp_dropout",
    "pooler_dropout": "classifier_dropout",
    "layer_norm_eps": "norm_eps",
    "attention_bias": "attention_bias",
    "norm_bias": "norm_bias",
    "head_bias": "classifier_bias",
    "classifier_pooling": "classifier_pooling",
}
MODERNBERT_CONSTANTS = {
    "attention": "alternating",
    "positions": "rotary",
    "gated_ffn": True,
    "encoder_normalize_before": True,
    "first_attention_norm": False,
}


def _modernbert_options(config: PretrainedConfig) -> dict[str, Any]:
    """Return the options of layers, positions and heads; fields of `config` differ between versions of transformers."""
    for name, allowed in (("mlp_bias", False), ("decoder_bias", True)):
        check(name, getattr(config, name), getattr(config, name) == allowed, str(allowed).lower())
    activation, expected = config.classifier_activation, config.hidden_activation
    check("classifier_activation", activation, activation == expected, f"hidden_activation={expected}")
    layers, every = config.num_hidden_layers, getattr(config, "global_attn_every_n_layers", 3)
    layer_types = getattr(config, "layer_types", None)
    full = [layer for layer in range(layers) if layer % every == 0]
    if layer_types is not None:
        full = [layer for layer in range(layers) if layer_types[layer] == "full_attention"]
    first = full[0] if full else layers
    every = full[1] - first if len(full) > 1 else layers
    is_regular = first < every and full == [*range(first, layers, every)]
    check("layer_types", layer_types, is_regular, "full attention in every n-th layer")
    if (rope := getattr(config, "rope_parameters", None)) is not None:
        rope_types = {values["rope_type"] for values in rope.values()}
        check("rope_type", ", ".join(sorted(rope_types)), rope_types == {"default"}, "default")
        bases = [rope[layer_type]["rope_theta"] for layer_type in ("full_attention", "sliding_attention")]
    else:
        bases = [config.global_rope_theta, config.local_rope_theta or config.global_rope_theta]
    return {
        "alternating_window": config.local_attention // 2 * 2,
        "alternating_every": every,
        "alternating_first": first,
        "rotary_base": float(bases[0]),
        "alternating_rotary_base": float(bases[1]),
        "pooler_activation_fn": ACTIVATIONS[activation],
        "pooler_norm": True,
    }


def _split_modernbert(weights: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """Split each Wqkv into the maps of queries, keys and values, and name the head after its task."""
    task = (config.architectures or [""])[0]
    classifies = task.endswith(("ForSequenceClassification", "ForTokenClassification"))
    head = "lm_head." if "decoder.bias" in weights else "classifier_head." if classifies else "other_head."
    split: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".Wqkv." in name:
            split |= {name.replace("Wqkv", part): weight for part, weight in zip(QKV, tensor.chunk(3), strict=True)}
        else:
            split[re.sub(r"^head\.", head, name)] = tensor
    return split


# RoBERTa's LM head always has gelu.
_ROBERTA = Published("roberta.", ROBERTA_NAMES, activations=("gelu",), after_padding=True)
_DISTILBERT_OPTIONS = {name: hf_name for name, hf_name in ROBERTA_OPTIONS.items() if name != "layer_norm_eps"}
_DISTILBERT_OPTIONS |= {"encoder_ffn_embed_dim": "hidden_dim", "dropout": "dropout"}
_DISTILBERT_OPTIONS["attention_dropout"] = "attention_dropout"
_DISTILBERT_CONSTANTS = {"layer_norm_eps": 1e-12, "pooler_activation_fn": "relu"}
PUBLISHED = {
    "bert": Published("bert.", BERT_NAMES),
    "distilbert": Published("distilbert.", DISTILBERT_NAMES, _DISTILBERT_OPTIONS, _DISTILBERT_CONSTANTS, "activation"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "modernbert": Published(
        "model.",
        MODERNBERT_NAMES,
        MODERNBERT_OPTIONS,
        MODERNBERT_CONSTANTS,
        "hidden_activation",
        derive_options=_modernbert_options,
        prepare=_split_modernbert,
    ),
}


def modernbert_arguments(options: Any) -> dict[str, Any] | None:
    """Return the arguments of transformers' ModernBertConfig for a resolved configuration.

    None if no ModernBERT equals the model. Names are those of transformers 4, which version 5 also reads.
    """
    is_modernbert = all(getattr(options, name) == value for name, value in MODERNBERT_CONSTANTS.items())
    layers = AlternatingOptions.read(options)
    is_modernbert = is_modernbert and options.rotary_share == 1 and options.layernorm_embedding
    is_modernbert = is_modernbert and (layers.alternating_first, layers.alternating_full) == (0, "softmax")
    if not is_modernbert or options.activation_fn != "gelu" or options.local_conv or options.value_residual:
        return None
    return {
        **{hf_name: getattr(options, name) for name, hf_name in MODERNBERT_OPTIONS.items()},
        "hidden_activation": "gelu",
        "max_position_embeddings": options.max_positions,
        "global_attn_every_n_layers": layers.alternating_every,
        "local_attention": layers.alternating_window,
        "global_rope_theta": options.rotary_base,
        "local_rope_theta": layers.alternating_rotary_base or options.rotary_base,
        "pad_token_id": 1,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 0),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    }


def modernbert_weights(names: Iterable[str], state: Mapping[str, Tensor], head: str) -> dict[str, Tensor]:
    """Return the tensors of a ModernBERT in transformers by name.

    Args:
        names: names of the tensors.
        state: parameters of the model, by their names in fairseq.
        head: name of the classification head in fairseq; empty for a masked language model.
    """
    weights: dict[str, Tensor] = {}
    for name in names:
        renamed = re.sub(r"^head\.", "classifier_head." if head else "lm_head.", name)
        parts = [renamed.replace("Wqkv", part) for part in QKV] if ".Wqkv." in name else [renamed]
        sources = fairseq_names(parts, MODERNBERT_NAMES, head)
        weights[name] = torch.cat([state[source] for source in sources.values()])
    return weights


def fairseq_names(names: Iterable[str], patterns: Sequence[tuple[str, str]], head: str) -> dict[str, str]:
    """Translate names in transformers to names in fairseq, without those that fairseq does not have.

    Args:
        names: in transformers.
        patterns: LINFORMER_NAMES, or those of another model.
        head: name of the classification head in fairseq.
    """
    translated: dict[str, str] = {}
    for name in names:
        for pattern, fairseq_name in patterns:
            if match := re.fullmatch(pattern, name):
                translated[name] = match.expand(fairseq_name).replace("HEAD.", f"{HEAD}{head}.", 1)
                break
    return translated


def check_published(content: Mapping[str, Any], file: str) -> None:
    """Reject models that are not encoders of the supported types, by their config.json."""
    family = content.get("model_type")
    check(f"{file}: model_type", family, family in PUBLISHED, f"one of linformer_roberta, {', '.join(PUBLISHED)}")
    embedding, is_decoder = content.get("position_embedding_type", "absolute"), content.get("is_decoder")
    check(f"{file}: position_embedding_type", embedding, embedding == "absolute", "absolute")
    check(f"{file}: is_decoder", is_decoder, not is_decoder, "false: only encoders can be imported")


def published_options(config: PretrainedConfig) -> dict[str, Any]:
    """Return this package's options for a configuration of transformers."""
    spec = PUBLISHED[config.model_type]
    activation = getattr(config, spec.activation)
    check(spec.activation, activation, activation in spec.activations, f"one of {', '.join(spec.activations)}")
    return {
        "attention": "softmax",
        "max_positions": config.max_position_embeddings - _first_position(config),
        "activation_fn": ACTIVATIONS[activation],
        **{fairseq_name: getattr(config, hf_name) for fairseq_name, hf_name in spec.options.items()},
        **spec.constants,
        **spec.derive_options(config),
    }


def _first_position(config: PretrainedConfig) -> int:
    return config.pad_token_id + 1 if PUBLISHED[config.model_type].after_padding else 0


def published_state(weights: Mapping[str, Tensor], config: PretrainedConfig) -> tuple[dict[str, Tensor], list[str]]:
    """Return the parameters by their names in fairseq, and remarks on omitted ones.

    Args:
        weights: tensors by their names in transformers, which have no prefix if the encoder was saved without a head.
        config: configuration of the model.
    """
    spec = PUBLISHED[config.model_type]
    weights = spec.prepare(weights, config)
    if not any(name.startswith(spec.prefix) for name in weights):
        weights = {spec.prefix + name: tensor for name, tensor in weights.items()}
    names = fairseq_names(weights, spec.names, HEAD_NAME)
    head = {f"{HEAD}{HEAD_NAME}.{part}.weight" for part in ("dense", "out_proj")}
    if not head <= {*names.values()}:  # only a pooler, or a head of another type
        names = {hf_name: fairseq_name for hf_name, fairseq_name in names.items() if not fairseq_name.startswith(HEAD)}
    state = {fairseq_name: weights[hf_name].float() for hf_name, fairseq_name in names.items()}
    positions, first_position = f"{ENCODER}embed_positions.weight", _first_position(config)
    types = weights.get(f"{spec.prefix}embeddings.token_type_embeddings.weight")
    if positions in state:
        if types is not None and bool(types[0].any()):  # zero in exports of this package
            state[positions] = state[positions] + types[0].float()
        if first_position != FIRST_POSITION:
            state[positions] = F.pad(state[positions][first_position:], (0, 0, FIRST_POSITION, 0))
    omitted = {name.rpartition(".")[0] for name in weights if name not in names and ".embeddings." not in name}
    remarks = [f"left out: {', '.join(sorted(omitted))}"] if omitted else []
    if head <= state.keys() and types is not None and len(types) > 1 and not torch.equal(types[0], types[1]):
        remarks.append(PAIRS_REMARK)
    return state, remarks
