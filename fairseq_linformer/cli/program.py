"""What every command line runs in."""

import contextlib
import logging
from collections.abc import Iterator

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
