"""The names of a model's parameters and options in fairseq and in transformers: in our models, and in BERT's family."""

import re
from collections.abc import Iterable, Sequence

ENCODER = "encoder.sentence_encoder."
HEAD = "classification_heads."

# A name in transformers, as a regular expression, and in fairseq. HEAD stands for that of the classification head.
OURS = (
    (r"linformer_roberta\.(.*)", rf"{ENCODER}\1"),
    (r"lm_head\.decoder\.(.*)", r"encoder.lm_head.\1"),
    (r"lm_head\.(.*)", r"encoder.lm_head.\1"),
    (r"classifier\.(.*)", r"HEAD.\1"),
)


def _of_bert(prefix: str) -> tuple[tuple[str, str], ...]:
    """The embeddings and layers of BERT, whose names RoBERTa has too."""
    layer, ours = rf"{prefix}\.encoder\.layer\.(\d+)\.", rf"{ENCODER}layers.\1."
    return (
        (rf"{prefix}\.embeddings\.word_embeddings\.(.*)", rf"{ENCODER}embed_tokens.\1"),
        (rf"{prefix}\.embeddings\.position_embeddings\.(.*)", rf"{ENCODER}embed_positions.\1"),
        (rf"{prefix}\.embeddings\.LayerNorm\.(.*)", rf"{ENCODER}layernorm_embedding.\1"),
        (layer + r"attention\.self\.query\.(.*)", rf"{ours}self_attn.q_proj.\2"),
        (layer + r"attention\.self\.key\.(.*)", rf"{ours}self_attn.k_proj.\2"),
        (layer + r"attention\.self\.value\.(.*)", rf"{ours}self_attn.v_proj.\2"),
        (layer + r"attention\.output\.dense\.(.*)", rf"{ours}self_attn.out_proj.\2"),
        (layer + r"attention\.output\.LayerNorm\.(.*)", rf"{ours}self_attn_layer_norm.\2"),
        (layer + r"intermediate\.dense\.(.*)", rf"{ours}fc1.\2"),
        (layer + r"output\.dense\.(.*)", rf"{ours}fc2.\2"),
        (layer + r"output\.LayerNorm\.(.*)", rf"{ours}final_layer_norm.\2"),
    )


STOCK = (*_of_bert("roberta"), *OURS[1:])
BERT = (
    *_of_bert("bert"),
    (r"cls\.predictions\.transform\.dense\.(.*)", r"encoder.lm_head.dense.\1"),
    (r"cls\.predictions\.transform\.LayerNorm\.(.*)", r"encoder.lm_head.layer_norm.\1"),
    (r"cls\.predictions\.(?:decoder\.)?(weight|bias)", r"encoder.lm_head.\1"),
    (r"bert\.pooler\.dense\.(.*)", r"HEAD.dense.\1"),
    (r"classifier\.(weight|bias)", r"HEAD.out_proj.\1"),
)
_LAYER, _OF_LAYER = r"distilbert\.transformer\.layer\.(\d+)\.", rf"{ENCODER}layers.\1."
DISTILBERT = (
    *_of_bert("distilbert")[:3],
    (_LAYER + r"attention\.([qkv])_lin\.(.*)", rf"{_OF_LAYER}self_attn.\2_proj.\3"),
    (_LAYER + r"attention\.out_lin\.(.*)", rf"{_OF_LAYER}self_attn.out_proj.\2"),
    (_LAYER + r"sa_layer_norm\.(.*)", rf"{_OF_LAYER}self_attn_layer_norm.\2"),
    (_LAYER + r"ffn\.lin1\.(.*)", rf"{_OF_LAYER}fc1.\2"),
    (_LAYER + r"ffn\.lin2\.(.*)", rf"{_OF_LAYER}fc2.\2"),
    (_LAYER + r"output_layer_norm\.(.*)", rf"{_OF_LAYER}final_layer_norm.\2"),
    (r"vocab_transform\.(.*)", r"encoder.lm_head.dense.\1"),
    (r"vocab_layer_norm\.(.*)", r"encoder.lm_head.layer_norm.\1"),
    (r"vocab_projector\.(.*)", r"encoder.lm_head.\1"),
    (r"pre_classifier\.(.*)", r"HEAD.dense.\1"),
    (r"classifier\.(weight|bias)", r"HEAD.out_proj.\1"),
)

STOCK_OPTIONS = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
}
STOCK_CONSTANTS = {"pad_token_id": 1, "hidden_act": "gelu"}  # of what is exported as RoBERTa


def fairseq_names(names: Iterable[str], patterns: Sequence[tuple[str, str]], head: str) -> dict[str, str]:
    """The name in fairseq of each name in transformers that fairseq has.

    What fairseq does not have are, in stock RoBERTa, the pooler, types of tokens and numbers of positions.

    Args:
        names: in transformers.
        patterns: OURS, or those of another model.
        head: the classification head's name in fairseq.
    """
    found: dict[str, str] = {}
    for name in names:
        for pattern, ours in patterns:
            if match := re.fullmatch(pattern, name):
                found[name] = match.expand(ours).replace("HEAD.", f"{HEAD}{head}.", 1)
                break
    return found
