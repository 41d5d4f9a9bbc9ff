"""How a command line reports what the user can mend."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line, and status 1, on an error that the user can mend.

    The package says such things with ValueError and OSError, whose messages name the thing, its value and what is
    allowed. Everything else is a defect of ours and keeps its traceback. Ctrl-C ends with 130, as a shell expects; a
    request to terminate ends as cleanly, with 143, so that what the program has started ends with it.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
