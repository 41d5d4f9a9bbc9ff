"""How a command line reports what the user can mend."""

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line, and status 1, on an error that the user can mend.

    The package says such things with ValueError and OSError, whose messages name the thing, its value and what is
    allowed. Everything else is a defect of ours and keeps its traceback. Ctrl-C ends with 130, as a shell expects.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
