"""scripts/benchmark.py: the timing harness, memory, operations, and a whole run in tiny sizes."""

import json

import benchmark
import pytest
import torch
from benchmark import INFERENCE, TRAINING, Case, interleave, operations, peak_memory, quartiles
from benchmark_models import Sizes

SIZES = Sizes(layers=2, embed_dim=32, heads=2, vocabulary=100, dropout=0.0, length=64, projected_length=16)
WORDS = ["--device", "cpu", "--layers", "2", "--embed-dim", "32", "--heads", "2", "--vocab-size", "100"]
WORDS += ["--tokens", "64", "--rounds", "1"]


def test_calls_are_timed_in_turns():
    order = []
    seconds, errors = interleave({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3, warm_ups=1)
    assert order == list("abababab")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}
    assert not errors
    limited, _ = interleave({"a": lambda: None}, rounds=7, limit=0.0)
    assert len(limited["a"]) == 3
    assert quartiles([3.0, 1.0, 2.0]) == {"low": 1.5, "seconds": 2.0, "high": 2.5}
    calls = {"a": lambda: None, "b": lambda: 1 / 0}
    seconds, errors = interleave(calls, rounds=2)
    assert (len(seconds["a"]), errors) == (2, {"b": "ZeroDivisionError: division by zero"})
    assert calls.keys() == {"a"}, "a failed call's memory is freed"


def test_peak_memory_of_tensors():
    """In MiB: 4, 8, the 4 freed, 2 and 1 are 11 at the end, and 12 before. The 16 allocated before are not counted."""
    allocated = [torch.empty(4 * 2**20)]

    def call():
        first, second = torch.empty(2**20), torch.empty(2 * 2**20)
        del first
        allocated.clear()
        return second, torch.empty(2**19), torch.empty(2**18)

    assert peak_memory(call) == 12


def test_operations_follow_the_formula():
    """Multiplications of a layer: 4 n d^2 + 2 n^2 d of softmax, 2 n d^2 + 3 n k d + 2 k d^2 of Linformer."""
    n, k, d = SIZES.length, SIZES.projected_length, SIZES.embed_dim
    expected = {"softmax": 4 * n * d * d + 2 * n * n * d, "linformer": 2 * n * d * d + 3 * n * k * d + 2 * k * d * d}
    for model, multiplications in expected.items():
        case = Case(model, "layer", INFERENCE, SIZES, 3)
        assert operations(case) == 3 * 2 * multiplications
        assert operations(Case(model, "layer", TRAINING, SIZES, 3)) == 9 * 2 * multiplications


def test_cases_are_measured_and_reported(tmp_path):
    models = ["linformer", "near_and_far", "softmax-cudnn", "fairseq-example"]
    words = ["--out", str(tmp_path), "--models", *models, "--scopes", "model", "layer", "--lengths", "16"]
    benchmark.main([*WORDS, *words])
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["settings"]["embed_dim"] == 32
    rows = {(row["model"], row["scope"], row["phase"]): row for row in content["rows"]}
    assert len(rows) == len(content["rows"]) == len(models) * 2 * 2
    for (model, scope, phase), row in rows.items():
        if model == "softmax-cudnn":
            assert "reason" in row and "seconds" not in row
        else:
            assert 0 < row["low"] <= row["seconds"] <= row["high"] and row["MiB"] > 0
            assert row["relative"] == pytest.approx(row["seconds"] / rows["linformer", scope, phase]["seconds"])
    table = benchmark.markdown(content["rows"])
    assert table.count("| 16 |") == 4 and "softmax-cudnn" not in table
    assert "softmax-cudnn" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")


def test_an_option_that_cannot_work_is_rejected_before_anything_is_measured(tmp_path):
    words = [*WORDS, "--out", str(tmp_path / "out"), "--models", "linformer", "--set", "linformer_sinks=3"]
    with pytest.raises(SystemExit, match="linformer_sinks=3"):
        benchmark.main(words)
    assert not (tmp_path / "out").exists()
