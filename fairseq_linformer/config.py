"""Every option of the model, in one flat dataclass: flags of ``fairseq-train`` and keys of ``model`` in Hydra alike."""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional, cast

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import DEFAULT_MIN_PARAMS_TO_WRAP
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .attention import ATTENTIONS
from .attention.linformer import SHARINGS

BASE = {
    "encoder_layers": 12,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "layernorm_embedding": True,
}

# An architecture is what it changes of BASE. Sizes that the user gives win over the architecture's.
ARCHITECTURES: dict[str, dict[str, int]] = {
    "linformer_roberta_tiny": {
        "encoder_layers": 4,
        "encoder_embed_dim": 256,
        "encoder_ffn_embed_dim": 1024,
        "encoder_attention_heads": 4,
    },
    "linformer_roberta_small": {
        "encoder_layers": 6,
        "encoder_embed_dim": 512,
        "encoder_ffn_embed_dim": 2048,
        "encoder_attention_heads": 8,
    },
    "linformer_roberta_base": {},
    "linformer_roberta_large": {
        "encoder_layers": 24,
        "encoder_embed_dim": 1024,
        "encoder_ffn_embed_dim": 4096,
        "encoder_attention_heads": 16,
    },
}

ATTENTION_CHOICES = ChoiceEnum(sorted(ATTENTIONS))
SHARING_CHOICES = ChoiceEnum(list(SHARINGS))
ACTIVATION_CHOICES = ChoiceEnum(utils.get_available_activation_fns())


def option(default: Any, help: str) -> Any:
    """A field with the help text that ``fairseq-train --help`` shows."""
    return field(default=default, metadata={"help": help})


@dataclass
class LinformerRobertaConfig(FairseqDataclass):
    """Options of ``linformer_roberta``. None stands for what the architecture says (``ARCHITECTURES``)."""

    # The attention
    attention: ATTENTION_CHOICES = option("linformer", "attention mechanism of every layer")  # type: ignore[valid-type]
    projected_length: int = option(128, "k: rows to which Linformer projects keys and values, 1 to max_positions")
    sharing: SHARING_CHOICES = option("layerwise", "which of Linformer's matrices E and F are one and the same")  # type: ignore[valid-type]
    freeze_projection: bool = option(False, "do not train E and F")
    local_conv: int = option(
        0, "width (odd) of a depthwise convolution over the sequence beside every attention; 0: none, as in the paper"
    )
    max_positions: Optional[int] = option(None, "n: longest sequence, E and F's width (default: the task's length)")

    # Sizes
    encoder_layers: Optional[int] = option(None, "number of layers")
    encoder_embed_dim: Optional[int] = option(None, "d: embedding dimension")
    encoder_ffn_embed_dim: Optional[int] = option(None, "dimension of the feed-forward network's hidden layer")
    encoder_attention_heads: Optional[int] = option(None, "h: number of attention heads, a divisor of d")

    # RoBERTa's own
    activation_fn: ACTIVATION_CHOICES = option("gelu", "activation of the feed-forward network and the LM head")  # type: ignore[valid-type]
    pooler_activation_fn: ACTIVATION_CHOICES = option("tanh", "activation of the classification head")  # type: ignore[valid-type]
    encoder_normalize_before: bool = option(False, "layer norm before each block (pre-norm) instead of after it")
    layernorm_embedding: Optional[bool] = option(None, "layer norm on the embedding (default: true)")
    dropout: float = option(0.1, "dropout probability of embeddings and of each block's output")
    attention_dropout: float = option(0.1, "dropout probability of attention weights")
    activation_dropout: float = option(0.0, "dropout probability after the feed-forward network's activation")
    pooler_dropout: float = option(0.0, "dropout probability in classification heads")
    encoder_layerdrop: float = option(0.0, "probability of skipping a layer in training (Fan et al. 2019)")
    encoder_layers_to_keep: Optional[str] = option(None, "layers to keep when pruning, comma-separated: 0,2,4")
    untie_weights_roberta: bool = option(False, "give the LM head a weight matrix of its own")
    load_checkpoint_heads: bool = option(False, "(re-)register and load classification heads of checkpoints")
    spectral_norm_classification_head: bool = option(False, "spectral normalisation of classification heads")
    checkpoint_activations: bool = option(False, "recompute activations in the backward pass to save memory")
    offload_activations: bool = option(False, "move checkpointed activations to the CPU; needs checkpoint_activations")
    min_params_to_wrap: int = option(DEFAULT_MIN_PARAMS_TO_WRAP, "smallest layer, in parameters, that FSDP wraps")


