"""Mutated input: what a disk, an editor, a hurried script or an enemy makes of a file, and who reads it how.

Each input is made from the seed, the kind and its number alone, and read in a worker process, as some of what reads it
is C++ that ends the process, or does not listen to an alarm.
"""

import contextlib
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from .report import HANGS, LOST, TRACEBACKS, Finding, Report

SECONDS = 10  # that reading one input may take
MEMORY = 8 << 30  # bytes of address space: an input that asks for more has found a defect

ODD_TEXT = [
    "\0",
    "\ufeff",
    "\u2028",
    "\x85",
    "\u202e",
    "\u0301" * 50,
    "\N{DOG FACE}",
    "\r",
    "\t",
    "\n\n",
    '"',
    "\\",
    "'",
]
ODD_BYTES = [text.encode() for text in ODD_TEXT]
ODD_BYTES += [
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b" " * 5000,
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"PK\3\4",
    b"\x1f\x8b",
    b"null",
]
NUMBERS = [b"0", b"-1", b"1e999", b"-1e999", b"NaN", b"Infinity", b"2147483648", b"99999999999999999999", b"9" * 5000]
NUMBERS += [b"0.5", b"null", b"true", b'""', b"[]", b"{}"]


class Kind(Protocol):
    """A kind of input, with what it needs in a folder of its own."""

    def attempt(self, chance: random.Random) -> str | None:
        """Makes an input, and reads it as the package does.

        Returns:
            What is other than it should be; None where all is right.

        Raises:
            ValueError, OSError: the input is refused.
        """


