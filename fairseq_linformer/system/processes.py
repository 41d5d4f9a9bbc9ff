"""The cores of the machine, and worker processes that end with their parent."""

import multiprocessing
import os
import threading


def available_cores() -> int:
    """The cores that this process may use, which on a shared machine may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_with_parent() -> None:
    """Called in a worker of a pool: that of a killed process would wait for its next call for ever."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
