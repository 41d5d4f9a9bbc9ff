"""Helpers of verbs and scripts: exit status, models of the Hub, and the next command."""

import contextlib
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError

# Files of a model on the Hub: no code, weights as safetensors. 0_*: older layout of sentence-transformers.
HUB_FILES = ("*.json", "*.txt", "*.model", "*.bpe", "model*.safetensors", "0_*/model*.safetensors")
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@contextlib.contextmanager
def program() -> Iterator[None]:
    """Set the exit status and messages of a program, and let libraries log only warnings and errors.

    A UserError or OSError prints one line, and the status is 1. After a signal, or a closed pipe as with `| head`, the
    status is 128 plus the number of the signal. Any other exception is a defect and keeps its traceback.
    """
    level = logging.root.level
    logging.basicConfig()  # otherwise importing fairseq sets the level to DEBUG
    logging.root.setLevel(logging.WARNING)
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, _exit_on_signal)}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, _exit_on_signal)
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python flushes into the pipe again
        sys.exit(128 + signal.SIGPIPE)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        logging.root.setLevel(level)


def _exit_on_signal(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # a closed terminal sends SIGHUP twice, which would interrupt the cleanup
    sys.exit(128 + number)


def quieten_transformers() -> None:
    """Let transformers log errors only; raise a UserError if it is not installed."""
    try:
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise UserError(f"transformers is needed ({error}): pip install 'fairseq-linformer[hf]'") from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def resolve_model(model: Path) -> Path:
    """Return a path; if it does not exist but can be a name on the Hub, download the model and return its folder.

    Names are NAME and OWNER/NAME, except names that end in .pt and paths in existing folders.
    """
    name = model.as_posix()
    in_folder = "/" in name and model.parent.is_dir()
    if model.exists() or in_folder or model.suffix == ".pt" or not HUB_NAME.fullmatch(name):
        return model
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (ImportError, OSError, ValueError) as error:
        reason = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"there is no file or folder {name}, and no model of that name can be downloaded from the Hub ({reason}): "
            f"on a machine with access, type hf download {name} --local-dir {model.name}, and give that folder"
        ) from error


def print_next(data: Path, tasks: Sequence[str], tokenizer: Path) -> None:
    """Print the command that fine-tunes on prepared tasks, if the tokenizer is a run's folder or checkpoint."""
    from ..checkpoint import checkpoint_file

    if tasks and (model := checkpoint_file(tokenizer)).suffix == ".pt" and model.is_file():
        words = ["linformer", "finetune", str(tokenizer), "--data", str(data), "--tasks", *tasks]
        print(f"next: {shlex.join(words)}")
