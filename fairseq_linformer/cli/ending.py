"""How our own command lines end: on an error that the user can mend, and on a signal."""

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from traceback import walk_stack
from typing import Any

from ..errors import LAST_LINES, UserError, one_line


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line, and status 1, on an error that the user can mend.

    Such errors are UserError and OSError: their messages name the thing, its value and what is allowed. Line breaks in
    the value become spaces here. Every other exception is a defect of this package and keeps its traceback.
    Ctrl-C ends the program with status 130, as a shell expects. SIGTERM ends it as cleanly, with 143, so that the
    processes that it started end with it, and so does SIGHUP, with 129, where nohup does not ignore it. No signal is
    lost where Python ignores exceptions: in finalizers, and while the interpreter shuts down. Where nobody reads what
    it prints any more, as before `| head`, it ends without a word, with the 141 of programs that SIGPIPE ends.
    """
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, _end)}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, _end)
    sys.unraisablehook = _raise_again
    try:
        yield
        sys.stdout.flush()
    except (UserError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(128 + signal.SIGPIPE)
        said, mark, printed = str(error).partition(LAST_LINES)
        sys.exit(f"error: {one_line(said)}{mark}{printed}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = sys.__unraisablehook__
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that nobody reads; what is left is dropped: Python would write it again."""
    pipe = select.poll()
    pipe.register(sys.stdout, 0)
    if not any(event & select.POLLERR for _, event in pipe.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _end(number: int, frame: Any) -> None:
    """Both the shell and the kernel send SIGHUP when a terminal is gone: the second must not cut the ending short."""
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Sends a signal again, a moment later, that came while a finalizer ran: Python ignores exceptions there.

    In place of SIGHUP, which is ignored by now, SIGTERM.
    """
    if not isinstance(unraisable.exc_value, SystemExit | KeyboardInterrupt):
        return sys.__unraisablehook__(unraisable)
    again = signal.SIGINT if isinstance(unraisable.exc_value, KeyboardInterrupt) else signal.SIGTERM
    threading.Timer(0.01, _send, [again]).start()


def _send(number: int) -> None:
    """Sends a signal to this process, but not while the main thread is in the hook, where it would be ignored, too."""
    main = threading.main_thread().ident or 0
    while any(frame.f_code is _raise_again.__code__ for frame, _ in walk_stack(sys._current_frames().get(main))):
        time.sleep(0.001)
    os.kill(os.getpid(), number)
