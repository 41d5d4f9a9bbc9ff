"""Checkpoints: read without running code from them, and refused with a clear message where they do not fit a model."""

import math
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.utils import split_paths
from omegaconf import DictConfig
from torch import Tensor, nn

from .errors import UserError
from .training.checkpoint_files import BEST, RUNS_CODE, check_whole

UNTRAINED = "checkpoint.pt"  # in a folder that `linformer import` or `linformer convert` made
NO_CHECKPOINT = "is not a fairseq checkpoint: it must hold a model and its configuration"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a fairseq checkpoint, of any version, onto the CPU.

    Returns:
        The checkpoint: ``model`` has the parameters, ``cfg`` the configuration.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the file is not a complete checkpoint, or holds what could run code on loading.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        if path.suffix != ".pt":  # which fairseq's own reading checks
            check_whole(path)
        state = load_checkpoint_to_cpu(str(path))
    except UserError:
        raise
    except Exception as error:  # which one torch raises depends on how the file is broken
        raise UserError(_why_unreadable(path, error)) from error
    if not _is_checkpoint(state):
        raise UserError(f"{path} {NO_CHECKPOINT}")
    if missing := _missing(state):
        raise UserError(f"{path} {NO_CHECKPOINT}, but {missing}")
    state["args"] = None  # cfg has its content by now
    return state


def _is_checkpoint(content: Any) -> bool:
    if not isinstance(content, dict) or "model" not in content:
        return False
    configurations = [content.get(name) for name in ("cfg", "args")]
    return any(not isinstance(found, Tensor) and bool(found) for found in configurations)


def _missing(state: dict[str, Any]) -> str:
    """What a checkpoint that was made or edited by hand lacks, in words; empty where it lacks nothing."""
    model = state["model"]
    if not isinstance(model, dict) or not all(isinstance(name, str) for name in model):
        return "its model does not name its parameters"
    for name, tensor in model.items():
        if not isinstance(tensor, Tensor):
            return f"its {name} is not a tensor"
    for group in ("model", "task"):
        if not isinstance(_configured(state["cfg"], group, "_name"), str):
            return f"its configuration has no {group}._name"
    return ""


def _configured(cfg: Any, group: str, name: str) -> Any:
    """A value of a checkpoint's configuration, whose groups may be of any type; None where there is no such value."""
    return getattr(getattr(cfg, group, None), name, None)


def _why_unreadable(path: Path, error: Exception) -> str:
    """What to tell the user. Reading the file again, without fairseq, shows whether file or content is wrong."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as cause:
        if isinstance(cause, pickle.UnpicklingError) and "GLOBAL" in str(cause):
            return f"{path} {RUNS_CODE}"
        return f"{path} is not a checkpoint, or not a complete one"
    if not _is_checkpoint(content):
        return f"{path} {NO_CHECKPOINT}"
    said = " ".join(str(error).split())
    return f"{path}: its configuration is not understood here ({type(error).__name__}: {said})"


def checkpoint_file(path: Path) -> Path:
    """The checkpoint that a user means: the file itself, or that of a folder, the best one of a run."""
    if not path.is_dir():
        return path
    untrained = path / UNTRAINED
    return untrained if untrained.is_file() and not (path / BEST).is_file() else path / BEST


def data_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """The folder with the dict.txt and the subword model of a checkpoint with the configuration `cfg`.

    That is the checkpoint's own folder where it holds a dict.txt, else the data folder that it was trained on.

    Raises:
        FileNotFoundError: the data folder does not exist, as on another machine.
        UserError: the configuration does not name a data folder.
    """
    if (checkpoint.parent / "dict.txt").is_file():
        return checkpoint.parent
    trained_on = _configured(cfg, "task", "data")
    if not isinstance(trained_on, str):
        raise UserError(f"{checkpoint} does not name the folder that it was trained on: its task.data is {trained_on}")
    data = Path(split_paths(trained_on)[0])  # of several, the first holds the dictionary
    if not data.is_dir():
        raise FileNotFoundError(
            f"{checkpoint} has no dict.txt beside it, and the folder that it was trained on, {data.absolute()}, does "
            f"not exist here: copy dict.txt and the subword model from there into {checkpoint.parent}"
        )
    return data


def find_tokenizer_folder(path: Path) -> Path:
    """The prepared folder that `path` means: itself, or that of a checkpoint, or of a run's folder with checkpoints.

    A folder that holds neither a dict.txt nor a checkpoint is returned as it is.

    Raises:
        FileNotFoundError: as ``read_checkpoint`` and ``data_folder``.
        UserError: as they do.
    """
    checkpoint = path if path.is_file() or path.suffix == ".pt" else _checkpoint_of_run(path)
    if checkpoint is None:
        return path
    return data_folder(checkpoint, read_checkpoint(checkpoint)["cfg"])


def _checkpoint_of_run(folder: Path) -> Path | None:
    """A checkpoint of a run. All have the same data; the best one comes first, as it is what users load."""
    if (folder / "dict.txt").is_file():
        return None
    candidates = [checkpoint_file(folder), *sorted(folder.glob("*.pt"))]
    return next((file for file in candidates if file.is_file()), None)


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
            f"the checkpoint is of another model: {shown}{more}. Pass the attention, projection, projected_length, "
            "sharing, local_conv and sizes that it was trained with"
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
        own = "linformer prepare … --tokenizer MODEL"
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
        "max_positions": positions[0] - 2,  # fairseq numbers positions from 2, the padding index plus 1
        "local_conv": shapes.get(f"{first}local_conv.conv.weight", (0,))[-1],
        "encoder_normalize_before": f"{encoder}layer_norm.weight" in state,
        "layernorm_embedding": f"{encoder}layernorm_embedding.weight" in state,
    }
    projections = [shapes.get(f"{encoder}layers.{layer}.self_attn.key_projection.weight") for layer in sorted(layers)]
    lengths = [shape[-2] for shape in projections if shape and shape[-1] == options["max_positions"]]  # (k, n)
    multipliers = {float(tensor) for name, tensor in state.items() if name.endswith("_projection.multiplier")}
    if len(multipliers) == 1:
        options["projection_multiplier"] = multipliers.pop()
    if lengths:
        options["projected_length"] = lengths[0] if len(set(lengths)) == 1 else lengths
    return options


def _shape(state: dict[str, Tensor], name: str) -> str:
    return "x".join(map(str, state[name].shape)) if name in state else "absent"


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
