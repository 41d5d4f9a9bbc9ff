"""Feeds mutated input to what reads it, in processes of their own: some of it is C++ that ends its process.

Each input is made from the seed, the kind and its number alone, so that it can be repeated whatever it does.
"""

import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from pebble import ProcessExpired, ProcessPool

from .mutations import Mutation, mutate
from .report import HANGS, LOST, TRACEBACKS, Finding, Report

SECONDS = 10  # that reading one input may take
MEMORY = 8 << 30  # bytes of address space: an input that asks for more has found a defect
ANYTHING = object()  # is right, where damage cannot be seen


class Kind(Protocol):
    """A kind of input. It is made and works in a folder of its own, which is the current one."""

    def attempt(self, chance: random.Random) -> str | None:
        """Makes an input, and reads it as the package does.

        Returns:
            What is other than it should be; None where all is right.

        Raises:
            ValueError, OSError: the input is refused.
        """


Kinds = Mapping[str, Callable[[], Kind]]


@dataclass(frozen=True)
class File:
    """A valid file, how the package reads it, and what is right to read of its bytes once they are mutated."""

    path: str
    whole: bytes
    read: Callable[[Path], Any]
    right: Callable[[bytes], Any]
    mutate: Mutation = mutate


@dataclass(frozen=True)
class Files:
    """A kind of input that is files, of which one is mutated at a time: it must be read rightly, or refused."""

    files: Sequence[File]

    def attempt(self, chance: random.Random) -> str | None:
        file = chance.choice(self.files)
        path, content = Path(file.path), file.mutate(file.whole, chance)
        try:
            path.write_bytes(content)
            found, right = file.read(path), file.right(content)
            return None if right is ANYTHING else difference(right, found, f"{path}: what is read")
        finally:
            path.write_bytes(file.whole)


def difference(one: Any, other: Any, place: str) -> str | None:
    """Where two nested values differ, tensors bit for bit, a nan being equal to itself; None where they do not."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        same = same and one.numpy().tobytes() == other.numpy().tobytes()
        return None if same else f"{place} has other numbers"
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict) and isinstance(other, dict):
        if names := one.keys() ^ other.keys():
            return f"{place} has, or lacks, {', '.join(sorted(map(repr, names)))[:1000]}"
        return next(filter(None, (difference(one[name], other[name], f"{place}[{name!r}]") for name in one)), None)
    return None if repr(one) == repr(other) else f"{place} is {repr(other)[:500]}, not {repr(one)[:500]}"


def judge(kind: Kind, chance: random.Random) -> Finding | None:
    """Feeds one input; None where it is read rightly, or refused in one line."""
    try:
        lost = kind.attempt(chance)
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


def make_kinds(kinds: Kinds, folder: Path) -> dict[str, Kind]:
    """The kinds of input, each with its files in a folder of its name."""
    made, here = {}, Path.cwd()
    for name, make in kinds.items():
        (folder / name).mkdir(parents=True)
        os.chdir(folder / name)
        with contextlib.redirect_stdout(None):
            made[name] = make()
    os.chdir(here)
    return made


def feed(kinds: Mapping[str, Kind], folder: Path, task: tuple[str, int, int]) -> Finding | None:
    """Feeds an input by its kind, seed and number, in the folder that `make_kinds` filled, or in a copy of it."""
    name, seed, number = task
    os.chdir(folder / name)
    return judge(kinds[name], random.Random(f"{name} {seed} {number}"))


def soak_inputs(kinds: Kinds, inputs: int, seed: int, folder: Path, report: Report, deadline: float) -> Iterator[int]:
    """Feeds inputs, kind by kind in turn, in two processes; yields how many are done.

    A process that died, or did not answer, is replaced by another, which goes on behind the input that it had.
    """
    names = [*kinds]
    tasks = [(names[number % len(names)], seed, number) for number in range(inputs)]
    fork = multiprocessing.get_context("fork")
    begin = [make_kinds(kinds, folder), folder]
    with ProcessPool(min(2, os.cpu_count() or 1), initializer=_begin, initargs=begin, context=fork) as pool:
        answers = pool.map(_timed, tasks, timeout=SECONDS).result()
        for name, _, number in tasks:
            finding, seconds = _answer(answers)
            report.add(name, [finding] if finding else [], seconds, kind=name, seed=seed, number=number)
            yield number + 1
            if time.monotonic() > deadline:
                pool.stop()
                return


def _answer(answers: Iterator[tuple[Finding | None, float]]) -> tuple[Finding | None, float]:
    try:
        return next(answers)
    except ProcessExpired as death:
        return Finding(TRACEBACKS, f"the process died with {death.exitcode}"), 0.0
    except TimeoutError:
        return Finding(HANGS, f"longer than {SECONDS} s"), SECONDS


_own: dict[str, Any] = {}  # of a process


def _begin(kinds: Mapping[str, Kind], folder: Path) -> None:
    """The start of a process: files of its own; what libraries print goes to one of them."""
    _own.update(kinds=kinds, folder=folder.with_name(f"{folder.name}-{os.getpid()}"))
    shutil.copytree(folder, _own["folder"])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with (_own["folder"] / "output.txt").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)


def _timed(task: tuple[str, int, int]) -> tuple[Finding | None, float]:
    began = time.monotonic()
    return feed(**_own, task=task), time.monotonic() - began
