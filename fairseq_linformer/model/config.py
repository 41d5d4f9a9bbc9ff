"""Every option of the model, in one flat dataclass: flags of ``fairseq-train`` and keys of ``model`` in Hydra alike."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import Field, dataclass, field, fields
from typing import Optional, TypeVar

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from ..attention.linformer import PROJECTIONS, SHARINGS
from ..attention.options import PerLayer, option
from ..attention.positions import POSITIONS
from ..attention.projection import LinearProjection
from ..attention.registry import ATTENTIONS
from .parts import ACTIVATIONS


def _sizes(layers: int, embed_dim: int) -> dict[str, int]:
    sizes = {"encoder_layers": layers, "encoder_embed_dim": embed_dim}
    return {**sizes, "encoder_ffn_embed_dim": 4 * embed_dim, "encoder_attention_heads": embed_dim // 64}


ARCHITECTURES: dict[str, dict[str, int]] = {
    "linformer_roberta_tiny": _sizes(4, 256),
    "linformer_roberta_small": _sizes(6, 512),
    "linformer_roberta_base": _sizes(12, 768),
    "linformer_roberta_large": _sizes(24, 1024),
}

ATTENTION_CHOICES = ChoiceEnum(sorted(ATTENTIONS))
PROJECTION_CHOICES = ChoiceEnum(list(PROJECTIONS))
INITIALISATION_CHOICES = ChoiceEnum(list(LinearProjection.INITIALISATIONS))
SHARING_CHOICES = ChoiceEnum(list(SHARINGS))
POSITION_CHOICES = ChoiceEnum(list(POSITIONS))
ACTIVATION_CHOICES = ChoiceEnum(list(ACTIVATIONS))


Config = TypeVar("Config", bound=type)


def with_options_of_mechanisms(cls: Config) -> Config:
    """Class decorator: adds the options of every mechanism to a class that will be a dataclass, None by default."""
    for kind in ATTENTIONS.values():
        for own in fields(kind.Options):
            cls.__annotations__[own.name] = PerLayer if own.metadata["per_layer"] else Optional[own.type]
            help = f"attention={kind.name}: {own.metadata['help']} (default: {own.default})"
            setattr(cls, own.name, field(default=None, metadata={**own.metadata, "help": help}))
    return cls


@dataclass
@with_options_of_mechanisms
class LinformerRobertaConfig(FairseqDataclass):
    """Options of ``linformer_roberta``. None stands for what the architecture says (``ARCHITECTURES``).

    ``configs/model/options.yaml`` lists them for Hydra; ``scripts/write_model_options.py`` writes it.
    """

    # The attention
    attention: ATTENTION_CHOICES = option("linformer", "attention mechanism of every layer")  # type: ignore[valid-type]
    projection: PROJECTION_CHOICES = option("linear", "how Linformer projects keys and values along the sequence")  # type: ignore[valid-type]
    projection_init: Optional[INITIALISATION_CHOICES] = option(  # type: ignore[valid-type]
        None, "how E and F start (default: segment-mean; johnson-lindenstrauss for projection=random)"
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
        False, "a text of any length gets k rows, or its own length if that is less; else k l / n rows for l tokens"
    )
    sharing: Optional[SHARING_CHOICES] = option(  # type: ignore[valid-type]
        None, "which of E and F are one and the same (default: headwise; key-value for pooling)"
    )
    freeze_projection: bool = option(False, "do not train E and F")
    value_residual: bool = option(
        False, "mix the first layer's values into those of every other layer, with two learned weights per layer"
    )
    local_conv: int = option(
        0,
        "width (odd) of a depthwise convolution over the sequence beside every attention; 0: none, as in the paper",
        largest=10_001,
    )
    positions: POSITION_CHOICES = option(  # type: ignore[valid-type]
        "learned", "how attention knows where tokens stand: an embedding of each position, rotary or ALiBi"
    )
    rotary_base: float = option(10_000.0, "positions=rotary: wave lengths go from 2 pi to about 2 pi times this")
    rotary_share: float = option(
        1.0, "positions=rotary: share of a head's dimensions that turn, an even number of them; the others see content"
    )
    max_positions: Optional[int] = option(None, "n: longest sequence, E and F's width (default: the task's length)")

    # The flags of fairseq's examples/linformer (compat.py translates them)
    compressed: Optional[int] = option(None, "n / k, another way to give projected_length")
    shared_kv_compressed: Optional[int] = option(None, "1: sharing=key-value; 0: another sharing")
    shared_layer_kv_compressed: Optional[int] = option(None, "1: sharing=layerwise; 0: another sharing")
    freeze_compress: Optional[int] = option(None, "1: freeze_projection")

    # Sizes
    encoder_layers: Optional[int] = option(None, "number of layers", largest=1000)
    encoder_embed_dim: Optional[int] = option(None, "d: embedding dimension", largest=65_536)
    encoder_ffn_embed_dim: Optional[int] = option(None, "dimension of the feed-forward network's hidden layer")
    encoder_attention_heads: Optional[int] = option(None, "h: number of attention heads, a divisor of d")

    # RoBERTa's own
    activation_fn: ACTIVATION_CHOICES = option("gelu", "activation of the feed-forward network and the LM head")  # type: ignore[valid-type]
    pooler_activation_fn: ACTIVATION_CHOICES = option("tanh", "activation of the classification head")  # type: ignore[valid-type]
    gated_ffn: bool = option(
        False, "feed-forward network act(x U) * (x V) times W without biases (GeGLU) instead of act(x U + b) W + c"
    )
    encoder_normalize_before: bool = option(False, "layer norm before each block (pre-norm) instead of after it")
    layernorm_embedding: Optional[bool] = option(None, "layer norm on the embedding (default: true)")
    layer_norm_eps: float = option(1e-5, "added to the variance in every layer norm outside attention; BERT has 1e-12")
    dropout: float = option(0.1, "dropout probability of embeddings and of each block's output", recipe=True)
    attention_dropout: float = option(0.1, "dropout probability of attention weights", recipe=True)
    activation_dropout: float = option(
        0.0, "dropout probability after the feed-forward network's activation", recipe=True
    )
    pooler_dropout: float = option(0.0, "dropout probability in classification heads", recipe=True)
    encoder_layerdrop: float = option(0.0, "probability of skipping a layer in training (Fan et al. 2019)", recipe=True)
    encoder_layers_to_keep: Optional[str] = option(None, "layers to keep when pruning, comma-separated: 0,2,4")
    untie_weights_roberta: bool = option(False, "give the LM head a weight matrix of its own")
    load_checkpoint_heads: bool = option(
        False, "(re-)register and load classification heads of checkpoints", recipe=True
    )
    spectral_norm_classification_head: bool = option(False, "spectral normalisation of classification heads")
    checkpoint_activations: bool = option(
        False, "recompute activations in the backward pass to save memory", recipe=True
    )
    offload_activations: bool = option(
        False, "move checkpointed activations to the CPU; needs checkpoint_activations", recipe=True
    )
    compile_layers: bool = option(
        False, "run layers through torch.compile, which fuses what is not a matrix product", recipe=True
    )


OPTIONS: dict[str, Field] = {own.name: own for own in fields(LinformerRobertaConfig) if own.name != "_name"}


@dataclass
class ResolvedConfig(LinformerRobertaConfig):
    """The options with nothing left open: what a model is built from (``resolve_config`` makes it).

    The example's flags and ``encoder_layers_to_keep`` are None: the other options have taken in what they say.
    """

    projected_length: list[int] = field(default_factory=list)  # one per layer
    max_positions: int = 0
    encoder_layers: int = 0
    encoder_embed_dim: int = 0
    encoder_ffn_embed_dim: int = 0
    encoder_attention_heads: int = 0
    layernorm_embedding: bool = True


def architecture_defaults(name: str) -> dict[str, int | bool]:
    """The sizes of an architecture; an unknown one has those of the base. What the user gives wins over them."""
    return {"layernorm_embedding": True, **ARCHITECTURES.get(name, ARCHITECTURES["linformer_roberta_base"])}
