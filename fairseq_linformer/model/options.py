"""Declarations of the model's options: the flags of ``fairseq-train`` and the keys of ``model`` in Hydra.

Here are those of the whole model; ``attention/`` declares those of single mechanisms. One flat dataclass has them all.
"""

# No postponed annotations: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import Field, dataclass, field, fields
from typing import Optional, TypeVar

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from ..attention.base import ATTENTIONS
from ..attention.linformer import PROJECTIONS, SHARINGS
from ..attention.options import PerLayer, option
from ..attention.positions import POSITIONS
from ..attention.projection import LinearProjection
from .architecture import POOLINGS
from .compat import ExampleFlags
from .parts import ACTIVATIONS

ATTENTION_CHOICES = ChoiceEnum(sorted(ATTENTIONS))
PROJECTION_CHOICES = ChoiceEnum(list(PROJECTIONS))
INITIALISATION_CHOICES = ChoiceEnum(list(LinearProjection.INITIALISATIONS))
SHARING_CHOICES = ChoiceEnum(list(SHARINGS))
POSITION_CHOICES = ChoiceEnum(list(POSITIONS))
ACTIVATION_CHOICES = ChoiceEnum(list(ACTIVATIONS))
POOLING_CHOICES = ChoiceEnum(list(POOLINGS))

# The options of E and F.
PROJECTION_OPTIONS = (
    "projection",
    "projection_init",
    "projection_multiplier",
    "projected_length",
    "adaptive_length",
    "sharing",
    "freeze_projection",
)


@dataclass
class AttentionOptions(FairseqDataclass):
    """The options that all attention mechanisms share. None is a default that depends on other options."""

    attention: ATTENTION_CHOICES = option("linformer", "attention mechanism of every layer")  # type: ignore[valid-type]
    projection: PROJECTION_CHOICES = option("linear", "how Linformer projects keys and values along the sequence")  # type: ignore[valid-type]
    projection_init: Optional[INITIALISATION_CHOICES] = option(  # type: ignore[valid-type]
        None, "initial values of E and F (default: segment-mean; johnson-lindenstrauss for projection=random)"
    )
    projection_multiplier: Optional[float] = option(
        None, "c of E = c W, where W is trained: Adam moves E by c times the learning rate (default: d / 4n, at most 1)"
    )
    projected_length: PerLayer = option(
        None,
        "k, 1 to max_positions: a number, one per layer (256,128,…), or FIRST..LAST layer (default: a quarter of n)",
        per_layer=True,
    )
    adaptive_length: bool = option(
        False, "a text of any length has k projected keys, or as many as tokens if these are fewer; else k l / n for l"
    )
    sharing: Optional[SHARING_CHOICES] = option(  # type: ignore[valid-type]
        None, "matrices that are the same among E and F (default: headwise; key-value for pooling)"
    )
    freeze_projection: bool = option(False, "do not train E and F")
    value_residual: bool = option(
        False, "mix the first layer's values into those of every other layer, with two learned weights per layer"
    )
    local_conv: int = option(
        0, "width (odd) of a depthwise convolution over the sequence, added to every attention; 0: none"
    )
    attention_bias: bool = option(True, "biases of the maps of queries, keys, values and output of attention")
    positions: POSITION_CHOICES = option(  # type: ignore[valid-type]
        "learned", "encoding of positions: an embedding of each position, or in attention rotary or ALiBi"
    )
    rotary_base: float = option(10_000.0, "positions=rotary: wave lengths go from 2 pi to about 2 pi times this")
    rotary_share: float = option(
        1.0, "positions=rotary: share of a head's dimensions that are rotated, an even number of dimensions"
    )
    max_positions: Optional[int] = option(None, "n: longest sequence, E and F's width (default: the task's length)")


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


Config = TypeVar("Config", bound=type)


def with_options_of_mechanisms(cls: Config) -> Config:
    """Add the options of every mechanism, None by default, to a class that becomes a dataclass (a class decorator)."""
    for mechanism in ATTENTIONS.values():
        for declared in fields(mechanism.Options):
            if declared.name in cls.__annotations__:  # inherited from another mechanism, which has added it
                continue
            cls.__annotations__[declared.name] = PerLayer if declared.metadata["per_layer"] else Optional[declared.type]
            help = f"attention={mechanism.name}: {declared.metadata['help']} (default: {declared.default})"
            setattr(cls, declared.name, field(default=None, metadata={**declared.metadata, "help": help}))
    return cls


@dataclass
@with_options_of_mechanisms
class LinformerRobertaConfig(RobertaOptions, ExampleFlags, AttentionOptions):
    """Options of ``linformer_roberta``: attention, fairseq's example, RoBERTa, mechanisms.

    ``configs/model/options.yaml`` lists them for Hydra; ``scripts/write_model_options.py`` writes it.
    """


OPTIONS: dict[str, Field] = {opt.name: opt for opt in fields(LinformerRobertaConfig) if opt.name != "_name"}


@dataclass
class ResolvedConfig(LinformerRobertaConfig):
    """Complete options from which a model is built (made by ``resolve_config``).

    The example's flags and ``encoder_layers_to_keep`` are None: they are merged into the other options.
    """

    projected_length: list[int] = field(default_factory=list)  # one per layer
    max_positions: int = 0
    encoder_layers: int = 0
    encoder_embed_dim: int = 0
    encoder_ffn_embed_dim: int = 0
    encoder_attention_heads: int = 0
    layernorm_embedding: bool = True
