"""The registries: mechanisms and projections by their names."""

from collections.abc import Callable
from typing import TypeVar

from ..errors import UserError
from .base import Attention
from .options import Options
from .pooling import AttentionPooling, ConvProjection, MaxPooling, MeanPooling, SplitPooling
from .projection import LinearProjection, Projection
from .random_projection import RandomProjection

ATTENTIONS: dict[str, type[Attention]] = {}
PROJECTIONS: dict[str, type[Projection]] = {
    "linear": LinearProjection,
    "random": RandomProjection,
    "conv": ConvProjection,
    "mean-pool": MeanPooling,
    "max-pool": MaxPooling,
    "attention-pool": AttentionPooling,
    "split-pool": SplitPooling,
}
SHARINGS = ("none", "headwise", "key-value", "layerwise")  # see ProjectedAttention.build_layers

AttentionClass = TypeVar("AttentionClass", bound=type[Attention])


def register_attention(name: str, options: type[Options] = Options) -> Callable[[AttentionClass], AttentionClass]:
    """Class decorator: registers a mechanism, with its own options, as ``attention=name``.

    Raises:
        UserError: the name is taken.
    """

    def register(cls: AttentionClass) -> AttentionClass:
        if name in ATTENTIONS:
            raise UserError(f"attention={name} is registered already, by {ATTENTIONS[name].__name__}")
        ATTENTIONS[name] = cls
        cls.name, cls.Options = name, options
        return cls

    return register


def get_attention(name: str) -> type[Attention]:
    """The mechanism of that name.

    Raises:
        UserError: there is none; the message lists those that there are.
    """
    if name not in ATTENTIONS:
        raise UserError(f"attention={name} is not known; choose from {', '.join(sorted(ATTENTIONS))}")
    return ATTENTIONS[name]
