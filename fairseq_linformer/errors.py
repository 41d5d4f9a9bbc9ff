"""How command lines report what the user can mend: the scripts, and fairseq's own once they import the plugin."""

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
    """Refuses a value that an option cannot have.

    Args:
        name: of the option, as the user types it.
        value: that was given.
        holds: whether it is allowed.
        allowed: what is allowed; it completes "it must be ".

    Raises:
        UserError: `holds` is false. The message names the option, its value and what is allowed.
    """
    if not holds:
        typed = " ".join(str(value).split())  # the message is one line, whatever was typed
        raise UserError(f"{name}={typed} is not allowed: it must be {allowed}")


@contextlib.contextmanager
def naming(hidden: str, shown: str) -> Iterator[None]:
    """Lets errors that the user can mend call a temporary file or folder by what it holds."""
    try:
        yield
    except (UserError, OSError) as error:
        if hidden not in str(error):
            raise
        raise type(error)(str(error).replace(f"{hidden}{os.sep}", f"{shown}: ").replace(hidden, shown)) from error


LAST_LINES = "; its last lines:\n"  # after it, a message shows what a failed program printed


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line, and status 1, on an error that the user can mend.

    Such errors are UserError and OSError: their messages name the thing, its value and what is allowed. Line breaks in
    the value become spaces here. Every other exception is a defect of this package and keeps its traceback.
    Ctrl-C ends the program with status 130, as a shell expects. SIGTERM ends it as cleanly, with 143, so that the
    processes that it started end with it. Neither signal is lost where Python ignores exceptions: in finalizers, and
    while the interpreter shuts down.
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
    """What a user typed, such as a path, with a space for each line break in it."""
    return " ".join(str(text).splitlines())


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Sends a signal again, a moment later, that came while a finalizer ran: Python ignores exceptions there."""
    if not isinstance(unraisable.exc_value, SystemExit | KeyboardInterrupt):
        return sys.__unraisablehook__(unraisable)
    again = signal.SIGINT if isinstance(unraisable.exc_value, KeyboardInterrupt) else signal.SIGTERM
    threading.Timer(0.01, os.kill, (os.getpid(), again)).start()


def _terminate(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


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
    if kind is KeyboardInterrupt:  # before the first update, or a second time: training.run saves otherwise
        print("interrupted", file=sys.stderr)
        return
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
    """An exception, the one that it was raised from or while handling, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
