"""One name in transformers for each module that layers, or keys and values, share."""

from typing import NamedTuple, cast

from torch import nn

from ..model.encoder import EncoderLayer


class SecondName(NamedTuple):
    """A later name of a module that layers, or keys and values, share, and its first one: layers' numbers, names."""

    layer: int
    name: str
    first_layer: int
    first_name: str


def register_once(layers: nn.ModuleList) -> list[SecondName]:
    """Takes the second and later names away from a projection that layers, or keys and values, share.

    transformers stores every tensor under one name, and ties others by rules of its own, which change.
    """
    firsts: dict[nn.Module | None, tuple[int, str]] = {}
    seconds = []
    for number, layer in enumerate(layers):
        attention = cast(EncoderLayer, layer).self_attn
        for name, module in list(attention._modules.items()):  # named_children leaves second names out
            if module in firsts:
                delattr(attention, name)
                seconds.append(SecondName(number, name, *firsts[module]))
            firsts.setdefault(module, (number, name))
    name_again(layers, seconds)
    return seconds


def name_again(layers: nn.ModuleList, seconds: list[SecondName]) -> None:
    """Lets second names, which nn.Module does not know, mean the modules of the first ones."""
    for second in seconds:
        own, first = (cast(EncoderLayer, layers[number]).self_attn for number in (second.layer, second.first_layer))
        module = getattr(first, second.first_name)
        if getattr(own, second.name, None) is not module:
            own.__dict__[second.name] = module  # past nn.Module, which would register it
