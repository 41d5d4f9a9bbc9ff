"""What every command line runs in, and what it is called."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from ..errors import one_line_errors


@contextlib.contextmanager
def program() -> Iterator[None]:
    """Ends the program with one line on an error that the user can mend; libraries log warnings and errors alone."""
    root = logging.getLogger()
    level = root.level  # DEBUG: importing fairseq sets it, for every library
    root.setLevel(logging.WARNING)
    try:
        with one_line_errors():
            yield
    finally:
        root.setLevel(level)


def typed(name: str) -> str:
    """What to type for one of the command lines: as this program was, its script or what setup.py installs for it."""
    if Path(sys.argv[0]).suffix == ".py":
        return f"python scripts/{name}.py"
    return f"linformer-{name.replace('_', '-')}"
