"""The study speed: what is measured, left out, refused and not measured again."""

import json
import re
from dataclasses import replace

import pytest
import torch
from benchmarking import speed
from benchmarking.baselines import MODELS
from benchmarking.measuring import Case, Machine
from benchmarking.speed import Runner, measure_speed, measure_suites, settings_of
from benchmarking.speed_report import write_report
from benchmarking.store import Store
from benchmarking.suites import Group

from tests.helpers.benchmarks import MACHINE, SIZES, options, plan


def measured(folder, *suites, own=None, machine=MACHINE, rounds=2, limit=30.0):
    """The rows of suites."""
    own, runner = own or plan(), Runner(machine, rounds, limit)
    return measure_suites(suites, own, runner, Store(folder, settings_of(own, runner)))


def report(folder, rows):
    return write_report(folder, {}, rows)


def test_what_cannot_run_is_left_out_with_its_reason_and_what_follows_is_not_tried(monkeypatch, tmp_path):
    def suite(plan):
        for n in (16, 32, 48):
            cases = tuple(plan.case(model, n, 8, "inference") for model in ("linformer", "absent"))
            yield Group(f"n={n}", cases, memory=False)

    def absent(sizes):
        raise ImportError("No module named 'absent'")

    monkeypatch.setitem(MODELS, "absent", absent)
    monkeypatch.setitem(speed.SUITES, "models", suite)
    rows = measured(tmp_path / "quick", "models")
    assert [row.get("skipped") for row in rows] == [None, "No module named 'absent'"] * 3

    slow = measured(tmp_path / "slow", "models", limit=0.0)
    first, second, third = (row["skipped"] for row in slow if row["model"] == "linformer")
    assert first.startswith("took ") and first.endswith(" s, the limit is 0 s")
    assert second == third == f"at n=16 it {first}"
    report(tmp_path / "slow", slow)


def test_a_model_that_is_too_slow_at_one_width_is_tried_at_another(monkeypatch, tmp_path):
    def suite(plan):
        for d in (24, 48):
            wide = replace(plan, sizes=replace(plan.sizes, embed_dim=d))
            yield Group(f"d={d}", (wide.case("linformer", 16, 8, "inference"),), memory=False)

    monkeypatch.setitem(speed.SUITES, "models", suite)
    assert all(row["skipped"].startswith("took ") for row in measured(tmp_path, "models", limit=0.0))


def test_what_does_not_fit_in_memory_costs_its_own_figure_alone(monkeypatch, tmp_path):
    def too_large(self, work):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Machine, "peak_memory", too_large)
    case = Case("linformer", SIZES, "inference", 1)
    monkeypatch.setitem(speed.SUITES, "models", lambda plan: [Group("one", (case,))])
    rows = measured(tmp_path, "models")
    assert rows[0]["seconds"] > 0 and "out of memory" in report(tmp_path, rows)


def test_a_case_without_memory_beside_the_others_leaves_them_their_figures(monkeypatch, tmp_path):
    """It fitted alone, when it was prepared: its neighbours have taken the rest since."""
    prepare, calls = Machine.prepare, []

    def full(self, case):
        work = prepare(self, case)

        def call():
            calls.append(case)
            if case.phase == "evaluation" and len(calls) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            work()

        return call

    monkeypatch.setattr(Machine, "prepare", full)
    cases = tuple(Case("linformer", SIZES, phase, 1) for phase in ("inference", "evaluation"))
    monkeypatch.setitem(speed.SUITES, "models", lambda plan: [Group("one", cases, memory=False)])
    first, second = measured(tmp_path, "models", rounds=3)
    assert first["rounds"] == 3 and first["seconds"] > 0
    assert second["skipped"] == "CUDA out of memory" and "seconds" not in second


