"""One name in transformers for each module that layers, or keys and values, share."""

from typing import cast

from torch import nn

from ..model.encoder import EncoderLayer

SecondName = tuple[int, str, int, str]  # number of the layer and name there, and those of the first name


def register_once(layers: nn.ModuleList) -> list[SecondName]:
    """Takes the second and later names away from a projection that layers, or keys and values, share.

    transformers stores every tensor under one name, and ties others by rules of its own, which change.
    """
    firsts: dict[nn.Module | None, tuple[int, str]] = {}
    seconds: list[SecondName] = []
    for number, layer in enumerate(layers):
        attention = cast(EncoderLayer, layer).self_attn
        for name, module in list(attention._modules.items()):  # named_children leaves second names out
            if module in firsts:
                delattr(attention, name)
                seconds.append((number, name, *firsts[module]))
            firsts.setdefault(module, (number, name))
    name_again(layers, seconds)
    return seconds


def name_again(layers: nn.ModuleList, seconds: list[SecondName]) -> None:
    """Lets second names, which nn.Module does not know, mean the modules of the first ones."""
    for layer, name, first_layer, first_name in seconds:
        attention, first = (cast(EncoderLayer, layers[number]).self_attn for number in (layer, first_layer))
        module = getattr(first, first_name)
        if getattr(attention, name, None) is not module:
            attention.__dict__[name] = module  # past nn.Module, which would register it
