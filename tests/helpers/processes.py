"""Processes to start, to signal and to wait for, a server of files, and a full disk."""

import contextlib
import functools
import http.server
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.helpers import ROOT


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server, on this machine, of the files of a folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def no_space(most: int = 2000) -> Iterator[None]:
    """No file can grow beyond so many bytes: what a full disk does."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def running_in_group(group: int) -> list[str]:
    """Return the processes of a process group that are no zombies (none outside Linux)."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, process_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                processes.append(path.parent.name)
    return processes


def wait_until(true: Callable[[], bool]) -> None:
    """Return once it is true; fail after 60 seconds."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "60 seconds have passed"
        time.sleep(0.005)


@contextlib.contextmanager
def started(command: list, log: Path, **environment: str) -> Iterator[subprocess.Popen]:
    """A command line of this environment in a process group of its own, which ends with the block."""
    program, *words = map(str, command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, *words], env=environment, cwd=log.parent, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
