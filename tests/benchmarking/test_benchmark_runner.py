"""The runner, and scripts/benchmark.py: what is measured, left out, refused and not measured again."""

import json
import re
from dataclasses import replace

import pytest
import torch
from benchmark import parse_arguments, run
from benchmarking import runner
from benchmarking.baselines import MODELS
from benchmarking.measuring import Case, Machine
from benchmarking.report import write_report
from benchmarking.runner import Benchmark, forecast
from benchmarking.suites import Group

from tests.helpers.benchmarks import MACHINE, SIZES, plan, write_reviews


def test_forecast_follows_the_growth_of_the_last_two_lengths():
    def row(n, seconds):
        return {"n": n, "first_tokens_per_second": 1024 / seconds}

    case = Case("softmax", replace(SIZES, length=4096), "inference", ((4096,),))
    assert forecast([], case) == forecast([row(512, 1.0)], case) == 0
    assert forecast([row(512, 1.0), row(1024, 2.0)], case) == pytest.approx(2.0 * 4 * 4), "4 x a token, 4 x as many"
    assert forecast([row(512, 1.0), row(1024, 1.0)], case) == pytest.approx(4.0)


def test_what_cannot_run_is_left_out_with_its_reason_and_what_follows_is_not_tried(monkeypatch, tmp_path):
    def suite(plan):
        for n in (16, 32, 48):
            cases = tuple(plan.case(model, n, 8, "inference") for model in ("linformer", "absent"))
            yield Group(f"n={n}", cases, memory=False)

    def absent(sizes):
        raise ImportError("No module named 'absent'")

    monkeypatch.setitem(MODELS, "absent", absent)
    monkeypatch.setitem(runner.SUITES, "models", suite)
    benchmark = Benchmark(plan(), MACHINE, 2, 30.0, tmp_path)
    benchmark.run(["models"])
    assert [row.get("skipped") for row in benchmark.rows] == [None, "No module named 'absent'"] * 3

    slow = Benchmark(plan(), MACHINE, 2, 0.0, tmp_path / "slow")
    slow.run(["models"])
    first, second, third = (row["skipped"] for row in slow.rows if row["model"] == "linformer")
    assert first.startswith("took ") and first.endswith(" s, the limit is 0 s")
    assert second == third == f"at n=16 it {first}"
    write_report(tmp_path / "slow", slow.settings, slow.rows)


def test_a_model_that_is_too_slow_at_one_width_is_tried_at_another(monkeypatch, tmp_path):
    def suite(plan):
        for d in (24, 48):
            wide = replace(plan, sizes=replace(plan.sizes, embed_dim=d))
            yield Group(f"d={d}", (wide.case("linformer", 16, 8, "inference"),), memory=False)

    monkeypatch.setitem(runner.SUITES, "models", suite)
    slow = Benchmark(plan(), MACHINE, 2, 0.0, tmp_path)
    slow.run(["models"])
    assert all(row["skipped"].startswith("took ") for row in slow.rows)


def test_what_does_not_fit_in_memory_costs_its_own_figure_alone(monkeypatch, tmp_path):
    def too_large(self, work):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Machine, "peak_memory", too_large)
    case = Case("linformer", SIZES, "inference", ((64,),))
    monkeypatch.setitem(runner.SUITES, "models", lambda plan: [Group("one", (case,))])
    benchmark = Benchmark(plan(), MACHINE, 2, 30.0, tmp_path)
    benchmark.run(["models"])
    assert benchmark.rows[0]["seconds"] > 0
    assert "out of memory" in write_report(tmp_path, benchmark.settings, benchmark.rows)


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
    cases = tuple(Case("linformer", SIZES, phase, ((64,),)) for phase in ("inference", "evaluation"))
    monkeypatch.setitem(runner.SUITES, "models", lambda plan: [Group("one", cases, memory=False)])
    benchmark = Benchmark(plan(), MACHINE, 3, 30.0, tmp_path)
    benchmark.run(["models"])
    first, second = benchmark.rows
    assert first["rounds"] == 3 and first["seconds"] > 0
    assert second["skipped"] == "CUDA out of memory" and "seconds" not in second


@pytest.mark.slow
def test_without_rounds_memory_alone_is_measured_the_same_each_time(tmp_path):
    def measured(rounds, *names):
        small = plan(lengths=(512, 1024), models=("softmax",))
        benchmark = Benchmark(small, MACHINE, rounds, 30.0, tmp_path / str(rounds))
        benchmark.run(list(names))
        return write_report(benchmark.out, benchmark.settings, benchmark.rows), benchmark.rows

    report, rows = measured(0, "table3", "models", "growth")
    assert "Table 3: how many times less memory" in report and "## Exponents" in report and "faster" not in report
    assert not any("seconds" in row for row in rows) and not (tmp_path / "0" / "figure2.png").exists()
    assert {row["phase"] for row in rows} == {"inference", "forward + backward"}, (
        "what has no memory to measure is not run"
    )
    timed = measured(1, "table3")[1]
    assert [row["MiB"] for row in timed] == [row["MiB"] for row in rows[: len(timed)]]


