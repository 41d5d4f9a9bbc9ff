"""The options of RoBERTa: its sizes, the layers around attention, and its training."""

# No postponed annotations: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from ..attention.base import get_attention
from ..attention.kernels.flex import MIN_HEAD_DIM
from ..attention.linformer import LinformerOptions
from ..attention.options import option
from ..errors import check
from .parts import ACTIVATIONS
from .validation import POOLINGS, check_probability

ACTIVATION_CHOICES = ChoiceEnum(list(ACTIVATIONS))
POOLING_CHOICES = ChoiceEnum(list(POOLINGS))


@dataclass
class RobertaOptions(FairseqDataclass):
    """Options of RoBERTa. None is the value of the architecture (``ARCHITECTURES``)."""

    encoder_layers: Optional[int] = option(None, "number of layers")
    encoder_embed_dim: Optional[int] = option(None, "d: embedding dimension")
    encoder_ffn_embed_dim: Optional[int] = option(None, "dimension of the feed-forward network's hidden layer")
    encoder_attention_heads: Optional[int] = option(None, "h: number of attention heads, a divisor of d")
    activation_fn: ACTIVATION_CHOICES = option("gelu", "activation of the feed-forward network and the LM head")  # type: ignore[valid-type]
    pooler_activation_fn: ACTIVATION_CHOICES = option("tanh", "activation of the classification head")  # type: ignore[valid-type]
    classifier_pooling: POOLING_CHOICES = option(  # type: ignore[valid-type]
        "cls", "input of a classification head: the features of <s>, or their mean over the text's positions"
    )
    gated_ffn: bool = option(
        False, "feed-forward network act(x U) * (x V) times W without biases (GeGLU) instead of act(x U + b) W + c"
    )
    encoder_normalize_before: bool = option(False, "layer norm before each block (pre-norm) instead of after it")
    first_attention_norm: bool = option(
        True, "with encoder_normalize_before: layer norm before the first layer's attention; false in ModernBERT"
    )
    layernorm_embedding: Optional[bool] = option(None, "layer norm on the embedding (default: true)")
    layer_norm_eps: float = option(1e-5, "added to the variance in every layer norm outside attention; BERT has 1e-12")
    norm_bias: bool = option(True, "biases of every layer norm outside attention")
    head_bias: bool = option(True, "bias of the first map of the LM head and of classification heads")
    pooler_norm: bool = option(False, "layer norm after the activation of classification heads, as in ModernBERT")
    dropout: float = option(0.1, "dropout probability of embeddings and of each block's output", training_only=True)
    attention_dropout: float = option(0.1, "dropout probability of attention weights", training_only=True)
    activation_dropout: float = option(
        0.0, "dropout probability after the feed-forward network's activation", training_only=True
    )
    pooler_dropout: float = option(0.0, "dropout probability in classification heads", training_only=True)
    encoder_layerdrop: float = option(
        0.0, "probability of skipping a layer in training (Fan et al. 2019)", training_only=True
    )
    encoder_layers_to_keep: Optional[str] = option(None, "layers to keep when pruning, comma-separated: 0,2,4")
    untie_weights_roberta: bool = option(False, "separate weight matrix for the LM head")
    load_checkpoint_heads: bool = option(
        False, "(re-)register and load classification heads of checkpoints", training_only=True
    )
    spectral_norm_classification_head: bool = option(False, "spectral normalisation of classification heads")
    checkpoint_activations: bool = option(
        False, "recompute activations in the backward pass to save memory", training_only=True
    )
    offload_activations: bool = option(
        False, "move checkpointed activations to the CPU; needs checkpoint_activations", training_only=True
    )
    compile_layers: bool = option(
        False, "run layers through torch.compile, which fuses operations other than matrix products", training_only=True
    )
    flex_attention: bool = option(
        False,
        "on a GPU: compute windows of linformer and longformer by a kernel without copies",
        training_only=True,
    )


def validate_training(config: Any) -> None:
    """Check the options that only fairseq's model has."""
    check_probability("encoder_layerdrop", config.encoder_layerdrop)
    recomputes, compiles = config.checkpoint_activations, config.compile_layers
    allowed = "false together with checkpoint_activations=true: the recomputation would draw other dropout masks"
    check("compile_layers", compiles, not (compiles and recomputes), allowed)
    allowed = "true only together with checkpoint_activations=true"
    check("offload_activations", config.offload_activations, recomputes or not config.offload_activations, allowed)
    if config.flex_attention:
        _validate_flex(config)


def _validate_flex(config: Any) -> None:
    windowed = config.attention in ("longformer", "alternating")
    if get_attention(config.attention).uses_projection(config):
        windowed = windowed or any(LinformerOptions.read(config).linformer_window)
    check("flex_attention", True, windowed, "false where no layer is longformer's or has a linformer_window")
    dropout = config.attention_dropout
    check("flex_attention", True, dropout == 0, f"false with attention_dropout={dropout}")
    check("flex_attention", True, config.positions != "alibi", "false with positions=alibi")
    size = config.encoder_embed_dim // config.encoder_attention_heads
    check("flex_attention", True, size >= MIN_HEAD_DIM, f"false with d_h={size}: heads need {MIN_HEAD_DIM} dimensions")
