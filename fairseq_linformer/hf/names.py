"""The names of a model's parameters and options in fairseq and in transformers: in our models, and in its RoBERTa."""

import re
from collections.abc import Iterable

ENCODER = "encoder.sentence_encoder."
HEAD = "classification_heads."

# A name in transformers, as a regular expression, and in fairseq. HEAD stands for that of the classification head.
OURS = (
    (r"linformer_roberta\.(.*)", rf"{ENCODER}\1"),
    (r"lm_head\.decoder\.(.*)", r"encoder.lm_head.\1"),
    (r"lm_head\.(.*)", r"encoder.lm_head.\1"),
    (r"classifier\.(.*)", r"HEAD.\1"),
)
_LAYER, _OURS = r"roberta\.encoder\.layer\.(\d+)\.", rf"{ENCODER}layers.\1."
STOCK = (
    (r"roberta\.embeddings\.word_embeddings\.(.*)", rf"{ENCODER}embed_tokens.\1"),
    (r"roberta\.embeddings\.position_embeddings\.(.*)", rf"{ENCODER}embed_positions.\1"),
    (r"roberta\.embeddings\.LayerNorm\.(.*)", rf"{ENCODER}layernorm_embedding.\1"),
    (_LAYER + r"attention\.self\.query\.(.*)", rf"{_OURS}self_attn.q_proj.\2"),
    (_LAYER + r"attention\.self\.key\.(.*)", rf"{_OURS}self_attn.k_proj.\2"),
    (_LAYER + r"attention\.self\.value\.(.*)", rf"{_OURS}self_attn.v_proj.\2"),
    (_LAYER + r"attention\.output\.dense\.(.*)", rf"{_OURS}self_attn.out_proj.\2"),
    (_LAYER + r"attention\.output\.LayerNorm\.(.*)", rf"{_OURS}self_attn_layer_norm.\2"),
    (_LAYER + r"intermediate\.dense\.(.*)", rf"{_OURS}fc1.\2"),
    (_LAYER + r"output\.dense\.(.*)", rf"{_OURS}fc2.\2"),
    (_LAYER + r"output\.LayerNorm\.(.*)", rf"{_OURS}final_layer_norm.\2"),
    *OURS[1:],
)

STOCK_OPTIONS = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
STOCK_CONSTANTS = {"pad_token_id": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-5}  # fairseq knows no others
FIRST_POSITION = 2  # of the rows of its position embeddings: the padding index plus 1


def fairseq_names(names: Iterable[str], stock: bool, head: str) -> dict[str, str]:
    """The name in fairseq of each name in transformers that fairseq has.

    What fairseq does not have are, in stock RoBERTa, the pooler, types of tokens and numbers of positions.

    Args:
        names: in transformers.
        stock: whether they are of its RoBERTa.
        head: the classification head's name in fairseq.
    """
    found: dict[str, str] = {}
    for name in names:
        for pattern, ours in STOCK if stock else OURS:
            if match := re.fullmatch(pattern, name):
                found[name] = match.expand(ours).replace("HEAD.", f"{HEAD}{head}.", 1)
                break
    return found
