"""Checkpoints: their content, the state that our tasks add, and checks against a vocabulary and a model.

``checkpoint_files.py`` writes checkpoints atomically and rejects damaged ones.
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
from .data.subword_models import subword_model_options
from .errors import UserError
from .sentence_modules import is_of_transformers

logger = logging.getLogger(__name__)

UNTRAINED = "checkpoint.pt"  # in the folder of an imported or converted model
FINE_TUNED = ("text_prediction", "sentence_prediction")  # tasks whose rows are separate texts with labels

RUNS_CODE = "is not loaded: it contains more than plain data, which could run code"
NO_CHECKPOINT = "is not a fairseq checkpoint: it must contain a model and its configuration"
PATIENCE_KEY = "validations_without_gain"  # in a checkpoint's extra_state
FIRST_POSITION = 2  # fairseq numbers positions from the padding index plus 1; earlier rows of the table are unused

# fairseq's names of a run's checkpoints except the last; no run resumes from averaged or converted checkpoints.
_RUN_CHECKPOINT = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|\.best_.+)\.pt")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a fairseq checkpoint of any version onto the CPU.

    Returns:
        The checkpoint: ``model`` has the parameters, ``cfg`` the configuration; the rest defaults to an untrained one.

    Raises:
        FileNotFoundError: the file does not exist.
        UserError: the file is not a complete checkpoint, or could run code on loading.
    """
    importlib.import_module("fairseq_linformer.plugin")  # registers the classes that the configuration may name
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
        names = [state["cfg"].model._name, state["cfg"].task._name, *state["model"]]
        tensors = state["model"].values()
        if not (all(isinstance(name, str) for name in names) and all(isinstance(value, Tensor) for value in tensors)):
            raise UserError(f"{path} {NO_CHECKPOINT}: names, and parameters that are tensors")
    except (UserError, OSError):
        raise
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} {RUNS_CODE}") from error
    except Exception as error:  # the type depends on what is wrong in the file
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{path}: its configuration cannot be read ({reason})") from error
    state["args"] = None  # fairseq has converted it to cfg
    return state


# State that our tasks add to a checkpoint


class Origin(TypedDict):
    """Source of a conversion: the name of a file, a folder or a model on the Hub, and its SHA-256."""

    source: str
    sha256: str


class Labels(TypedDict):
    """Meaning of a fine-tuned model's outputs: the task's ``classes`` by index, its ``scale`` of scores."""

    classes: list[str]
    scale: float


class TaskState(TypedDict):
    """State that our tasks add to fairseq's ``task_state``.

    Attributes:
        vocabulary: digests of the vocabulary (``digest_vocabulary``); empty if the checkpoint has none.
        made_of: the run's fingerprint and command; None in a checkpoint of other fairseq tasks.
        converted_from: sources of the model's conversions, the first one first; trainings keep them.
        labels: None if the model was not fine-tuned.
        sentence_modules: files of sentence-transformers, text by name (``sentence_modules.py``); trainings keep them.
        drawn_lm_head: True if the LM head is random and untrained, as in an imported model that had none.
    """

    vocabulary: dict[str, str]
    made_of: dict[str, Any] | None
    converted_from: list[Origin]
    labels: Labels | None
    sentence_modules: dict[str, str]
    drawn_lm_head: bool


# Inherited from the initial checkpoint of a training or a conversion.
INHERITED = ("converted_from", "sentence_modules", "drawn_lm_head")
_DEFAULT_TASK_STATE: TaskState = {
    "vocabulary": {},
    "made_of": None,
    "converted_from": [],
    "labels": None,
    "sentence_modules": {},
    "drawn_lm_head": False,
}


def read_task_state(task_state: Any) -> TaskState:
    """Return a checkpoint's ``task_state``, with defaults for missing entries of ``TaskState``."""
    return {**_DEFAULT_TASK_STATE, **(task_state or {})}


# The vocabulary of a model: two vocabularies may have the same size


