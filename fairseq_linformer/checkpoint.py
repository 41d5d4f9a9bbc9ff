"""Checkpoints: their content, what our tasks add to it, and whether it fits a vocabulary and a model.

``checkpoint_files.py`` writes them whole and rejects damaged ones.
"""

import contextlib
import hashlib
import importlib
import logging
import math
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from fairseq.checkpoint_utils import _upgrade_state_dict
from fairseq.data import Dictionary
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from .checkpoint_files import BEST, LAST, UNFINISHED, DamagedCheckpointError, check_whole, copy_checkpoint, read_whole
from .data.dictionaries import without_mask
from .data.tokenizer import subword_model_options
from .errors import UserError
from .sentence_modules import is_of_transformers

logger = logging.getLogger(__name__)

UNTRAINED = "checkpoint.pt"  # in the folder of an imported or converted model
FINE_TUNED = ("text_prediction", "sentence_prediction")  # tasks whose rows are texts of their own, with labels

RUNS_CODE = "is not loaded: it holds more than plain data, which could run code"
NO_CHECKPOINT = "is not a fairseq checkpoint: it must hold a model and its configuration"
STALLED = "validations_without_gain"  # in a checkpoint's extra_state, beside fairseq's own
FIRST_POSITION = 2  # fairseq numbers positions from the padding index plus 1; the rows before are of no position

# fairseq's names of what a run saves, the last one aside; averages, and what was converted, are none to go on from.
_OF_A_RUN = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a fairseq checkpoint, of any version, onto the CPU; one of ``cfg`` and ``model`` alone as untrained.

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
        content = read_whole(path, mmap=False)
        if not isinstance(content, dict) or "model" not in content:
            raise UserError(f"{path} {NO_CHECKPOINT}")
        untrained = {"optimizer_history": [{"lr_scheduler_state": {}}], "extra_state": {"train_iterator": None}}
        if content.get("cfg") is not None:
            content["cfg"] = OmegaConf.create(content["cfg"], flags={"allow_objects": True})
        state = _upgrade_state_dict({**untrained, **content})
        missing = _missing(state)
    except (UserError, OSError):
        raise
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} {RUNS_CODE}") from error
    except Exception as error:  # which one torch or fairseq raises depends on what is wrong in the file
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: its configuration is not understood here ({reason})") from error
    if missing:
        raise UserError(f"{path} {NO_CHECKPOINT}, but {missing}")
    state["args"] = None  # cfg has its content by now
    return state


def _missing(state: dict[str, Any]) -> str:
    """Return what a checkpoint that was made or edited by hand lacks, in words; empty if it lacks nothing."""
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
    """Return a value of a checkpoint's configuration, whose groups may be of any type; None if there is none."""
    return getattr(getattr(cfg, group, None), name, None)


# What our tasks add to a checkpoint


class Origin(TypedDict):
    """The source of one conversion: the name of a file, a folder or a model on the Hub, and its SHA-256."""

    source: str
    sha256: str


class Labels(TypedDict):
    """The meaning of a fine-tuned model's outputs: the task's ``classes`` by number, its ``scale`` of scores."""

    classes: list[str]
    scale: float


class TaskState(TypedDict):
    """What our tasks add to fairseq's ``task_state``.

    Attributes:
        vocabulary: digests of the vocabulary (``digest_vocabulary``); empty where the checkpoint carries none.
        made_of: the run's fingerprint and command; None in a checkpoint that fairseq alone wrote.
        converted_from: what the model was converted from, the first conversion first, through all trainings after that.
        labels: None of a model that was not fine-tuned, or before checkpoints had them.
        sentence_modules: files of sentence-transformers, text by name (``sentence_modules.py``), through all as well.
        drawn_lm_head: whether the LM head is none that was ever trained, as of an imported model that had none.
    """

    vocabulary: dict[str, str]
    made_of: dict[str, Any] | None
    converted_from: list[Origin]
    labels: Labels | None
    sentence_modules: dict[str, str]
    drawn_lm_head: bool


# From the checkpoint that a training or a conversion starts from.
INHERITED = ("converted_from", "sentence_modules", "drawn_lm_head")
_NOTHING: TaskState = {
    "vocabulary": {},
    "made_of": None,
    "converted_from": [],
    "labels": None,
    "sentence_modules": {},
    "drawn_lm_head": False,
}


def read_task_state(task_state: Any) -> TaskState:
    """Return what a checkpoint's ``task_state`` holds of our tasks, complete.

    Raises:
        UserError: a part is of another type than a task saves.
    """
    carried = {} if task_state is None else task_state
    if not isinstance(carried, dict):
        raise UserError("the checkpoint's task_state is damaged: it must be a dictionary")
    for name, default in _NOTHING.items():
        value = carried.get(name, default)
        expected = (dict, type(None)) if default is None else type(default)
        if not isinstance(value, expected):
            raise UserError(f"the checkpoint's task_state is damaged: {name} is a {type(value).__name__}")
    return {**_NOTHING, **carried}


# The vocabulary that a model was trained with: two vocabularies may have the same size


