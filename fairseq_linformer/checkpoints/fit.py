"""Whether a checkpoint fits a model; where it does not, which options to pass."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError

FIRST_POSITION = 2  # fairseq numbers positions from the padding index plus 1; the rows before are of no position


def check_fits(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Refuses a checkpoint whose parameters do not fit the model.

    Raises:
        UserError: a parameter is missing, or has another shape, type or value than it can have. The message says which
            options to pass.
    """
    own = model.state_dict()
    for name in own.keys() & state.keys():
        if own[name].is_floating_point() != state[name].is_floating_point():
            raise UserError(f"the checkpoint's {name} is {state[name].dtype}, this model's {own[name].dtype}")
    there, here = _options(state), _options(own)
    config: Any = model.args
    if config.projection_multiplier is None:  # left open: it is the checkpoint's
        there.pop("projection_multiplier", None)
    differing = [name for name in there if name in here and not _alike(there[name], here[name])]
    if differing:
        want, have = (" ".join(f"{name}={options[name]}" for name in differing) for options in (there, here))
        raise UserError(f"the checkpoint has {want}, this model has {have}: {_what_to_pass(there, differing)}")
    misfits = [name for name in own if name in state and own[name].shape != state[name].shape]
    misfits += sorted(own.keys() ^ state.keys())
    if misfits and all(name.startswith("classification_heads.") for name in misfits):
        raise UserError(
            f"the checkpoint's {misfits[0]} is {_shape(state, misfits[0])}, this model's {_shape(own, misfits[0])}: "
            "pass load_checkpoint_heads=false for a new classification head"
        )
    if misfits:
        shown = ", ".join(f"{name} ({_shape(state, name)} there, {_shape(own, name)} here)" for name in misfits[:4])
        more = f" and {len(misfits) - 4} more" if len(misfits) > 4 else ""
        raise UserError(
            f"the checkpoint is of another model: {shown}{more}. Pass the attention, positions, projection, "
            "projected_length, sharing, local_conv and sizes that it was trained with"
        )
    _check_finite(state)
    _check_shared(model, state)


def _what_to_pass(there: dict[str, Any], differing: list[str]) -> str:
    """The differing options as they are typed. The vocabulary is not an option: it comes with the data."""
    options = [name for name in differing if name != "vocabulary"]
    keys = " ".join(f"model.{name}={there[name]}".lower().replace(" ", "") for name in options)
    flags = " ".join(f"--{name.replace('_', '-')}" for name in options)
    advice = [f"pass {keys} (as flags: {flags})"] if options else []
    if "vocabulary" in differing:
        own = "linformer prepare corpus or glue with --tokenizer CHECKPOINT"
        advice.append(f"use the data that it was trained on, or other data prepared with its dictionary ({own})")
    return ", and ".join(advice)


def _alike(there: Any, here: Any) -> bool:
    """Whether the option of a checkpoint is the model's; numbers to the precision of 16 bits, in which it may be."""
    return math.isclose(there, here, rel_tol=2**-7) if isinstance(there, float) else bool(there == here)


def _options(state: dict[str, Tensor]) -> dict[str, Any]:
    """The options that the shapes of a model's parameters show."""
    encoder = "encoder.sentence_encoder."
    layers = {int(match[1]) for name in state if (match := re.match(rf"{encoder}layers\.(\d+)\.", name))}
    first = f"{encoder}layers.0."
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items() if tensor.dim() > 1}
    tokens, positions = (shapes.get(f"{encoder}embed_{name}.weight", (0, 0)) for name in ("tokens", "positions"))
    options: dict[str, Any] = {
        "vocabulary": tokens[0],
        "encoder_layers": len(layers),
        "encoder_embed_dim": tokens[1],
        "encoder_ffn_embed_dim": shapes.get(f"{first}fc2.weight", (0,))[-1],
        "gated_ffn": f"{first}fc1.weight" in state and f"{first}fc1.bias" not in state,
        "value_residual": any(name.endswith(".value_mix") for name in state),
        "local_conv": shapes.get(f"{first}local_conv.conv.weight", (0,))[-1],
        "encoder_normalize_before": f"{encoder}layer_norm.weight" in state,
        "layernorm_embedding": f"{encoder}layernorm_embedding.weight" in state,
    }
    if positions[0]:  # learned ones
        options["max_positions"] = positions[0] - FIRST_POSITION
    projections = [shapes.get(f"{encoder}layers.{layer}.self_attn.key_projection.weight") for layer in sorted(layers)]
    lengths = [shape[-2] for shape in projections if shape and shape[-1] == options.get("max_positions")]  # (k, n)
    multipliers = {float(tensor) for name, tensor in state.items() if name.endswith("_projection.multiplier")}
    if len(multipliers) == 1:
        options["projection_multiplier"] = multipliers.pop()
    if lengths:
        options["projected_length"] = lengths[0] if len(set(lengths)) == 1 else lengths
    return options


def _shape(state: dict[str, Tensor], name: str) -> str:
    return "x".join(map(str, state[name].shape)) or "a number" if name in state else "absent"


def _check_finite(state: dict[str, Tensor]) -> None:
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"the checkpoint's {name} holds numbers that are not finite: its training diverged")


def _check_shared(model: nn.Module, state: dict[str, Tensor]) -> None:
    """A parameter with several names must have one value: loading would silently keep the last."""
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_name.setdefault(id(parameter), name)
        if first != name and not torch.equal(state[first], state[name]):
            option = "untie_weights_roberta=true" if "lm_head" in name else "the sharing that it was trained with"
            raise UserError(f"the checkpoint has two values for {first} and {name}, this model has one: pass {option}")