def digest_vocabulary(dictionary: Dictionary, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a dictionary's ordered symbols, and that of the subword model in `folder` if there is one.

    Excluded are the symbols' counts and <mask>, which the tasks add.
    """
    symbols = "\n".join(without_mask(dictionary))
    digests = {"dictionary": hashlib.sha256(symbols.encode("utf-8", "surrogateescape")).hexdigest()}
    options = subword_model_options(folder)
    content = b"".join(Path(path).read_bytes() for option, path in options.items() if option != "bpe")
    return {**digests, "subword model": hashlib.sha256(content).hexdigest()} if options else digests


def check_vocabulary_of(state: Mapping[str, Any], digests: Mapping[str, str], data: str, checkpoint: str) -> None:
    """Compare the vocabulary of the data with that of a loaded checkpoint, as ``check_same_vocabulary`` does."""
    check_same_vocabulary(digests, read_task_state(state.get("task_state"))["vocabulary"], data, checkpoint)


def check_same_vocabulary(
    digests: Mapping[str, str], trained: Mapping[str, str], data: str, checkpoint: str, remedy: str = ""
) -> None:
    """Compare the vocabulary of the data with that of a checkpoint.

    Args:
        digests: of the data's vocabulary.
        trained: digests of the checkpoint's vocabulary. A part that either lacks is not compared.
        data, checkpoint: names in the message.
        remedy: end of the message, another remedy.

    Raises:
        UserError: the vocabularies differ.
    """
    for part in differing_parts(digests, trained):
        raise UserError(
            f"{data} has another {part} than {checkpoint} was trained with: prepare it again with --tokenizer and "
            f"that checkpoint, or name the data that belongs to it{remedy}"
        )


def differing_parts(digests: Mapping[str, str], trained: Mapping[str, str]) -> list[str]:
    """Return the parts of ``digest_vocabulary`` that two vocabularies both have and that differ."""
    return [part for part in digests if part in trained and digests[part] != trained[part]]


# Resuming a run


@dataclass(frozen=True)
class Progress:
    """Progress of a run at one of its checkpoints.

    Attributes:
        updates: completed updates.
        next_epoch: the current epoch, or the next one if the last has ended; from 1.
        seconds: training time.
        best: best value so far of the metric that selects checkpoints; nan before the first validation.
        stalled: validations since that value, if ``checkpoint.patience`` is used.
        task_state: the vocabulary, the run's fingerprint, and the sources of the model's conversions.
    """

    updates: int
    next_epoch: int
    seconds: float
    best: float
    stalled: int
    task_state: TaskState


def read_progress(path: Path) -> Progress:
    """Return the progress of a run from one of its checkpoints, without reading its tensors.

    Raises:
        DamagedCheckpointError: the file is truncated or was changed.
        UserError: the file is not a fairseq checkpoint, or could run code on loading.
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
            stalled=int(extra.get(PATIENCE_KEY, 0)),
            task_state=read_task_state(state.get("task_state")),
        )
    except Exception as error:  # the content was edited by hand
        reason = f"a run cannot resume from it ({type(error).__name__}: {error})"
        advice = f"linformer convert {path} --out DIR makes an initial checkpoint of its weights"
        raise UserError(f"{path} is not a fairseq checkpoint: {reason}; {advice}") from error


def updates_of_training(state: Mapping[str, Any]) -> int:
    """Return the number of updates of a checkpoint's training, including those before it was resumed.

    Every process adds an entry to fairseq's history. It counts from the training's first update, so earlier entries
    count the same updates, or those of the initial checkpoint.
    """
    return int(state["optimizer_history"][-1].get("num_updates", 0))


def mend_last_checkpoint(
    folder: Path, kept: bool = True, check_same: Callable[[Path, Progress], None] = lambda path, progress: None
) -> None:
    """Replace a damaged last checkpoint of a run by the newest complete one, and rename the damaged one.

    If the run keeps a last checkpoint (`kept`) and it is missing, the newest one of our tasks replaces it: fairseq
    writes the last one after the others. If `check_same` raises an error for the newest, nothing is changed.

    Raises:
        DamagedCheckpointError: the last checkpoint is damaged, and no other one is complete.
    """
    for leftover in folder.glob(f"*.pt{UNFINISHED}"):  # from a run that was killed while saving
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
    candidates = []
    for path in filter(lambda path: _RUN_CHECKPOINT.fullmatch(path.name), folder.iterdir()):
        with contextlib.suppress(ValueError):
            progress = read_progress(path)
            if damage is not None or progress.task_state["made_of"] is not None:
                candidates.append((path, progress))
    if not candidates:
        if damage is not None:
            raise DamagedCheckpointError(f"{damage}; {folder} has no other checkpoint: remove it to start again")
        return
    newest, progress = max(candidates, key=lambda pair: (pair[1].updates, pair[0]))
    check_same(newest, progress)
    if damage is not None:
        last.replace(last.with_name(f"{last.name}.damaged"))
    reason = f"{last} was missing" if damage is None else f"{damage}; it is now {last.name}.damaged"
    logger.warning(f"{reason}: the run resumes from {newest.name}, update {progress.updates:,}")
    copy_checkpoint(newest, last)


# Checks against a model


