"""Signals and errors end a script as they should. Without importing the whole package this takes no time."""

import os
import signal
import subprocess
import sys

import pytest

from tests.helpers import ROOT

START = f"""
import atexit, os, signal, sys, time, types
sys.modules["fairseq_linformer"] = package = types.ModuleType("fairseq_linformer")
package.__path__ = [{str(ROOT / "fairseq_linformer")!r}]
from fairseq_linformer.cli.ending import one_line_errors
def end(*unused): os.kill(os.getpid(), signal.{{name}})
class Ends:
    __del__ = end
"""
DURING = "with one_line_errors(): end(); time.sleep(30)"
TWICE = """
with one_line_errors():
    try: end(); time.sleep(30)
    finally: end(); time.sleep(0.1); print("tidied")
"""
UNDER_NOHUP = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nwith one_line_errors(): end()\nend()"
IN_A_FINALIZER = "with one_line_errors(): Ends(); time.sleep(30)"
ON_A_BUSY_MACHINE = """
import threading
start = threading.Timer.start
threading.Timer.start = lambda timer: (start(timer), time.sleep(0.1))
"""
AT_THE_END = "atexit.register(end)\nwith one_line_errors(): pass"


def run(body, name="SIGINT"):
    command = [sys.executable, "-c", START.format(name=name) + body]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize(
    ("body", "name", "status"),
    [
        (DURING, "SIGTERM", 143),
        (DURING, "SIGINT", 130),
        (DURING, "SIGHUP", 129),
        (TWICE, "SIGHUP", 129),
        (UNDER_NOHUP, "SIGHUP", 0),
        (IN_A_FINALIZER, "SIGTERM", 143),
        (IN_A_FINALIZER, "SIGINT", 130),
        (IN_A_FINALIZER, "SIGHUP", 143),
        (ON_A_BUSY_MACHINE + IN_A_FINALIZER, "SIGTERM", 143),
        (ON_A_BUSY_MACHINE + IN_A_FINALIZER, "SIGINT", 130),
        (AT_THE_END, "SIGTERM", -signal.SIGTERM),
        (AT_THE_END, "SIGINT", -signal.SIGINT),
        (AT_THE_END, "SIGHUP", -signal.SIGHUP),
    ],
)
def test_a_signal_is_never_swallowed(body, name, status):
    done = run(body, name)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert (done.stdout == "tidied\n") == (body == TWICE)


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("a\nb: not\r\na  file", "error: a b: not a  file"),
        ("it failed; its last lines:\none\n  two", "error: it failed; its last lines:\none\n  two"),
    ],
)
def test_an_error_is_one_line_but_for_what_another_program_printed(message, printed):
    done = run(f"with one_line_errors(): raise OSError({message!r})")
    assert (done.returncode, done.stderr) == (1, f"{printed}\n")


@pytest.mark.parametrize("body", ["print('a')", "print('a', flush=True)"])
def test_a_program_whose_output_nobody_reads_ends_without_a_word(body):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", START.format(name="SIGINT") + f"with one_line_errors(): {body}"]
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, timeout=20
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_another_broken_pipe_is_an_error():
    done = run("with one_line_errors(): raise BrokenPipeError(32, 'Broken pipe', 'a worker')")
    assert (done.returncode, done.stderr) == (1, "error: [Errno 32] Broken pipe: 'a worker'\n")
