"""Number of available and idle cores, and worker processes that end with their parent."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

PROC_STAT = Path("/proc/stat")  # Linux: time that each core has spent, by state
SAMPLE_SECONDS = 0.2


def available_cores() -> int:
    """Return the number of cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def idle_cores() -> int:
    """Return the number of available cores that no process uses, at least 1; outside Linux, all available cores."""
    if not PROC_STAT.is_file():
        return available_cores()
    ticks, start = _idle_ticks(), time.monotonic()
    time.sleep(SAMPLE_SECONDS)
    idle = (_idle_ticks() - ticks) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - start)
    return max(1, min(available_cores(), round(idle)))


def _idle_ticks() -> int:
    """Return the clock ticks that available cores have been idle or waiting for a disk."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = (line.split() for line in PROC_STAT.read_text(encoding="ascii").splitlines())
    return sum(int(row[4]) + int(row[5]) for row in rows if row and row[0] in names)


def use_idle_cores() -> None:
    """Limit PyTorch's threads to the idle cores, unless OMP_NUM_THREADS is set.

    Threads of OpenMP wait for each other in loops. Without a core each, two threads are slower than one.
    """
    import torch  # slow to import, and not needed by worker processes

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), idle_cores()))


def end_with_parent() -> None:
    """End this worker of a pool when its parent ends; it would otherwise wait forever for a killed parent.

    Ctrl-C and SIGHUP are ignored, so that the parent stops the workers. SIGTERM ends a worker at once: the handler that
    it inherits from the parent would raise an exception, which the pool would take for the result of a call.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
