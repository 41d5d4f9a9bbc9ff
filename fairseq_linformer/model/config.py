"""All options of the model in one flat dataclass: the flags of ``fairseq-train`` and the keys of ``model`` in Hydra.

Options of single mechanisms are defined in ``attention/``, those of RoBERTa in ``roberta_options.py``.
``resolve_config`` adds defaults and validates.
"""

# No postponed annotations: fairseq and OmegaConf read the types of the fields at run time.

from argparse import Namespace
from dataclasses import Field, dataclass, field, fields
from typing import Any, Optional, TypeVar, cast

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ..attention.base import ATTENTIONS
from ..attention.linformer import PROJECTIONS, SHARINGS
from ..attention.options import PerLayer, option
from ..attention.positions import POSITIONS
from ..attention.projection import LinearProjection
from ..errors import UserError, check
from .architecture import Architecture, architecture_defaults, layers_to_keep, projection_defaults
from .compat import ExampleFlags, translate_flags
from .roberta_options import RobertaOptions, validate_training
from .validation import REMOVED_OPTION, check_removed, validate

ATTENTION_CHOICES = ChoiceEnum(sorted(ATTENTIONS))
PROJECTION_CHOICES = ChoiceEnum(list(PROJECTIONS))
INITIALISATION_CHOICES = ChoiceEnum(list(LinearProjection.INITIALISATIONS))
SHARING_CHOICES = ChoiceEnum(list(SHARINGS))
POSITION_CHOICES = ChoiceEnum(list(POSITIONS))


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
_TYPES = OmegaConf.structured(LinformerRobertaConfig)  # built once, because this is slower than resolving options


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


def resolve_config(cfg: Namespace | DictConfig, task_length: int | None) -> ResolvedConfig:
    """Return the complete, validated configuration of a model.

    Args:
        cfg: a Namespace of flags, or a config from Hydra or a checkpoint.
        task_length: the task's longest sequence, in tokens; the default of ``max_positions``.

    Raises:
        UserError: an option is unknown or missing, or its value is invalid.
    """
    options = _typed(cfg)
    architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    options |= {name: size for name, size in architecture_defaults(architecture).items() if options[name] is None}
    if options["max_positions"] is None:
        options["max_positions"] = task_length
    n, smallest = options["max_positions"], task_length or 1
    check("max_positions", n, n is not None and n >= smallest, f"at least {smallest}, the task's longest sequence")
    options |= translate_flags(options)
    options |= projection_defaults(options)
    options |= layers_to_keep(options)
    config = ResolvedConfig(**options)
    validate(cast(Architecture, config))
    validate_training(config)
    return config


def _typed(cfg: Namespace | DictConfig) -> dict[str, Any]:
    """Return every option as plain data of its type; None for an option without a value."""
    check_removed(cfg if isinstance(cfg, DictConfig) else vars(cfg))
    if isinstance(cfg, Namespace):  # it also has flags of other components
        cfg = OmegaConf.create({name: value for name, value in vars(cfg).items() if name in OPTIONS})
    elif isinstance(cfg, DictConfig) and REMOVED_OPTION in cfg:
        cfg = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != REMOVED_OPTION])
    try:
        merged = OmegaConf.merge(_TYPES, cfg)
        options = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=True, enum_to_str=True))
    except OmegaConfBaseException as error:
        name = getattr(error, "full_key", None) or "model"
        version = "; a checkpoint that has it is of another version of this plugin" * isinstance(error, ConfigKeyError)
        raise UserError(f"{name}: {str(error).splitlines()[0]}{version}") from error
    return {name: options[name] for name in OPTIONS}