def mutate(content: bytes, chance: random.Random) -> bytes:
    """The content with one to three changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(CHANGES)(content, chance)
    return content


def flip(content: bytes, chance: random.Random) -> bytes:
    """The content with another byte in one place."""
    if not content:
        return content
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ chance.randrange(1, 256)]) + content[place + 1 :]


def _span(content: bytes, chance: random.Random) -> tuple[int, int]:
    start = chance.randint(0, len(content))
    return start, min(len(content), start + chance.choice((1, 4, 30, 1000)))


def _cut_end(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randint(0, len(content))]


def _cut_out(content: bytes, chance: random.Random) -> bytes:
    start, end = _span(content, chance)
    return content[:start] + content[end:]


def _insert(content: bytes, chance: random.Random) -> bytes:
    start, _ = _span(content, chance)
    return content[:start] + chance.choice([*ODD_BYTES, chance.randbytes(8)]) + content[start:]


def _duplicate(content: bytes, chance: random.Random) -> bytes:
    start, end = _span(content, chance)
    return content[:end] + content[start:]


def _zero(content: bytes, chance: random.Random) -> bytes:
    """As of a block that never reached the disk."""
    start, end = _span(content, chance)
    return content[:start] + bytes(end - start) + content[end:]


def _another_number(content: bytes, chance: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", content[:100_000]))
    if not found:
        return _insert(content, chance)
    place = chance.choice(found)
    return content[: place.start()] + chance.choice(NUMBERS) + content[place.end() :]


CHANGES: Sequence[Callable[[bytes, random.Random], bytes]] = (
    flip,  # what a disk does, and what is hardest to see
    flip,
    flip,
    _cut_end,
    _cut_out,
    _insert,
    _duplicate,
    _zero,
    _another_number,
)

ODD_VALUES: list[Any] = [None, -1, 0, 1, 2.5, 10**12, 10**400, 1e300, float("nan"), float("inf"), True, "", "nan", "1"]
ODD_VALUES += ["x" * 1000, *ODD_TEXT, "\ud800", [], {}, [[]], [1, "a"], {"a": None}]


def mutate_json(content: Any, chance: random.Random, values: Sequence[Any] = ODD_VALUES) -> Any:
    """A copy of nested lists and dictionaries with a random place removed, doubled, renamed or given another value."""
    if not isinstance(content, dict | list) or not content or chance.random() < 0.15:
        return chance.choice(values)
    copy: Any = content.copy()
    place = chance.choice([*content]) if isinstance(content, dict) else chance.randrange(len(content))
    what = chance.random()
    if what < 0.15:
        del copy[place]
    elif what < 0.25 and isinstance(copy, dict):
        copy[chance.choice([f"{place}s", "", "\0", f" {place}"])] = copy.pop(place)
    elif what < 0.25:
        copy.append(copy[place])
    else:
        copy[place] = mutate_json(content[place], chance, values)
    return copy


def mutate_state(content: bytes, chance: random.Random) -> bytes:
    """A JSON file, changed as bytes or in what it says."""
    if chance.random() < 0.5:
        return mutate(content, chance)
    return json.dumps(mutate_json(json.loads(content), chance)).encode("utf-8", "surrogatepass")


class _Late(BaseException):
    """The alarm; no Exception, so that nothing that is read swallows it."""


def _ring(number: int, frame: FrameType | None) -> None:
    raise _Late


def judge(kind: Kind, chance: random.Random) -> Finding | None:
    """Feeds one input; None where it is read rightly, or refused in one line."""
    signal.signal(signal.SIGALRM, _ring)
    try:
        signal.alarm(SECONDS)
        try:
            lost = kind.attempt(chance)
        finally:
            signal.alarm(0)
    except _Late:
        return Finding(HANGS, f"longer than {SECONDS} s\n{traceback.format_exc()}")
    except (ValueError, OSError) as error:
        message = str(error)
        # What Python says of bytes, text or a call in itself, which names no file.
        bare = isinstance(error, UnicodeError | json.JSONDecodeError)
        bare |= isinstance(error, OSError) and error.errno is not None and error.filename is None
        if message and "\n" not in message and not bare:
            return None
        return Finding(TRACEBACKS, f"not one line of words: {traceback.format_exc()}")
    except Exception:
        return Finding(TRACEBACKS, traceback.format_exc())
    return None if lost is None else Finding(LOST, lost)


Kinds = Mapping[str, Callable[[Path], Kind]]


def input_of(kind: str, seed: int, number: int) -> random.Random:
    """The chance from which an input is made."""
    return random.Random(f"{kind} {seed} {number}")


def soak_inputs(kinds: Kinds, inputs: int, seed: int, folder: Path, report: Report, deadline: float) -> Iterator[int]:
    """Feeds inputs, kind by kind in turn, in one process a core; yields how many are done.

    A process that died, or did not answer, is replaced by another, which goes on behind the input that it had.
    """
    names, cores = [*kinds], min(2, os.cpu_count() or 1)
    workers = {place: _Worker(kinds, seed, folder / f"worker{place}") for place in range(cores)}
    following = {place: place for place in workers}  # the number of each one's next input
    for place, worker in workers.items():
        worker.feed(following[place])
    done = 0
    while workers and time.monotonic() < deadline:
        multiprocessing.connection.wait([worker.answers for worker in workers.values()], timeout=1)
        for place, worker in [*workers.items()]:
            answer = worker.answer()
            if answer is None:
                continue
            finding, seconds = answer
            number = following[place]
            name = names[number % len(names)]
            report.add(name, [finding] if finding else [], seconds, kind=name, seed=seed, number=number)
            done += 1
            yield done
            following[place] += cores
            if following[place] < inputs:
                worker.feed(following[place])
            else:
                workers.pop(place).end()
    for worker in workers.values():
        worker.end()


class _Worker:
    """A process that is fed numbers and answers with findings; another takes its place when it dies."""

    def __init__(self, kinds: Kinds, seed: int, folder: Path) -> None:
        self._arguments = kinds, seed, folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.answers, end = context.Pipe()
        self._process = context.Process(target=_work, args=(*self._arguments, end), daemon=True)
        self._process.start()
        end.close()

    def feed(self, number: int) -> None:
        self._fed_at = time.monotonic()
        self.answers.send(number)

    def answer(self) -> tuple[Finding | None, float] | None:
        """What came of the input that it was fed; None where it is still at it."""
        seconds = time.monotonic() - self._fed_at
        if self.answers.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                return self.answers.recv()
            self._process.join()
            finding = Finding(TRACEBACKS, f"the process died with {self._process.exitcode}")
        elif seconds < 60 + 6 * SECONDS:  # the first inputs of a process wait for its imports
            return None
        else:
            finding = Finding(HANGS, f"no answer after {seconds:.0f} s, not to the alarm either")
        self.end()
        self._start()
        return finding, seconds

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.answers.close()


def _work(kinds: Kinds, seed: int, folder: Path, numbers: Connection) -> None:
    """The life of a worker: numbers in, findings and seconds out; what libraries print goes to a file."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    names, ready = [*kinds], {}
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            number = numbers.recv()
            name = names[number % len(names)]
            if name not in ready:
                place = folder / name.replace(" ", "-")
                place.mkdir(exist_ok=True)
                ready[name] = kinds[name](place)
            began = time.monotonic()
            finding = judge(ready[name], input_of(name, seed, number))
            numbers.send((finding, time.monotonic() - began))