@pytest.mark.slow
def test_without_rounds_memory_alone_is_measured_the_same_each_time(tmp_path):
    small = plan(lengths=(512, 1024), models=("softmax",))
    rows = measured(tmp_path / "0", "table3", "models", "growth", own=small, rounds=0)
    said = report(tmp_path / "0", rows)
    assert "table3: peak memory against n" in said and "n to the power of" in said and "time against n" not in said
    assert not any("seconds" in row for row in rows)
    phases = {row["phase"] for row in rows}
    assert phases == {"inference", "forward + backward"}, "what has no memory to measure is not run"
    timed = measured(tmp_path / "1", "table3", own=small, rounds=1)
    assert [row["MiB"] for row in timed] == [row["MiB"] for row in rows if row["suite"] == "table3"]


def test_results_belong_to_code_machine_and_options(monkeypatch, tmp_path):
    """Those of others are refused before anything runs, and left as they are."""

    def run_with(machine=MACHINE, **change):
        case = Case("linformer", SIZES, "inference", 1)
        monkeypatch.setitem(speed.SUITES, "models", lambda plan: [Group("one", (case,))])
        measured(tmp_path, "models", own=plan(**change), machine=machine, rounds=0)

    run_with()
    kept = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    with pytest.raises(ValueError, match=r"study\.json has dtype=float32, not bfloat16"):
        run_with(machine=Machine("cpu", "bfloat16"))
    with pytest.raises(ValueError, match=r"study\.json has heads=3, not 4"):
        run_with(sizes=replace(SIZES, heads=4))
    monkeypatch.setattr(speed, "code_digest", lambda: "other")
    with pytest.raises(ValueError, match=r"study\.json has code=\w+, not other: name another --out"):
        run_with()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == kept and len(kept) == 2


@pytest.fixture
def command(tmp_path):
    """Calls the study with small sizes and more words."""
    small = ["--quick", "--layers", 1, "--embed-dim", 24, "--heads", 3, "--vocab-size", 50, "--tokens", 64]
    small += ["--rounds", 2, "--lengths", 256, 512, "--device", "cpu", "--out", tmp_path / "runs"]
    return lambda *words: measure_speed(options("speed", *small, *words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--heads", 5], "encoder_attention_heads=5 is not allowed"),
        (["--heads", 5, "--models", "fairseq-roberta"], "encoder_attention_heads=5 is not allowed"),
        (["--dropout", 1.5], "dropout=1.5 is not allowed"),
        (["--models", "softmax", "performer"], "attention_dropout=0.1 is not allowed"),
    ],
)
def test_options_that_no_model_can_have_do_not_claim_the_folder(words, said, command, tmp_path):
    with pytest.raises(ValueError, match=said):
        command("--suites", "models", *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_command_measures_what_is_missing_and_refuses_other_settings(command, tmp_path):
    command("--suites", "table3")
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    printed = command("--suites", "table3", "attention")
    again = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [row for row in again["rows"] if row["suite"] == "table3"] == results["rows"], "not measured again"
    assert {row["suite"] for row in again["rows"]} == {"table3", "attention"}
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in again["rows"])
    assert "### table3: time against n" in printed and "`softmax` / it, n=512" in printed
    assert (tmp_path / "runs" / "table3.png").stat().st_size > 10_000
    wrong = {
        ("--lengths", 512): "study.json has lengths=[256, 512], not [512]: name another --out",
        ("--suites", "growth"): "the suite growth has nothing to measure at lengths up to 512",
        ("--lengths", 1024, "--out", tmp_path / "new"): "lengths=[1024] is not allowed: it must be one of 512, 4096",
        ("--lengths", 255): "lengths=255 is not allowed: it must be at least 256",
        ("--vocab-size", 4): "vocab-size=4 is not allowed: it must be above 4",
        ("--heads", 5, "--out", tmp_path / "new"): "encoder_attention_heads=5 is not allowed",
    }
    for words, message in wrong.items():
        with pytest.raises((ValueError, OSError), match=re.escape(message)):
            command("--suites", "attention", *words)
