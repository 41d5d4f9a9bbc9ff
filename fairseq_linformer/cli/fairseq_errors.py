"""What fairseq's command lines say of an error: one line where the user can mend it."""

import builtins
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import fairseq
import fairseq_cli
import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu, verify_checkpoint_directory
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.options import parse_args_and_arch
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import import_user_module
from hydra.errors import CompactHydraException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from ..checkpoints.files import DamagedCheckpointError
from ..checkpoints.reading import read_checkpoint
from ..errors import UserError, did_you_mean
from ..training.configuration import explain_composition, no_such_option, options_around

COMMAND_LINES = tuple(map(Path, fairseq_cli.__path__))
PACKAGE = Path(__file__).parents[1]
# fairseq raises ValueError for what the user can mend. That of any other code, this package included, may be a defect.
FAIRSEQ = (Path(fairseq.__file__).parent, *COMMAND_LINES)
RESET = "(--reset-optimizer)"  # what fairseq's trainer says where a checkpoint is of another optimizer or criterion
TOO_LONG = "should not exceed max_tokens="  # and its batches of a row that is longer
TOO_FEW = " available devices"  # and what starts a process for each GPU
EMPTY = "The dataset is empty."  # and its iterators of a split without a batch
NO_TASK = "--task is missing: it is that of the training, such as --task dynamic_masked_lm"
NO_PROFILE = "common.profile=true is not allowed: it must be false without a GPU"
_USER_ERRORS = [f"{kind.__module__}.{kind.__name__}" for kind in (UserError, DamagedCheckpointError)]  # in a traceback


def install_excepthook() -> None:
    """Lets fairseq's command lines end as the scripts do. In any other program this does nothing.

    With ``HYDRA_FULL_ERROR=1`` all of fairseq's command lines keep their tracebacks.
    """
    program = Path(*sys.argv[:1])
    is_fairseqs = program.stem.startswith("fairseq-") or program.parent.name == "fairseq_cli"
    if is_fairseqs and sys.excepthook is sys.__excepthook__ and os.environ.get("HYDRA_FULL_ERROR") != "1":
        os.environ["HYDRA_FULL_ERROR"] = "1"  # or Hydra prints exceptions itself, and the hook sees none
        sys.excepthook = report


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A ``sys.excepthook``: prints what the user can mend in one line, as the last line.

    Where another error followed from it, the traceback of that error comes first. The exception is a plain Exception:
    fairseq wraps whatever stops it from loading a checkpoint in one, which says less than what it wraps.
    """
    if kind is KeyboardInterrupt:  # before the first update, or a second time: training.active_run saves otherwise
        print("interrupted", file=sys.stderr)
        return
    wrappers = []
    for link in _chain(error):
        line = explain(link)
        if line is not None:
            break
        wrappers.append(link)
    else:
        line = None
    if line is None or any(type(wrapper) is not Exception for wrapper in wrappers):
        sys.__excepthook__(kind, error, trace)
    if line is not None:
        print(f"error: {line}", file=sys.stderr)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, the one that it was raised from or while handling, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def explain(error: BaseException) -> str | None:
    """What an exception itself, without its causes, tells the user to mend; None where it may be a defect."""
    text = str(error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    path = error.filename if isinstance(error, OSError) else None
    if path == "" and verify_checkpoint_directory.__code__ in [frame.f_code for frame in frames]:
        path, text = "checkpoint.save_dir", "checkpoint.save_dir is empty: it must be the name of a folder"
    if path:
        return _in_one_line(text)
    if isinstance(error, FileNotFoundError) and frames and frames[-1].f_code is import_user_module.__code__:
        text = f"common.user_dir={frames[-1].f_locals['args'].user_dir}: there is no such folder"
    if isinstance(error, KeyError) and frames and frames[-1].f_code is parse_args_and_arch.__code__:
        text = NO_TASK
    if torch.cuda.cudart.__code__ in [frame.f_code for frame in frames]:  # before any option is checked
        text = NO_PROFILE
    for frame in frames:
        if frame.f_code is load_checkpoint_to_cpu.__code__:
            return _why_unread(Path(frame.f_locals["path"]))
    if "Traceback (most recent call last):\n" in text:
        return _explain_text(text)
    if isinstance(error, OmegaConfBaseException) and not isinstance(error, ConfigAttributeError):  # raised by code
        return _explain_value(error)
    if isinstance(error, CompactHydraException):
        return explain_composition(error)
    raised_in = frames[-1].f_code.co_filename if frames else ""
    in_words = isinstance(error, UserError) or _is_in(_speaking(type(error)), raised_in)
    in_words = in_words or text.startswith((EMPTY, NO_TASK, NO_PROFILE))
    # The command lines assert what they need of their options, the trainer what it needs of a checkpoint.
    says_it = _is_in(COMMAND_LINES, raised_in) or any(words in text for words in (RESET, TOO_LONG, TOO_FEW))
    asserted = isinstance(error, AssertionError) and says_it
    text = text.replace(RESET, f"(checkpoint.reset_optimizer=true, or {RESET[1:]}")
    return _in_one_line(text) if text and (in_words or asserted) else None


def _speaking(kind: object) -> tuple[Path, ...]:
    """The folders of the code whose errors of that kind are messages to the user."""
    if not isinstance(kind, type) or not issubclass(kind, (ValueError, OSError)):
        return ()
    return (PACKAGE, *FAIRSEQ) if issubclass(kind, OSError) else FAIRSEQ


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _is_in(folders: Iterable[Path], file: str) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _why_unread(checkpoint: Path) -> str | None:
    try:
        read_checkpoint(checkpoint)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def _explain_text(text: str) -> str | None:
    """The same for an exception of another process (a rank, a worker that loads data): only its text is left."""
    for trace in re.split(r"\n\n(?:During handling of|The above exception was) .*\n\n", text):
        files = re.findall(r'^ *File "(.+)", line \d+', trace, re.MULTILINE)
        name, _, message = trace.rstrip().rpartition("\n")[2].partition(": ")
        if message and files and (name in _USER_ERRORS or _is_in(_speaking(getattr(builtins, name, None)), files[-1])):
            return message
    return None


def _explain_value(error: OmegaConfBaseException) -> str:
    """A value that does not fit its option, an option without a value, or one that does not exist."""
    groups = {"model": MODEL_DATACLASS_REGISTRY, "task": TASK_DATACLASS_REGISTRY}
    groups |= {group: registry["dataclass_registry"] for group, registry in REGISTRIES.items()}
    # fairseq merges each group alone, so the group's name is missing from that of the option.
    group = next((f"{group}." for group, kinds in groups.items() if error.object_type in kinds.values()), "")
    name = f"{group}{error.full_key}"
    if isinstance(error, MissingMandatoryValue):
        return f"{name} is missing: pass {name}=VALUE"
    if isinstance(error, ConfigKeyError) and isinstance(error.parent_node, DictConfig):
        return no_such_option(name, [f"{group}{option}" for option in options_around(error.parent_node)])
    said = str(error).partition("\n")[0]
    if choice := re.fullmatch(r"Invalid value '(.*)', expected one of \[(.*)\]", said):
        said += did_you_mean(choice[1], choice[2].split(", "))
    return f"{name}: {said}" if error.full_key else said
