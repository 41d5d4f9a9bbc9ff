"""Checkpoints: read without running code from them, and refused with a clear message where they do not fit a model."""

import importlib
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import _upgrade_state_dict, load_checkpoint_to_cpu
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ..errors import UserError
from .files import BEST, RUNS_CODE, check_whole
from .sentence_modules import is_of_transformers

UNTRAINED = "checkpoint.pt"  # in the folder of an imported or converted model
FINE_TUNED = ("text_prediction", "sentence_prediction")  # tasks whose rows are texts of their own, with labels
NO_CHECKPOINT = "is not a fairseq checkpoint: it must hold a model and its configuration"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a fairseq checkpoint, of any version, onto the CPU; one of ``cfg`` and ``model`` alone as untrained.

    Returns:
        The checkpoint: ``model`` has the parameters, ``cfg`` the configuration.

    Raises:
        FileNotFoundError: there is no such file.
        UserError: the file is not a complete checkpoint, or holds what could run code on loading.
    """
    importlib.import_module("fairseq_linformer.plugin")  # registers what the configuration may name
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        if path.suffix != ".pt":  # which fairseq's own reading checks
            check_whole(path)
        state = _load(path)
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


def _load(path: Path) -> dict[str, Any]:
    try:
        return load_checkpoint_to_cpu(str(path))
    except KeyError:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if {"optimizer_history", "extra_state"} <= content.keys():
            raise
    start = {"optimizer_history": [{"lr_scheduler_state": {}}], "extra_state": {"train_iterator": None}}
    cfg = OmegaConf.create(content.get("cfg") or {}, flags={"allow_objects": True})
    return _upgrade_state_dict({**start, **content, "cfg": cfg})


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
    args = content.get("args")
    flags = vars(args) if isinstance(args, Namespace) and isinstance(error, KeyError) else {}
    if unknown := [f"{name}={flag}" for name, flag in flags.items() if isinstance(flag, str) and flag in error.args]:
        return f"{path} has {unknown[0]}, which nothing registers here: first import the code of its authors that does"
    said = " ".join(str(error).split())
    return f"{path}: its configuration is not understood here ({type(error).__name__}: {said})"


def checkpoint_file(path: Path) -> Path:
    """The checkpoint that a user means: the file itself, or that of a folder, the best one of a run.

    Raises:
        UserError: it is a folder of transformers.
    """
    if not path.is_dir():
        return path
    untrained, best = path / UNTRAINED, path / BEST
    file = untrained if untrained.is_file() and not best.is_file() else best
    if not file.is_file() and is_of_transformers(path):
        raise UserError(f"{path} is a folder of transformers: make a checkpoint of it with linformer import")
    return file


def no_such_checkpoint(option: str, named: Path) -> FileNotFoundError:
    """What to raise where an option names no file; of a folder it says which file may be meant."""
    file = checkpoint_file(named)
    meant = f"; {file} is one" if file.is_file() else ""
    return FileNotFoundError(f"checkpoint.{option}={named}: there is no such checkpoint{meant}")


def data_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """The folder of the data of a checkpoint with the configuration `cfg`.

    That of a fine-tuned one is a prepared task: its own folder where it is one, else the one that it was trained on.
    That of any other is the ``vocabulary_folder``.

    Raises:
        FileNotFoundError: the data folder does not exist, as on another machine.
        UserError: the configuration does not name a data folder.
    """
    if _configured(cfg, "task", "_name") not in FINE_TUNED:
        return vocabulary_folder(checkpoint, cfg)
    if all((checkpoint.parent / name).is_file() for name in ("dict.txt", "input0/dict.txt")):
        return checkpoint.parent
    return _trained_on(
        checkpoint, cfg, "prepared task", "name the task's prepared folder with --data (in Python data_name_or_path)"
    )


def vocabulary_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """The folder with the dict.txt and the subword model of a checkpoint with the configuration `cfg`.

    That is the checkpoint's own folder where it holds a dict.txt, else the data folder that it was trained on.

    Raises:
        FileNotFoundError, UserError: as ``data_folder``.
    """
    if (checkpoint.parent / "dict.txt").is_file():
        return checkpoint.parent
    return _trained_on(
        checkpoint, cfg, "dict.txt", f"copy dict.txt and the subword model from there into {checkpoint.parent}"
    )


def _trained_on(checkpoint: Path, cfg: DictConfig, lacks: str, advice: str) -> Path:
    trained_on = _configured(cfg, "task", "data")
    if not isinstance(trained_on, str):
        raise UserError(f"{checkpoint} does not name the folder that it was trained on: its task.data is {trained_on}")
    data = Path(split_paths(trained_on)[0])  # of several, the first holds the dictionary
    if not data.is_dir():
        raise FileNotFoundError(
            f"{checkpoint} has no {lacks} beside it, and the folder that it was trained on, {data.absolute()}, does "
            f"not exist here: {advice}"
        )
    return data


def read_named_checkpoint(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint that a tokenizer's path means, if it means one, and its content.

    Raises:
        UserError: as ``checkpoint_file`` and ``read_checkpoint``.
    """
    file = checkpoint_file(path)
    return (file, read_checkpoint(file)) if file.suffix == ".pt" and file.is_file() else None


def find_tokenizer(path: Path) -> Path:
    """The tokenizer that `path` means, for ``load_tokenizer``.

    That of a checkpoint, or of a run's folder with checkpoints, is the one beside the checkpoint where there is a
    dict.txt, else that of the data that it was trained on. Anything else is returned as it is.

    Raises:
        FileNotFoundError: as ``read_checkpoint`` and ``vocabulary_folder``.
        UserError: as they and ``checkpoint_file`` do.
    """
    checkpoint = path if path.suffix == ".pt" else _checkpoint_of_run(path) if path.is_dir() else None
    if checkpoint is None:
        return path
    return vocabulary_folder(checkpoint, read_checkpoint(checkpoint)["cfg"])


def _checkpoint_of_run(folder: Path) -> Path | None:
    """A checkpoint of a run. All have the same data; the best one comes first, as it is what users load."""
    if (folder / "dict.txt").is_file():
        return None
    candidates = [checkpoint_file(folder), *sorted(folder.glob("*.pt"))]
    return next((file for file in candidates if file.is_file()), None)
