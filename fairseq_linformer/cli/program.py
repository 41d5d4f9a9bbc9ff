"""What all command lines have in common: how they end on an error, and what libraries may say."""

import contextlib
import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..checkpoints.reading import checkpoint_file
from ..errors import UserError
from .ending import one_line_errors


@contextlib.contextmanager
def program() -> Iterator[None]:
    """Ends the program with one line on an error that the user can mend. Libraries log only warnings and errors."""
    root = logging.getLogger()
    level = root.level  # DEBUG: importing fairseq sets it, for every library
    root.setLevel(logging.WARNING)
    try:
        with one_line_errors():
            yield
    finally:
        root.setLevel(level)


def quieten_transformers() -> None:
    """Leaves transformers errors alone to say; it has loggers and progress bars of its own.

    Raises:
        UserError: it is not installed.
    """
    try:
        from transformers.utils import logging as its_logging
    except ImportError as error:
        raise UserError(f"transformers is needed ({error}): pip install 'fairseq-linformer[hf]'") from error
    its_logging.set_verbosity_error()
    its_logging.disable_progress_bar()


def print_next(data: Path, tasks: Sequence[str], tokenizer: Path) -> None:
    """Print the command that fine-tunes on prepared tasks, if there are any and the tokenizer is that of a model."""
    if tasks and (model := checkpoint_file(tokenizer)).suffix == ".pt" and model.is_file():
        words = ["linformer", "finetune", str(tokenizer), "--data", str(data), "--tasks", *tasks]
        print(f"next: {shlex.join(words)}")