def digest_vocabulary(dictionary: Dictionary, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a dictionary's symbols in their order, and of the subword model in `folder` if any.

    The counts of the symbols are left out, and so is <mask>, which the tasks add.
    """
    symbols = "\n".join(without_mask(dictionary))
    digests = {"dictionary": hashlib.sha256(symbols.encode("utf-8", "surrogateescape")).hexdigest()}
    options = subword_model_options(folder)
    content = b"".join(Path(path).read_bytes() for option, path in options.items() if option != "bpe")
    return {**digests, "subword model": hashlib.sha256(content).hexdigest()} if options else digests


def check_vocabulary_of(state: Mapping[str, Any], here: Mapping[str, str], data: str, checkpoint: str) -> None:
    """Compare vocabularies as ``check_same_vocabulary``, with the content of a checkpoint in place of its digests."""
    check_same_vocabulary(here, read_task_state(state.get("task_state"))["vocabulary"], data, checkpoint)


def check_same_vocabulary(
    here: Mapping[str, str], there: Mapping[str, str], data: str, checkpoint: str, instead: str = ""
) -> None:
    """Compare the vocabulary of the data with the one that a checkpoint was trained with.

    Args:
        here: digests of the data's vocabulary.
        there: those of the checkpoint's. A part that either lacks is not compared.
        data: the data's name in the message.
        checkpoint: that of the checkpoint.
        instead: the end of the message, what else the user may want.

    Raises:
        UserError: they differ.
    """
    for part in differing_parts(here, there):
        raise UserError(
            f"{data} has another {part} than {checkpoint} was trained with: prepare it again with --tokenizer and "
            f"that checkpoint, or name the data that belongs to it{instead}"
        )


def differing_parts(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the parts of two vocabularies, as ``digest_vocabulary`` names them, that both have and that differ."""
    return [part for part in here if part in there and here[part] != there[part]]


# What a run resumes from


@dataclass(frozen=True)
class Progress:
    """The progress of the run that a checkpoint is of.

    Attributes:
        updates: completed.
        next_epoch: the current epoch, or the next one where the last has ended; from 1.
        seconds: of training.
        best: the best value so far of the metric that chooses checkpoints, nan where there was no validation.
        stalled: validations since that value, where ``checkpoint.patience`` counts them.
        task_state: its vocabulary, the run's fingerprint, and what its model was converted from.
    """

    updates: int
    next_epoch: int
    seconds: float
    best: float
    stalled: int
    task_state: TaskState


def read_progress(path: Path) -> Progress:
    """Return the progress of the run that a checkpoint is of; its tensors are left in the file.

    Raises:
        DamagedCheckpointError: the file is cut short, or has changed.
        UserError: it is not a fairseq checkpoint, or holds what could run code on loading.
    """
    try:
        state = read_whole(path)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} {RUNS_CODE}") from error
    try:
        updates, extra = updates_of_training(state), state["extra_state"]
        return Progress(
            updates,
            next_epoch=int((extra.get("train_iterator") or {}).get("epoch", 1)),
            seconds=float(extra.get("previous_training_time", 0.0)),
            best=float(extra.get("best", math.nan)),
            stalled=int(extra.get(STALLED, 0)),
            task_state=read_task_state(state.get("task_state")),
        )
    except Exception as error:  # content that was made by hand
        reason = f"it lacks what a run resumes from ({type(error).__name__}: {error})"
        advice = f"linformer convert {path} --out DIR makes an initial checkpoint of its weights"
        raise UserError(f"{path} is not a fairseq checkpoint: {reason}; {advice}") from error


def updates_of_training(state: Mapping[str, Any]) -> int:
    """Return the updates of the training that a checkpoint is of, resumed or not.

    fairseq adds an entry to the history in every process. It counts from the training's first update, so the entries
    before it are the same updates, or those of the checkpoint that the training started from.
    """
    return int(state["optimizer_history"][-1].get("num_updates", 0))


def mend_last_checkpoint(
    folder: Path, kept: bool = True, check_same: Callable[[Path, Progress], None] = lambda path, progress: None
) -> None:
    """Replace a damaged last checkpoint of a run by the newest complete one; the damaged one is renamed.

    Where a last one is `kept` and is missing, the newest that our tasks wrote is taken, too: fairseq writes the last
    one after the others. `check_same` raises where the newest is of another training; then nothing is changed.

    Raises:
        DamagedCheckpointError: the last checkpoint is damaged, and there is no complete one.
    """
    for leftover in folder.glob(f"*.pt{UNFINISHED}"):  # of a run that was killed while it wrote
        leftover.unlink()
    last, damage = folder / LAST, None
    if last.is_file():
        try:
            check_whole(last)
            return
        except DamagedCheckpointError as error:
            damage = error
    elif not kept:
        return
    newest, progress = _newest_checkpoint(folder, of_ours=damage is None)
    if newest is None or progress is None:
        if damage is not None:
            raise DamagedCheckpointError(f"{damage}; {folder} has no other checkpoint: remove it to start again")
        return
    check_same(newest, progress)
    if damage is not None:
        last.replace(last.with_name(f"{last.name}.damaged"))
    reason = f"{last} was missing" if damage is None else f"{damage}; it is now {last.name}.damaged"
    logger.warning(f"{reason}: the run resumes from {newest.name}, update {progress.updates:,}")
    copy_checkpoint(newest, last)