@dataclass
class ResolvedConfig(LinformerRobertaConfig):
    """The options with nothing left open: what a model is built from (``resolve_config`` makes it)."""

    max_positions: int = 0
    encoder_layers: int = 0
    encoder_embed_dim: int = 0
    encoder_ffn_embed_dim: int = 0
    encoder_attention_heads: int = 0
    layernorm_embedding: bool = True

    def validate(self) -> None:
        """Raises ValueError naming the option, its value and what is allowed."""
        for name in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        heads, embed_dim = self.encoder_attention_heads, self.encoder_embed_dim
        _check("encoder_attention_heads", heads, embed_dim % heads == 0, f"a divisor of encoder_embed_dim={embed_dim}")
        _check("max_positions", self.max_positions, self.max_positions >= 1, "at least 1")
        if str(self.attention) == "linformer":
            n, k = self.max_positions, self.projected_length
            _check("projected_length", k, 1 <= k <= n, f"from 1 to max_positions={n}")
        width = self.local_conv
        _check("local_conv", width, width == 0 or (width > 0 and width % 2 == 1), "0 (none) or an odd width")
        for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout", "encoder_layerdrop"):
            _check(name, getattr(self, name), 0.0 <= getattr(self, name) < 1.0, "at least 0 and below 1")
        if self.offload_activations:
            allowed = "true only together with checkpoint_activations=true"
            _check("offload_activations", True, self.checkpoint_activations, allowed)


def _check(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name}={value} is not allowed: it must be {allowed}")


def apply_architecture(name: str, args: Any) -> None:
    """Fills in, in place, the sizes that ``args`` (a Namespace or a config) leaves open."""
    for key, value in {**BASE, **ARCHITECTURES.get(name, {})}.items():
        if getattr(args, key, None) is None:
            setattr(args, key, value)


def resolve_config(cfg: Any, task_length: int) -> ResolvedConfig:
    """The complete, validated configuration of a model.

    Args:
        cfg: a Namespace of flags, or a config from Hydra or a checkpoint.
        task_length: the task's longest sequence, in tokens; the default of ``max_positions``.

    Raises:
        ValueError: an option is unknown or its value cannot work.
    """
    architecture = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    if isinstance(cfg, Namespace):
        cfg = LinformerRobertaConfig.from_namespace(cfg)
    try:
        typed = OmegaConf.merge(OmegaConf.structured(LinformerRobertaConfig), cfg)
        options = cast(dict[str, Any], OmegaConf.to_container(typed))
    except OmegaConfBaseException as error:
        raise ValueError(f"model: {str(error).splitlines()[0]}") from error
    given = {name: value.value if isinstance(value, Enum) else value for name, value in options.items()}
    open_sizes = Namespace(**given)
    apply_architecture(architecture, open_sizes)
    config = ResolvedConfig(**{name: value for name, value in vars(open_sizes).items() if name != "_name"})
    if config.encoder_layers_to_keep:
        config.encoder_layers = len(config.encoder_layers_to_keep.split(","))
    if given["max_positions"] is None:
        config.max_positions = task_length
    if config.max_positions < task_length:
        raise ValueError(f"max_positions={config.max_positions} is below the task's longest sequence, {task_length}")
    config.validate()
    return config
