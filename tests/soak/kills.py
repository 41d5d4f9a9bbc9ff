"""Kills: a command is struck at random moments, several times in a row, and then must end as if it never had been."""

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_linformer.checkpoints.files import LAST, check_whole
from fairseq_linformer.checkpoints.resuming import read_progress

from .processes import POLL_SECONDS, Attempt, Changes, files_below, send, start
from .readers import difference
from .report import HANGS, LOST, TRACEBACKS, Finding

IN_A_ROW = 4  # strikes before a command is run to its end
LIVES_ON = 15.0  # seconds that what a struck command started may take to end
LEAST_FILE = 60_000  # bytes; on a full disk the output, which is a file here, shall still be written

# How a command is struck: the OOM killer takes any of its processes, a terminal the group, a user the first alone.
WAYS = {"SIGKILL": 0.6, "SIGTERM": 0.15, "SIGINT": 0.15, "full disk": 0.1}
VICTIMS = {"first": 0.5, "group": 0.3, "any": 0.2}


Result = Callable[[Path, str], Any]  # of the folder in which a command ran, and what it printed


@dataclass(frozen=True)
class Command:
    """A command, typed in an empty folder, into which it writes.

    Attributes:
        result: what is the same however often the command was struck.
        refusal: with which the command answers when it is typed again after it is complete; empty where it says so
            with status 0.
    """

    name: str
    words: Sequence[object]
    result: Result
    refusal: str = ""


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when nobody strikes it."""

    folder: Path
    printed: str
    seconds: float
    changes: int
    largest_file: int


def run_undisturbed(command: Command, folder: Path) -> Undisturbed:
    """Runs it once, in a new folder; OSError where it fails."""
    folder.mkdir(parents=True)
    changes, began = Changes(folder), time.monotonic()
    attempt = start(command.words, folder, folder.with_name(f"{folder.name}.tmp"))
    while attempt.process.poll() is None:
        changes.look()
        time.sleep(POLL_SECONDS)
    if attempt.process.returncode != 0:
        raise OSError(f"{command.name} fails when it is let alone:\n{attempt.output()[-4000:]}")
    sizes = [about.st_size for _, about in files_below(folder)]
    return Undisturbed(folder, attempt.output(), time.monotonic() - began, changes.number, max(sizes, default=0))


class Cycle:
    """Strikes a command some times in a row in one folder, then runs it to its end.

    Args:
        pace: how long the command takes beside the undisturbed run: that may have been on a busier machine.
    """

    def __init__(
        self, command: Command, like: Undisturbed, folder: Path, chance: random.Random, pace: float = 1.0
    ) -> None:
        self.command, self.like, self.folder, self.chance = command, like, folder, chance
        self.pace = pace
        self.findings: list[Finding] = []
        self.strikes: list[str] = []
        self._updates: dict[Path, int] = {}
        self._limit = 60 + 10 * like.seconds  # on a busy machine

    def run(self, strikes: int) -> None:
        self.folder.mkdir(parents=True)
        complete = False
        while len(self.strikes) < strikes and not complete and not self.findings:
            attempt, struck = self._strike()
            complete = self._is_complete(attempt)
            if not struck and not complete:
                self._find(LOST, "it failed before it was struck", attempt)
            self._check_attempt(attempt)
        if not self.findings:
            self._finish(complete, attempt.output() if complete else "")

    def _temporary(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.tmp")

    def _strike(self) -> tuple[Attempt, bool]:
        """Runs the command until it is struck, or ends before; says which."""
        way = self._draw(WAYS)
        if way == "full disk" and self.like.largest_file > 2 * LEAST_FILE:
            size = self.chance.randint(LEAST_FILE, self.like.largest_file)
            self.strikes.append(f"no file beyond {size} bytes")
            attempt = start(self.command.words, self.folder, self._temporary(), size)
            if attempt.end(self._limit):
                self._find(HANGS, "on a full disk", attempt)
            return attempt, True
        number = getattr(signal, way if way.startswith("SIG") else "SIGKILL")
        attempt = start(self.command.words, self.folder, self._temporary())
        if not self._await_moment(attempt):
            attempt.end(LIVES_ON)
            return attempt, False
        victim = self._draw(VICTIMS)
        pid = self.chance.choice(attempt.living() or [attempt.process.pid]) if victim == "any" else attempt.process.pid
        if number != signal.SIGKILL:
            attempt.struck_at = attempt.log.stat().st_size
        self.strikes[-1] += f", {number.name} to {victim}"
        send(pid, number, group=victim == "group")
        # What the first process started may have work to end, and where another was struck the first goes on.
        runs = {"group": 0, "first": 1, "any": 3}[victim]
        if attempt.end(LIVES_ON + runs * self.like.seconds):
            self._find(HANGS, "something of it lives on", attempt)
        return attempt, True

    def _draw(self, weights: dict[str, float]) -> str:
        return self.chance.choices([*weights], [*weights.values()])[0]

    def _await_moment(self, attempt: Attempt) -> bool:
        """Waits for a random moment; half of them are just after something was written. False: it ended before."""
        after = self.chance.uniform(0, self.pace * self.like.seconds)
        by_change = self.like.changes > 0 and self.chance.random() < 0.5
        wanted = self.chance.randint(1, self.like.changes) if by_change else None
        changes, began = Changes(self.folder), time.monotonic()
        while attempt.process.poll() is None:
            if wanted is None and time.monotonic() - began >= after:
                self.strikes.append(f"after {after:.2f} s")
                return True
            if wanted is not None and changes.look() >= wanted:
                time.sleep(self.chance.uniform(0, 0.02))
                self.strikes.append(f"at change {wanted}")
                return True
            time.sleep(POLL_SECONDS)
            if time.monotonic() - began > self._limit:
                self._find(HANGS, f"longer than {self._limit:.0f} s", attempt)
                attempt.end(0)
        return False

    def _finish(self, complete: bool, printed: str) -> None:
        """Runs the command to its end, where it is not complete, and compares what it made."""
        if not complete:
            attempt = start(self.command.words, self.folder, self._temporary())
            if attempt.end(self._limit):
                self._find(HANGS, f"the last run took longer than {self._limit:.0f} s", attempt)
                return
            printed = attempt.output()
            self._check_attempt(attempt)
            if not self._is_complete(attempt):
                self._find(LOST, f"the last run ended with {attempt.process.returncode}", attempt)
                return
        expected = self.command.result(self.like.folder, self.like.printed)
        found = self.command.result(self.folder, printed)
        if lost := difference(expected, found, "the result"):
            self._find(LOST, f"not as undisturbed: {lost}")

    def _is_complete(self, attempt: Attempt) -> bool:
        """Whether it ended well, or says that it has nothing to do, as it was struck when all was done."""
        refused = self.command.refusal and self.command.refusal in attempt.output()
        return attempt.process.returncode == 0 or bool(refused)

    def _check_attempt(self, attempt: Attempt) -> None:
        """No traceback, and nothing in the folder that is not whole, or that has gone backwards."""
        if "Traceback (most recent call last)" in attempt.own_words():
            self._find(TRACEBACKS, "a traceback", attempt)
        for path in sorted(self.folder.rglob("*.json")):
            if any(part.endswith(".partial") for part in path.parts):
                continue
            try:
                json.loads(path.read_bytes())
            except ValueError as error:
                self._find(LOST, f"{path.relative_to(self.folder)}: {error}")
        for path in sorted(self.folder.rglob("*.pt")):
            try:
                check_whole(path)
                updates = read_progress(path).updates
            except (ValueError, OSError) as error:
                self._find(LOST, str(error))
                continue
            if path.name == LAST and updates < self._updates.get(path, 0):
                self._find(LOST, f"{path.name} was at update {self._updates[path]}, is at {updates}")
            self._updates[path] = updates

    def _find(self, failure: str, what: str, attempt: Attempt | None = None) -> None:
        tail = "" if attempt is None else f"; it printed: {attempt.output()[-3000:]}"
        self.findings.append(Finding(failure, f"{'; '.join(self.strikes)}: {what}{tail}"))
