"""The study scaling: what is run, and what the table says. Two ranks train in training/test_ranks.py."""

import subprocess

import pytest
from benchmarking.scaling import measure_scaling

from tests.helpers.benchmarks import options


def test_processes_take_turns_and_are_compared_with_the_fewest(monkeypatch, tmp_path):
    asked = []

    def run(words, **options):
        ranks = int(words[words.index("--nproc-per-node") + 1])
        asked.append((ranks, words))
        logged = [100.0, *[ranks * (1000.0 if ranks == 1 else 800.0) + len(asked)] * 4]
        rows = [f'x {{"epoch": 1, "wps": "{speed}"}}' for speed in logged]
        return subprocess.CompletedProcess(words, 0, "\n".join(rows), "")

    monkeypatch.setattr(subprocess, "run", run)
    words = ["--data", tmp_path, "--ranks", 1, 2, "--updates", 20, "--rounds", 2, "model=base_512"]
    printed = measure_scaling(options("scaling", *words))
    assert [ranks for ranks, _ in asked] == [1, 2, 1, 2]
    assert all("+distributed=torchrun" in words and words[-1] == "model=base_512" for _, words in asked)
    assert printed.splitlines()[2:] == [
        "| 1 | 1,002 | 1,001, 1,003 | 100% |",
        "| 2 | 1,603 | 1,602, 1,604 | 80% |",
    ]


def test_a_run_that_fails_is_no_figure(monkeypatch, tmp_path):
    def run(words, **options):
        return subprocess.CompletedProcess(words, 1, '{"epoch": 1, "wps": "9"}', "error: no such option")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(OSError, match=r"4 processes ended with status 1; its last lines:\n.*no such option"):
        measure_scaling(options("scaling", "--data", tmp_path, "--ranks", 4, "--rounds", 1))
