"""Every option of the model, in one flat dataclass: flags of ``fairseq-train`` and keys of ``model`` in Hydra alike.

Those of attention are here and, by mechanism, in ``attention/``; ``roberta_options.py`` has what RoBERTa brings.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import Field, dataclass, field, fields
from typing import Optional, TypeVar

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from ..attention.options import PerLayer, option
from ..attention.positions import POSITIONS
from ..attention.projection import LinearProjection
from ..attention.registry import ATTENTIONS, PROJECTIONS, SHARINGS
from .compat import ExampleFlags
from .roberta_options import RobertaOptions

ATTENTION_CHOICES = ChoiceEnum(sorted(ATTENTIONS))
PROJECTION_CHOICES = ChoiceEnum(list(PROJECTIONS))
INITIALISATION_CHOICES = ChoiceEnum(list(LinearProjection.INITIALISATIONS))
SHARING_CHOICES = ChoiceEnum(list(SHARINGS))
POSITION_CHOICES = ChoiceEnum(list(POSITIONS))


@dataclass
class AttentionOptions(FairseqDataclass):
    """The options of attention, whatever the mechanism. None stands for a default that depends on others."""

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
        0, "width (odd) of a depthwise convolution over the sequence beside every attention; 0: none", largest=10_001
    )
    positions: POSITION_CHOICES = option(  # type: ignore[valid-type]
        "learned", "how attention knows where tokens stand: an embedding of each position, rotary or ALiBi"
    )
    rotary_base: float = option(10_000.0, "positions=rotary: wave lengths go from 2 pi to about 2 pi times this")
    rotary_share: float = option(
        1.0, "positions=rotary: share of a head's dimensions that turn, an even number of them; the others see content"
    )
    max_positions: Optional[int] = option(None, "n: longest sequence, E and F's width (default: the task's length)")


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
class LinformerRobertaConfig(RobertaOptions, ExampleFlags, AttentionOptions):
    """Options of ``linformer_roberta``, in the order of attention, example, RoBERTa, mechanisms.

    ``configs/model/options.yaml`` lists them for Hydra; ``scripts/write_model_options.py`` writes it.
    """


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