def test_results_belong_to_code_machine_and_options(monkeypatch, tmp_path):
    """Those of others are refused before anything runs, and left as they are."""

    def run_with(*lengths, machine=MACHINE, **change):
        folder = write_reviews(tmp_path / "-".join(map(str, (*lengths, *change))), *lengths)
        Benchmark(plan(reviews=folder, **change), machine, 0, 30.0, tmp_path / "out").run(["lengths"])

    run_with(30, 40)
    kept = (tmp_path / "out" / "results.json").read_bytes()
    with pytest.raises(ValueError, match=r"results\.json has other rows in lengths, n=512: name another --out"):
        run_with(30, 41)
    with pytest.raises(ValueError, match=r"results\.json has dtype=float32, not bfloat16"):
        run_with(50, machine=Machine("cpu", "bfloat16"))
    with pytest.raises(ValueError, match=r"results\.json has heads=3, not 4"):
        run_with(60, sizes=replace(SIZES, heads=4))
    (tmp_path / "code" / "part").mkdir(parents=True)
    monkeypatch.setattr(runner, "CODE", (tmp_path / "code",))
    digests = set()
    for content in ("x = 1", "x = 2"):
        (tmp_path / "code" / "part" / "module.py").write_text(content)
        digests.add(runner.code_digest())
    assert len(digests) == 2
    with pytest.raises(ValueError, match=r"results\.json has code=\w+, not \w+: name another --out"):
        run_with(70)
    assert (tmp_path / "out" / "results.json").read_bytes() == kept


@pytest.fixture
def command(tmp_path):
    """Calls scripts/benchmark.py with small sizes and more words."""
    small = ["--quick", "--layers", 1, "--embed-dim", 24, "--heads", 3, "--vocab-size", 50, "--tokens", 64]
    small += ["--rounds", 2, "--lengths", 256, 512, "--threads", 1, "--device", "cpu", "--out", tmp_path / "runs"]
    threads = torch.get_num_threads()
    yield lambda *words: run(parse_arguments([str(word) for word in (*small, *words)]))
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_the_command_measures_what_is_missing_and_refuses_other_settings(command, tmp_path, capsys):
    command("--suites", "table3")
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    command("--suites", "table3", "attention")
    printed = capsys.readouterr().out
    again = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert again["rows"][: len(results["rows"])] == results["rows"], "not measured again"
    assert {row["suite"] for row in again["rows"]} == {"table3", "attention"}
    assert all(row["seconds"] > 0 and row["MiB"] > 0 for row in again["rows"])
    assert "## Table 3: how many times faster than `softmax`" in printed and "| 512 | " in printed
    assert (tmp_path / "runs" / "figure2.png").stat().st_size > 10_000
    wrong = {
        ("--lengths", 512): "results.json has lengths=[256, 512], not [512]: name another --out",
        ("--suites", "lengths", "--reviews", "nowhere"): "nowhere holds no input0/train.idx",
        ("--suites", "lengths"): "the suite lengths needs --reviews",
        ("--suites", "growth"): "the suite growth has nothing to measure at lengths up to 512",
        ("--lengths", 1024, "--out", tmp_path / "new"): "lengths=[1024] is not allowed: it must be one of 512, 4096",
        ("--lengths", 255): "lengths=255 is not allowed: it must be at least 256",
        ("--vocab-size", 4): "vocab-size=4 is not allowed: it must be above 4",
        ("--heads", 5, "--out", tmp_path / "new"): "encoder_attention_heads=5 is not allowed",
    }
    for words, message in wrong.items():
        with pytest.raises((ValueError, OSError), match=re.escape(message)):
            command("--suites", "attention", *words)


@pytest.mark.parametrize(
    ("option", "value"), [("--rounds", -1), ("--limit", "nan"), ("--limit", 0), ("--layers", 0), ("--threads", "x")]
)
def test_a_number_out_of_its_range_is_refused(command, option, value, capsys):
    with pytest.raises(SystemExit):
        command(option, value)
    assert f"argument {option}: {value} is not allowed: it must be a" in capsys.readouterr().err


def test_damaged_results_are_named_and_left_as_they_are(tmp_path):
    file, settings = tmp_path / "results.json", Benchmark(plan(), MACHINE, 0, 30.0, tmp_path).settings
    for content, said in (
        ("{}", "its content has no settings"),
        ("[]", "its content is a list"),
        ('"text"', 'its content is "text"'),
        (json.dumps({"settings": [], "rows": []}), "/settings is a list"),
        (json.dumps({"settings": settings, "rows": {}}), "/rows is an object"),
        (json.dumps({"settings": settings, "rows": [1]}), "/rows/0 is 1"),
        (json.dumps({"settings": settings, "rows": [{"suite": "models"}]}), "/rows/0 has no "),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=rf"results\.json is damaged: {said}.*: name another --out$"):
            Benchmark(plan(), MACHINE, 0, 30.0, tmp_path).run(["models"])
        assert file.read_text() == content
    file.write_text(json.dumps({"settings": {**settings, "layers": "1\n2"}, "rows": []}))
    with pytest.raises(ValueError, match=r"results\.json has layers=1 2, not 1: name another --out$"):
        Benchmark(plan(), MACHINE, 0, 30.0, tmp_path)