def check_fits(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Check that the parameters of a checkpoint fit a model.

    Raises:
        UserError: a parameter is missing, or its shape, type or value does not fit.
    """
    parameters, config = model.state_dict(), cast(Any, model.args)
    for name in parameters.keys() & state.keys():
        if parameters[name].is_floating_point() != state[name].is_floating_point():
            raise UserError(f"the checkpoint's {name} is {state[name].dtype}, this model's {parameters[name].dtype}")
    misfits = [name for name in parameters if name in state and parameters[name].shape != state[name].shape]
    misfits += sorted(parameters.keys() ^ state.keys())
    if misfits:
        shapes = (
            f"{name} ({_shape(state, name)} in the checkpoint, {_shape(parameters, name)} in this model)"
            for name in misfits[:4]
        )
        more = f" and {len(misfits) - 4} more" if len(misfits) > 4 else ""
        advice = "pass the options of the model that it was trained with, and its vocabulary"
        if all(name.startswith("classification_heads.") for name in misfits):
            advice = "pass load_checkpoint_heads=false for a new classification head"
        raise UserError(f"the checkpoint is of another model: {', '.join(shapes)}{more}: {advice}")
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UserError(f"the checkpoint's {name} has values that are not finite: its training diverged")
        multiplier: Any = config.projection_multiplier if name.endswith("_projection.multiplier") else None
        if multiplier is not None and not math.isclose(value, multiplier, rel_tol=2**-7):  # it may be in 16 bits
            raise UserError(f"projection_multiplier={multiplier} is not allowed: it must be {float(value):g}, {name}")
    # Loading would silently keep the last of different values of a parameter with several names.
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        alias = first_names.setdefault(id(parameter), name)
        if alias != name and not torch.equal(state[alias], state[name]):
            option = "untie_weights_roberta=true" if "lm_head" in name else "the sharing that it was trained with"
            raise UserError(f"the checkpoint has two values for {alias} and {name}, this model has one: pass {option}")


def _shape(state: dict[str, Tensor], name: str) -> str:
    return "x".join(map(str, state[name].shape)) or "a number" if name in state else "absent"


# The file of a checkpoint, and its data


def checkpoint_file(path: Path) -> Path:
    """Return a checkpoint file: `path` itself, or in a folder the best checkpoint of a run or the untrained one.

    Raises:
        UserError: `path` is a folder of transformers.
    """
    if not path.is_dir():
        return path
    untrained, best = path / UNTRAINED, path / BEST
    file = untrained if untrained.is_file() and not best.is_file() else best
    if not file.is_file() and is_of_transformers(path):
        raise UserError(f"{path} is a folder of transformers: make a checkpoint of it with linformer import")
    return file


def data_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """Return the data folder of a checkpoint with the configuration `cfg`.

    For a fine-tuned model it is a prepared task: the checkpoint's folder if that is one, else the training data.
    For any other model it is the ``vocabulary_folder``.

    Raises:
        FileNotFoundError: the data folder does not exist, as on another machine.
        UserError: the configuration does not name a data folder.
    """
    if cfg.task._name not in FINE_TUNED:
        return vocabulary_folder(checkpoint, cfg)
    if all((checkpoint.parent / name).is_file() for name in ("dict.txt", "input0/dict.txt")):
        return checkpoint.parent
    advice = "name the task's prepared folder with --data (in Python data_name_or_path)"
    return _trained_on(checkpoint, cfg, "prepared task", advice)


def vocabulary_folder(checkpoint: Path, cfg: DictConfig) -> Path:
    """Return the folder with the dict.txt and the subword model of a checkpoint with the configuration `cfg`.

    It is the checkpoint's folder if that contains a dict.txt, else the folder of the training data.
    """
    if (checkpoint.parent / "dict.txt").is_file():
        return checkpoint.parent
    advice = f"copy dict.txt and the subword model from there into {checkpoint.parent}"
    return _trained_on(checkpoint, cfg, "dict.txt", advice)


def _trained_on(checkpoint: Path, cfg: DictConfig, missing: str, advice: str) -> Path:
    trained_on = getattr(cfg.task, "data", None)
    if not isinstance(trained_on, str):
        raise UserError(f"{checkpoint} does not name the folder that it was trained on: its task.data is {trained_on}")
    data = Path(split_paths(trained_on)[0])  # the first of several folders holds the dictionary
    if not data.is_dir():
        raise FileNotFoundError(
            f"there is no {missing} in the folder of {checkpoint}, and the folder that it was trained on, "
            f"{data.absolute()}, does not exist: {advice}"
        )
    return data


def read_named_checkpoint(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint that a tokenizer's path names, and its content; None if it names no checkpoint."""
    file = checkpoint_file(path)
    return (file, read_checkpoint(file)) if file.suffix == ".pt" and file.is_file() else None


def find_tokenizer(path: Path) -> Path:
    """Return the path of a tokenizer for ``load_tokenizer``.

    For a checkpoint, or a run's folder with checkpoints, it is the ``vocabulary_folder``. Any other path is returned
    unchanged.
    """
    file: Path | None = path if path.suffix == ".pt" else None
    if path.is_dir() and not (path / "dict.txt").is_file():  # all checkpoints of a run have the same data
        candidates = [checkpoint_file(path), *sorted(path.glob("*.pt"))]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
    return path if file is None else vocabulary_folder(file, read_checkpoint(file)["cfg"])
