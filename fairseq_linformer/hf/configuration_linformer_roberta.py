"""Configuration of a Linformer RoBERTa model in transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from transformers import PretrainedConfig


class LinformerRobertaConfig(PretrainedConfig):
    """Options of ``linformer_roberta``, with the same names and meaning as in fairseq.

    Options that have a name in transformers, such as ``hidden_size``, can be accessed by that name too. Options of a
    mechanism, such as ``longformer_window``, are keyword arguments. The model validates them when it is built.

    Args:
        vocab_size: number of token ids.
        attention, projection, projection_init, projection_multiplier, projected_length, adaptive_length, sharing,
            freeze_projection, value_residual, local_conv: the attention; None is a default that depends on
            other options.
        attention_bias, norm_bias, head_bias: biases of attention's maps, of layer norms, and of the first map of heads.
        positions, rotary_base, rotary_share: encoding of positions.
        max_positions: n, the longest sequence in tokens.
        encoder_layers, encoder_embed_dim, encoder_ffn_embed_dim, encoder_attention_heads: the sizes.
        activation_fn, pooler_activation_fn: activations of the layers and the LM head, and of classification heads.
        classifier_pooling: input of the head of a text classifier: the features of <s> ("cls") or their mean over the
            text ("mean").
        pooler_norm: layer norm after the activation of classification heads.
        gated_ffn, encoder_normalize_before, layernorm_embedding, layer_norm_eps: as in ``EncoderLayer``.
        first_attention_norm: False if the first layer has no norm before attention.
        dropout, attention_dropout, activation_dropout, pooler_dropout: probabilities, at least 0 and below 1.
        initializer_range: standard deviation of new weights.
        score_scale: factor of the scores of a regression, by which training divided them.
        pad_token_id, bos_token_id, eos_token_id, tie_word_embeddings: as in every model of transformers.
    """

    model_type = "linformer_roberta"
    attribute_map = {  # noqa: RUF012 (transformers requires it)
        "hidden_size": "encoder_embed_dim",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
        "intermediate_size": "encoder_ffn_embed_dim",
        "max_position_embeddings": "max_positions",
        "hidden_act": "activation_fn",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "pooler_dropout",
    }
    write_code: ClassVar[Callable[[Path], None] | None] = None  # into a folder; only set in the package

    def __init__(
        self,
        vocab_size: int = 50265,
        attention: str = "linformer",
        projection: str = "linear",
        projection_init: str | None = None,
        projection_multiplier: float | None = None,
        projected_length: int | str | list[int] | None = None,
        adaptive_length: bool = False,
        sharing: str | None = None,
        freeze_projection: bool = False,
        value_residual: bool = False,
        local_conv: int = 0,
        attention_bias: bool = True,
        positions: str = "learned",
        rotary_base: float = 10_000.0,
        rotary_share: float = 1.0,
        max_positions: int = 512,
        encoder_layers: int = 12,
        encoder_embed_dim: int = 768,
        encoder_ffn_embed_dim: int = 3072,
        encoder_attention_heads: int = 12,
        activation_fn: str = "gelu",
        pooler_activation_fn: str = "tanh",
        classifier_pooling: str = "cls",
        gated_ffn: bool = False,
        encoder_normalize_before: bool = False,
        first_attention_norm: bool = True,
        layernorm_embedding: bool = True,
        layer_norm_eps: float = 1e-5,
        norm_bias: bool = True,
        head_bias: bool = True,
        pooler_norm: bool = False,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        activation_dropout: float = 0.0,
        pooler_dropout: float = 0.0,
        initializer_range: float = 0.02,
        score_scale: float = 1.0,
        bos_token_id: int = 0,
        pad_token_id: int = 1,
        eos_token_id: int = 2,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ):
        options = {name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")}
        special = ("bos_token_id", "pad_token_id", "eos_token_id", "tie_word_embeddings")
        for name in options.keys() - set(special):
            setattr(self, name, options[name])
        super().__init__(**{name: options[name] for name in special}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return all options, also by their names in transformers, for PEFT."""
        return super().to_dict() | {name: getattr(self, name) for name in self.attribute_map}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the contents of config.json, with one name per option."""
        return {name: value for name, value in super().to_diff_dict().items() if name not in self.attribute_map}

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **options: Any) -> None:
        """Save the configuration and the code of ``auto_map``; a model's ``save_pretrained`` calls this."""
        super().save_pretrained(save_directory, push_to_hub, **options)
        write_code = type(self).write_code
        if write_code is not None and getattr(self, "auto_map", None):
            write_code(Path(save_directory))