def _newest_checkpoint(folder: Path, of_ours: bool) -> tuple[Path | None, Progress | None]:
    """Return the newest whole checkpoint of a run, and its progress; with `of_ours` of those that our tasks wrote."""
    candidates = []
    for path in filter(lambda path: _OF_A_RUN.fullmatch(path.name), folder.iterdir()):
        with contextlib.suppress(ValueError):
            progress = read_progress(path)
            if not of_ours or progress.task_state["made_of"] is not None:
                candidates.append((path, progress))
    return max(candidates, key=lambda pair: (pair[1].updates, pair[0]), default=(None, None))


# Whether it fits a model


def check_fits(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Check that the parameters of a checkpoint fit a model.

    Raises:
        UserError: a parameter is missing, or has another shape, type or value than it can have.
    """
    parameters, config = model.state_dict(), cast(Any, model.args)
    for name in parameters.keys() & state.keys():
        if parameters[name].is_floating_point() != state[name].is_floating_point():
            raise UserError(f"the checkpoint's {name} is {state[name].dtype}, this model's {parameters[name].dtype}")
    misfits = [name for name in parameters if name in state and parameters[name].shape != state[name].shape]
    misfits += sorted(parameters.keys() ^ state.keys())
    if misfits:
        shapes = (f"{name} ({_shape(state, name)} there, {_shape(parameters, name)} here)" for name in misfits[:4])
        more = f" and {len(misfits) - 4} more" if len(misfits) > 4 else ""
        advice = "pass the options of the model that it was trained with, and its vocabulary"
        if all(name.startswith("classification_heads.") for name in misfits):
            advice = "pass load_checkpoint_heads=false for a new classification head"
        raise UserError(f"the checkpoint is of another model: {', '.join(shapes)}{more}: {advice}")
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UserError(f"the checkpoint's {name} holds numbers that are not finite: its training diverged")
        multiplier: Any = config.projection_multiplier if name.endswith("_projection.multiplier") else None
        if multiplier is not None and not math.isclose(value, multiplier, rel_tol=2**-7):  # it may be in 16 bits
            raise UserError(f"projection_multiplier={multiplier} is not allowed: it must be {float(value):g}, {name}")
    _check_shared(model, state)


def _shape(state: dict[str, Tensor], name: str) -> str:
    return "x".join(map(str, state[name].shape)) or "a number" if name in state else "absent"


def _check_shared(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Check that a parameter with several names has one value: loading would silently keep the last."""
    first_name: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_name.setdefault(id(parameter), name)
        if first != name and not torch.equal(state[first], state[name]):
            option = "untie_weights_roberta=true" if "lm_head" in name else "the sharing that it was trained with"
            raise UserError(f"the checkpoint has two values for {first} and {name}, this model has one: pass {option}")


# Where it lies, and its data


def checkpoint_file(path: Path) -> Path:
    """Return the checkpoint that a user means: the file itself, or that of a folder, the best one of a run.

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
    """Return the error for an option that names no file."""
    return FileNotFoundError(f"checkpoint.{option}={named}: there is no such checkpoint")


def data_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """Return the folder of the data of a checkpoint with the configuration `cfg`.

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
    advice = "name the task's prepared folder with --data (in Python data_name_or_path)"
    return _trained_on(checkpoint, cfg, "prepared task", advice)


def vocabulary_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """Return the folder with the dict.txt and the subword model of a checkpoint with the configuration `cfg`.

    That is the checkpoint's own folder where it holds a dict.txt, else the data folder that it was trained on.

    Raises:
        FileNotFoundError, UserError: as ``data_folder``.
    """
    if (checkpoint.parent / "dict.txt").is_file():
        return checkpoint.parent
    advice = f"copy dict.txt and the subword model from there into {checkpoint.parent}"
    return _trained_on(checkpoint, cfg, "dict.txt", advice)


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
    """Return the checkpoint that a tokenizer's path means, if it means one, and its content.

    Raises:
        UserError: as ``checkpoint_file`` and ``read_checkpoint``.
    """
    file = checkpoint_file(path)
    return (file, read_checkpoint(file)) if file.suffix == ".pt" and file.is_file() else None


def find_tokenizer(path: Path) -> Path:
    """Return the tokenizer that `path` means, for ``load_tokenizer``.

    That of a checkpoint, or of a run's folder with checkpoints, is the one beside the checkpoint where there is a
    dict.txt, else that of the data that it was trained on. Anything else is returned unchanged.

    Raises:
        FileNotFoundError, UserError: as ``read_checkpoint``, ``vocabulary_folder`` and ``checkpoint_file``.
    """
    file: Path | None = path if path.suffix == ".pt" else None
    if path.is_dir() and not (path / "dict.txt").is_file():  # all of a run have the same data
        candidates = [checkpoint_file(path), *sorted(path.glob("*.pt"))]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
    return path if file is None else vocabulary_folder(file, read_checkpoint(file)["cfg"])
