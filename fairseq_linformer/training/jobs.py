"""Processes that train, several at a time on one machine: started, and ended with whatever ends this one."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

import torch

from ..processes import available_cores

T = TypeVar("T")

_running: set["subprocess.Popen[str]"] = set()
_starting = threading.Lock()  # held while a process is started, and while all are stopped
_job = threading.local()  # what a thread of side_by_side passes to the processes that it starts


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: IO[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that prints into a log; whatever ends the body ends it too."""
    with _starting:
        if getattr(_job, "stop", threading.Event()).is_set():
            raise OSError("interrupted before it began")
        output = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, env=environment, **output)  # type: ignore[call-overload]
        _running.add(process)
    try:
        yield process
    finally:
        _running.discard(process)
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends a training with its workers, which would live on for seconds, and hold its lock."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def side_by_side(calls: Sequence[Callable[[], T]], jobs: int, gpus: int = 1) -> list[T | Exception]:
    """Calls functions that train, `jobs` at a time, which share the cores; each has `gpus` of the GPUs, by turns.

    A call that failed gives its error in place of a result; the others go on. An interruption ends them all: their
    checkpoints stay, and the runs go on from there when repeated.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(jobs, initializer=_begin_job, initargs=(itertools.count(), jobs, gpus, stop)) as pool:
        try:
            return [future.result() for future in [pool.submit(_result_or_error, call) for call in calls]]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with _starting:
                stop.set()
                for process in list(_running):
                    _end(process)
            raise


def _begin_job(numbers: Iterator[int], jobs: int, gpus: int, stop: threading.Event) -> None:
    """Gives a thread of ``side_by_side`` its share of the machine, for what it will start."""
    _job.stop = stop
    _job.environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))}
    if devices := torch.cuda.device_count():
        visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(devices)))).split(",")
        first = next(numbers) * gpus
        own = [(first + place) % devices for place in range(min(gpus, devices))]
        _job.environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[number] for number in own)
        _job.device = f"cuda:{own[0]}"


def job_environment() -> dict[str, str]:
    """What ``side_by_side`` gives the processes of this thread beside the environment."""
    return getattr(_job, "environment", {})


def job_device() -> str:
    """The device on which this thread computes: in ``side_by_side`` the one that its trainings have."""
    return getattr(_job, "device", "cuda" if torch.cuda.is_available() else "cpu")


def _result_or_error(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:  # a GPU without memory, say: whatever it was, the other trainings are not to blame
        return error
