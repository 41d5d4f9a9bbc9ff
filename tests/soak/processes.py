"""Commands as a soak runs them: each with a mark in its environment, by which all that it started is found (Linux)."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import ROOT
from tests.helpers.commands import CHECKOUTS

MARK = "SOAK_MARK"
POLL_SECONDS = 0.005


@dataclass
class Attempt:
    """A command at work, or at its end."""

    process: subprocess.Popen
    mark: str
    log: Path
    struck_at: int | None = None  # how long its output was when it was struck

    def output(self) -> str:
        return self.log.read_bytes().decode("utf-8", "replace")

    def own_words(self) -> str:
        """What it printed before a signal whose answer is the shell's affair."""
        return self.log.read_bytes()[: self.struck_at].decode("utf-8", "replace")

    def living(self) -> list[int]:
        """The process and all that it started, wherever they were moved to; zombies are dead."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_marked(pid)]

    def _is_marked(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            if f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def end(self, seconds: float) -> bool:
        """Waits for the process and all that it started; ends what lives on then, and says that it did."""
        limit = time.monotonic() + seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        while (left := self.living()) and time.monotonic() < limit:
            time.sleep(0.1)
        while self.living():
            for pid in self.living():
                send(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait()
        return bool(left)


def start(words: Sequence[object], folder: Path, temporary: Path, largest_file: int | None = None) -> Attempt:
    """Starts a command in a session of its own; with `largest_file` none of its files can grow beyond so many bytes."""
    program, *arguments = map(str, words)
    program = CHECKOUTS.get(program, program)
    script, installed = str(ROOT / program), str(Path(sys.executable).parent / program)
    line = [sys.executable, script] if program.startswith("scripts/") else [installed]
    mark, log = uuid.uuid4().hex, folder.with_name(f"{folder.name}.out")
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), MARK: mark}
    with log.open("wb") as stream:
        output = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(line + arguments, cwd=folder, env=environment, start_new_session=True, **output)
    if largest_file is not None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    return Attempt(process, mark, log)


def send(pid: int, number: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(pid, number)


class Changes:
    """Counts how often the files below a folder, logs excepted, were found changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = self._look()
        self.number = 0

    def look(self) -> int:
        found = self._look()
        if found != self._last:
            self.number += 1
            self._last = found
        return self.number

    def _look(self) -> list[tuple[str, int, int]]:
        return sorted((path, about.st_size, about.st_mtime_ns) for path, about in files_below(self._folder))


def files_below(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.endswith(".log"):
                path = os.path.join(place, name)
                with contextlib.suppress(OSError):  # renamed meanwhile
                    yield path, os.stat(path)
