"""The soak itself: it finds what is planted, and little enough of it runs here to be a test."""

import os
import random
import time
from pathlib import Path

import pytest
import torch

from tests.soak import kills, readers
from tests.soak.__main__ import KINDS
from tests.soak.commands import REFUSED, contents
from tests.soak.kills import Command, Cycle, Undisturbed, run_undisturbed
from tests.soak.readers import File, Files, difference, feed, make_kinds, soak_inputs
from tests.soak.report import HANGS, LOST, TRACEBACKS, Report

pytestmark = pytest.mark.slow


def refuse_in_two_lines():
    raise ValueError("two\nlines")


PLANTED = {
    "right": lambda: None,
    "refused": lambda: int("no number"),
    "of another type": lambda: {}["weights"],
    "in two lines": refuse_in_two_lines,
    "other weights": lambda: "other weights than were saved",
    "for ever": lambda: time.sleep(60),
    "in C": lambda: os._exit(9),
}


class Planted:
    def __init__(self, what):
        self.what = what

    def attempt(self, chance):
        return self.what()


def test_mutated_inputs(tmp_path, monkeypatch):
    """In processes of their own with a limit of memory, as what is tested may end a process."""
    monkeypatch.setattr(readers, "SECONDS", 60)  # beside other tests
    report = Report(tmp_path)
    inputs = 5 * len(KINDS)
    done = soak_inputs(KINDS, inputs, 1, tmp_path / "inputs", report, time.monotonic() + 200)
    assert [*done] == [*range(1, inputs + 1)]
    assert not report.failures, (tmp_path / "findings.jsonl").read_text()


def test_an_input_is_the_same_when_it_is_repeated(tmp_path, monkeypatch):
    """Alone, in another folder, and behind others."""
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("all", range(20)), ("one", [11])):
        seen = []
        read = [File("text", b"some text of 12 words", lambda path, seen=seen: seen.append(path.read_bytes()), repr)]
        made = make_kinds({"a": lambda read=read: Files(read)}, tmp_path / name)
        findings = [feed(made, tmp_path / name, ("a", 1, number)) for number in numbers]
        assert len(seen) == len(findings) and findings[-1].failure == LOST
        if name == "all":
            expected = seen[11]
    assert seen == [expected] and Path("text").read_bytes() == b"some text of 12 words"


def test_where_values_differ():
    one = {"a": [1, torch.tensor([1.0, float("nan")])], "b": float("nan"), "c": True}
    assert difference(one, {**one, "a": (1, one["a"][1].clone())}, "it") is None
    assert difference(one, {**one, "c": 1}, "it") == "it['c'] is 1, not True"
    assert difference(one, {**one, "a": [1, torch.tensor([1.0, 2.0])]}, "it") == "it['a'][1] has other numbers"
    assert difference(one, {**one, "a": [1, one["a"][1].double()]}, "it") == "it['a'][1] has other numbers"
    assert difference(one, {"a": one["a"], "b": one["b"]}, "it") == "it has, or lacks, 'c'"
    assert difference(one, {**one, "a": [1]}, "it").startswith("it['a'] is [1], not [1, ")


def test_planted_defects_of_readers_are_counted(tmp_path, monkeypatch):
    """A worker that dies or hangs is replaced, and the inputs behind it are read."""
    monkeypatch.setattr(readers, "SECONDS", 1)
    kinds = {name: lambda what=what: Planted(what) for name, what in PLANTED.items()}
    report = Report(tmp_path)
    assert [*soak_inputs(kinds, 14, 1, tmp_path / "inputs", report, time.monotonic() + 60)] == [*range(1, 15)]
    found = {name: [report.rows[name][column] for column in ("tried", LOST, TRACEBACKS, HANGS)] for name in PLANTED}
    assert found == {
        "right": [2, 0, 0, 0],
        "refused": [2, 0, 0, 0],
        "of another type": [2, 0, 2, 0],
        "in two lines": [2, 0, 2, 0],
        "other weights": [2, 2, 0, 0],
        "for ever": [2, 0, 0, 2],
        "in C": [2, 0, 2, 0],
    }
    assert "| total | 14 | 2 | 6 | 2 |" in report.table()
    assert len((tmp_path / "findings.jsonl").read_text().splitlines()) == report.failures == 10


def strike(code, folder, strikes=4):
    """What is found where a Python program is struck; in another folder where it happened to end before."""
    command = Command("planted", ["python", "-c", code], contents)
    like = run_undisturbed(command, folder / "undisturbed")
    for number in range(5):
        cycle = Cycle(command, like, folder / str(number), random.Random(number))
        cycle.run(strikes)
        if cycle.findings:
            return cycle.findings
    return []


IN_PLACE = "import time; f = open('a.json', 'w'); f.write('{'); f.flush(); time.sleep(0.3); f.write('}')"
WHOLE = "import os, time; open('b', 'w').write('{}'); time.sleep(0.3); os.replace('b', 'a.json')"
NOT_GONE_ON = (
    f"import os\nif os.path.exists('mark'): raise KeyError\nopen('mark', 'w').close()\n{WHOLE}; os.unlink('mark')"
)
LEFT_BEHIND = f"import subprocess; subprocess.Popen(['sleep', '2']); {WHOLE}"


@pytest.mark.parametrize(("code", "failure"), [(IN_PLACE, LOST), (NOT_GONE_ON, TRACEBACKS)])
def test_planted_defects_of_commands_are_counted(code, failure, tmp_path):
    assert failure in {finding.failure for finding in strike(code, tmp_path)}


def test_what_is_left_behind_is_counted_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "LIVES_ON", 0.5)
    found = strike(LEFT_BEHIND, tmp_path)
    assert {finding.failure for finding in found} == {HANGS}


def test_a_command_that_is_right_is_struck_without_a_finding(tmp_path):
    assert strike(WHOLE, tmp_path) == []


@pytest.mark.exhaustive
def test_a_killed_preparation_is_repeated(corpus, tmp_path):
    """The fixture's is the undisturbed one."""

    def result(folder, printed):
        return contents(folder if folder == corpus else folder / "data")

    words = ["--train", corpus.parent / "train.txt", "--valid", corpus.parent / "valid.txt", "--vocab-size", 286]
    words = ["linformer", "prepare", "corpus", *words, "--workers", 1, "--out", "data"]
    like = Undisturbed(corpus, "", seconds=3, changes=6, largest_file=0)
    cycle = Cycle(Command("corpus", words, result, REFUSED), like, tmp_path / "struck", random.Random(2))
    cycle.run(1)
    assert cycle.findings == [] and len(cycle.strikes) == 1
