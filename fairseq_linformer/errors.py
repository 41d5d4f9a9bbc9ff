"""How a command line reports what the user can mend: the scripts, and fairseq's own where they import the plugin."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType


class UserError(ValueError):
    """What the user can mend: the message names the thing, its value and what is allowed."""


def check(name: str, value: object, holds: bool, allowed: str) -> None:
    """ValueError that names an option, its value and what is allowed, where it does not hold."""
    if not holds:
        typed = " ".join(str(value).split())  # the message is one line, whatever was typed
        raise UserError(f"{name}={typed} is not allowed: it must be {allowed}")


LAST_LINES = "; its last lines:\n"  # after it, a message shows what a failed program printed


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line, and status 1, on an error that the user can mend.

    The package says such things with UserError and OSError, whose messages name the thing, its value and what is
    allowed; line breaks in such a value are spaces here. Everything else is a defect of ours and keeps its traceback.
    Ctrl-C ends with 130, as a shell expects; a request to terminate ends as cleanly, with 143, so that what the program
    has started ends with it. Neither is lost where Python ignores exceptions: in finalizers, and at the interpreter's
    end.
    """
    previous = signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _raise_again
    try:
        yield
    except (UserError, OSError) as error:
        said, mark, printed = str(error).partition(LAST_LINES)
        sys.exit(f"error: {one_line(said)}{mark}{printed}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, previous)
        sys.unraisablehook = sys.__unraisablehook__
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def one_line(text: object) -> str:
    """What a user typed, say a path, with a space for each line break in it."""
    return " ".join(str(text).splitlines())


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """A signal that came while a finalizer ran, whose exceptions Python ignores, is raised again a moment later."""
    if not isinstance(unraisable.exc_value, SystemExit | KeyboardInterrupt):
        return sys.__unraisablehook__(unraisable)
    again = signal.SIGINT if isinstance(unraisable.exc_value, KeyboardInterrupt) else signal.SIGTERM
    threading.Timer(0.01, os.kill, (os.getpid(), again)).start()


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def install_excepthook() -> None:
    """Lets fairseq's command lines end as the scripts do; in any other program this does nothing.

    Whoever sets ``HYDRA_FULL_ERROR=1`` wants tracebacks, and gets them from all of fairseq's command lines.
    """
    program = Path(*sys.argv[:1])
    is_fairseqs = program.stem.startswith("fairseq-") or program.parent.name == "fairseq_cli"
    if is_fairseqs and sys.excepthook is sys.__excepthook__ and os.environ.get("HYDRA_FULL_ERROR") != "1":
        os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints exceptions in its own way and none gets to the hook
        sys.excepthook = report


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A ``sys.excepthook``: what the user can mend is said in one line, the last that is printed.

    Where it was merely in the way of another error, that one's traceback stands before it; but fairseq wraps whatever
    stops it from loading a checkpoint in a plain Exception, which says less than what it wraps.
    """
    from .system.explaining import explain

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
    """An exception, what it was raised from or while handling, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
