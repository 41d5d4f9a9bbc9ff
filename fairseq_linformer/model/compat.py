"""Compatibility with fairseq: the flags of its ``examples/linformer``, pruning of layers, and names of parameters."""

# No postponed annotations: fairseq and OmegaConf read the types of the fields at run time.

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from ..attention.base import get_attention
from ..attention.options import option
from ..attention.projection import LinearProjection
from ..errors import UserError, check
from .architecture import PER_LAYER

logger = logging.getLogger(__name__)


@dataclass
class ExampleFlags(FairseqDataclass):
    """The flags of fairseq's example, None by default (see ``translate_flags``)."""

    compressed: Optional[int] = option(None, "n / k, another way to give projected_length")
    shared_kv_compressed: Optional[int] = option(None, "1: sharing=key-value; 0: another sharing")
    shared_layer_kv_compressed: Optional[int] = option(None, "1: sharing=layerwise; 0: another sharing")
    freeze_compress: Optional[int] = option(None, "1: freeze_projection")


def translate_flags(options: dict[str, Any]) -> dict[str, Any]:
    """Translate the example's flags into changes of options; the flags themselves become None.

    ``compressed`` is n / k. ``shared_layer_kv_compressed`` is sharing=layerwise and has priority over
    ``shared_kv_compressed``, sharing=key-value; both 0 are headwise. ``freeze_compress`` is freeze_projection. A flag
    that contradicts the option that it translates to is rejected.
    """
    changes: dict[str, Any] = {}
    ratio, n = options["compressed"], options["max_positions"]
    if ratio is not None:
        check("compressed", ratio, 1 <= ratio <= n, f"from 1 to max_positions={n}")
        changes["projected_length"] = n // ratio
    switches = ("shared_kv_compressed", "shared_layer_kv_compressed", "freeze_compress")
    for flag in switches:
        check(flag, options[flag], options[flag] in (None, 0, 1), "0 or 1")
    key_value, layerwise, freeze = (options[flag] for flag in switches)
    if key_value is not None or layerwise is not None:
        changes["sharing"] = "layerwise" if layerwise else "key-value" if key_value else "headwise"
    if freeze is not None:
        changes["freeze_projection"] = bool(freeze)
    for name, value in changes.items():
        current = options[name]
        if current is not None and current is not False and str(current) != str(value):
            raise UserError(f"{name}={current} contradicts the flags of fairseq's example, which mean {name}={value}")
    return {**changes, **dict.fromkeys(("compressed", *switches))}


def layers_to_keep(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers after pruning, and the remaining values of options that may differ per layer.

    Pruning must keep a layer that others need, and the type of each layer, which may depend on its index.
    """
    pruning = options["encoder_layers_to_keep"]
    remaining = _remaining_layers(pruning, options["encoder_layers"])
    allowed = "a list that has layer 0, because value_residual=true needs its values"
    check("encoder_layers_to_keep", pruning, 0 in remaining or not options["value_residual"], allowed)
    layer_type = get_attention(options["attention"]).Options.read(SimpleNamespace(**options)).kind_of_layer
    for new, old in enumerate(remaining):
        allowed = "a list that keeps the type of each layer with attention={}: layer {}, {}, would be layer {}, {}"
        allowed = allowed.format(options["attention"], old, layer_type(old), new, layer_type(new))
        check("encoder_layers_to_keep", pruning, layer_type(old) == layer_type(new), allowed)
    lists = {name: [options[name][layer] for layer in remaining] for name in PER_LAYER if options[name] is not None}
    return {**lists, "encoder_layers": len(remaining), "encoder_layers_to_keep": None}


def _remaining_layers(value: str, layers: int) -> list[int]:
    """Return the layers that pruning keeps, in ascending order, as in fairseq's ``prune_state_dict``."""
    remaining = sorted({int(layer) if layer.strip().isdigit() else layers for layer in value.split(",")})
    allowed = f"numbers from 0 to {layers - 1}, each once, separated by commas"
    check("encoder_layers_to_keep", value, len(remaining) == len(value.split(",")) and remaining[-1] < layers, allowed)
    return remaining


def rename_parameters(state: dict[str, Tensor]) -> None:
    """Rename the parameters of a checkpoint to our names, in place; checkpoints with our names stay unchanged.

    In the example ``compress_k`` is E, and ``compress_v`` is F, which is absent where F is E. The bias of its shared
    layer is unused. In fairseq's RoBERTa of 2019 ``in_proj`` concatenates queries, keys and values. ``version`` is
    the format of fairseq's modules.
    """
    for name in list(state):
        if name.endswith("self_attn.compress_k.weight"):
            attention = name.removesuffix("compress_k.weight")
            key = state.pop(name)
            state[f"{attention}key_projection.weight"] = key
            state[f"{attention}value_projection.weight"] = state.pop(f"{attention}compress_v.weight", key)
        elif match := re.fullmatch(r"(.*self_attn\.)in_proj_(weight|bias)", name):
            for part, values in zip("qkv", state.pop(name).chunk(3), strict=True):
                state[f"{match[1]}{part}_proj.{match[2]}"] = values
        elif re.search(r"(^|\.)(version|(shared_)?compress_layer\.(weight|bias)|compress_[kv]\.bias)$", name):
            if name.endswith("compress_layer.bias"):
                logger.warning(
                    "fairseq's example keeps an unused bias beside its shared projection, which Adam's state counts: "
                    "pass --reset-optimizer to train on from this checkpoint"
                )
            del state[name]


def add_multipliers(state: dict[str, Tensor], model: nn.Module) -> None:
    """Add the multiplier of E and F, c = 1, in place, to a checkpoint without one, such as the example's.

    If other multipliers differ from 1, the checkpoint is damaged: nothing is added, and loading rejects it.
    """
    multipliers = [value for name, value in state.items() if name.endswith("_projection.multiplier")]
    if not all(value.numel() == 1 and value.item() == 1 for value in multipliers):
        return
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, LinearProjection) and f"{name}.weight" in state:
            state.setdefault(f"{name}.multiplier", torch.tensor(1.0))
