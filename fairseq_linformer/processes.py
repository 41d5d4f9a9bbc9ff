"""Number of available cores, and worker processes that end with their parent."""

import multiprocessing
import os
import threading


def available_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_with_parent() -> None:
    """End this worker of a pool when its parent ends; it would otherwise wait forever for a killed parent."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
