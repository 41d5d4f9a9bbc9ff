"""Reports of errors caused by user input, in one line, for fairseq's command lines."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

import torch
from hydra.errors import HydraException
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException

from ..errors import UserError, did_you_mean
from ..training.configuration import explain_composition


def install_excepthook() -> None:
    """Report errors of fairseq's command lines like those of this package; in other programs do nothing.

    With ``HYDRA_FULL_ERROR=1`` tracebacks are kept.
    """
    program = Path(*sys.argv[:1])
    is_fairseqs = program.stem.startswith("fairseq-") or program.parent.name == "fairseq_cli"
    if is_fairseqs and sys.excepthook is sys.__excepthook__ and os.environ.get("HYDRA_FULL_ERROR") != "1":
        os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints exceptions itself and the hook is not called
        sys.excepthook = report


def report(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an error caused by user input in one line.

    If it caused another error, that one's traceback is printed first, except for a plain Exception, in which fairseq
    wraps errors of loading a checkpoint.
    """
    if error_type is KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return
    explained = next((link for link in _chain(error) if explain(link)), None)
    if explained is None or (explained is not error and error_type is not Exception):
        sys.__excepthook__(error_type, error, trace)
    if explained is not None:
        print(f"error: {explain(explained)}", file=sys.stderr)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes and contexts."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def explain(error: BaseException) -> str:
    """Return the message of an error caused by user input; empty for other errors."""
    text = str(error).rstrip()
    if isinstance(error, HydraException):
        return explain_composition(error)
    if isinstance(error, OmegaConfBaseException) and not isinstance(error, ConfigAttributeError):  # a defect
        line = text.partition("\n")[0]
        if choice := re.fullmatch(r"Invalid value '(.*)', expected one of \[(.*)\]", line):
            line += did_you_mean(choice[1], choice[2].split(", "))
        return ": ".join(filter(None, [error.full_key, line]))
    # fairseq starts its profiler, which needs CUDA, before our checks of options.
    if any(frame.f_code is torch.cuda.cudart.__code__ for frame, _ in walk_tb(error.__traceback__)):
        return "common.profile=True is not allowed: it must be false without a GPU"
    if isinstance(error, UserError | OSError):  # errors of data loading processes include a traceback
        return text.rpartition("\n")[2] if "Traceback" in text else " ".join(text.split())
    return ""
