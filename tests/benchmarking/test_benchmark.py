"""scripts/benchmark.py: the models that it compares, what it writes, leaves out and does not measure again."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarking import measuring, runner, suites
from benchmarking.baselines import MODELS, Sizes
from benchmarking.measuring import (
    Case,
    Machine,
    flops,
    in_turns,
    largest,
    spread,
)
from benchmarking.report import exponent, savings, write_report
from benchmarking.runner import Benchmark, forecast
from benchmarking.suites import Group, Plan
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from torch import nn

from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.processes import running_in_group, wait_until

SIZES = Sizes(layers=1, embed_dim=24, heads=3, vocabulary=50, length=64, projected_length=16)
MACHINE = Machine("cpu", "float32")
NEEDED = {"lucidrains": "linformer", "hf": "transformers"}


BLOCKS = {"hf-modernbert": {(72, 24), (24, 24), (24, 36)}}  # queries, keys and values in one; gated 1.5 d
SQUARES = {"hf-modernbert": 2, "lucidrains-linformer": 4}  # whose LM head is a linear map


def plan(**changes):
    rest = {"tokens": 128, "lengths": (512,), "device": "cpu", "models": suites.COMPARED, "reviews": None}
    return Plan(**{"sizes": SIZES, **rest, **changes})


@pytest.mark.parametrize("model", ["linformer", "softmax", *list(MODELS)[-6:]])
def test_every_model_learns_from_and_encodes_the_same_batch(model):
    pytest.importorskip(NEEDED.get(model.split("-")[0], "torch"))
    peer = Case(model, SIZES, "training", ((64, 64),)).build()
    tokens, masked = peer.draw(SIZES, (64, 64))
    assert peer.eval().features(tokens, masked).shape == (2, 64, 24)
    loss = peer.train().loss(tokens, masked)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(50), rel=0.5)
    weights = [part.weight for part in peer.modules() if isinstance(part, nn.Linear) and part.weight.grad is not None]
    blocks = {tuple(weight.shape) for weight in weights}
    assert blocks >= BLOCKS.get(model, {(24, 24), (96, 24), (24, 96)}), "d x d, and a feed-forward network of 4 d"
    squares = sum(weight.shape == (24, 24) for weight in weights)
    assert squares == SQUARES.get(model, 5), "queries, keys, values, output, and the LM head's"


def test_batches_of_unequal_rows_are_padded_and_nothing_padded_is_masked():
    peer = Case("linformer", SIZES, "training", ((64,),)).build()
    tokens, masked = peer.draw(SIZES, (40, 7))
    assert tokens.shape == (2, 40) and (tokens[1, 7:] == 1).all() and not masked[1, 7:].any() and (tokens[0] != 1).all()


def test_the_examples_layer_and_ours_compute_the_same():
    """So that the suite compares like with like: their parameters in our layer give their output."""
    cases = (Case(model, SIZES, "inference", ((64,),), layer_alone=True) for model in ("linformer", "fairseq-example"))
    ours, theirs = (case.build().eval() for case in cases)
    names = {name.replace("compress_k", "key_projection"): value for name, value in theirs.model.named_parameters()}
    ours.model.load_state_dict(names, strict=False)
    assert set(names) >= {name for name, _ in ours.model.named_parameters()}
    outs = [layer.features(*layer.draw(SIZES, (64, 64))) for layer in (ours, theirs)]
    torch.testing.assert_close(outs[0], outs[1].transpose(0, 1), atol=1e-5, rtol=0)


def test_floating_point_operations_are_those_of_the_formula():
    """Of the attention layer alone: 2 n d^2 + 3 n k d + 2 k d^2 multiplications (LinformerAttention)."""
    n, k, d = SIZES.length, SIZES.projected_length, SIZES.embed_dim
    case = Case("linformer", SIZES, "inference", ((n, n, n),), layer_alone=True)
    assert flops(case) == 3 * 2 * (2 * n * d * d + 3 * n * k * d + 2 * k * d * d)
    assert flops(Case("linformer", SIZES, "training", case.batches, layer_alone=True)) == 3 * flops(case)


def test_peak_memory_is_what_the_tensors_take_whatever_the_process_held():
    """By hand, in MiB: 4, 8, the 4 freed, 2 and 1 are 11 at the end, and 12 before. The 16 held before are no part."""
    held = [torch.empty(4 * 2**20)]

    def work():
        first, second = torch.empty(2**20), torch.empty(2 * 2**20)
        del first
        held.clear()
        return second, torch.empty(2**19), torch.empty(2**18)

    assert MACHINE.peak_memory(work) == 12


def test_peak_memory_sees_what_a_backward_pass_takes_and_frees():
    """x, exp(x), which it keeps, and the gradient: 3 x 4 MiB, and as many in a second call."""

    def work():
        x = torch.ones(2**20, requires_grad=True)
        y = x.exp()
        y.sum().backward()

    assert MACHINE.peak_memory(work) == pytest.approx(12, abs=1e-3)
    assert MACHINE.peak_memory(lambda: [work() for _ in range(3)]) == MACHINE.peak_memory(work)


def test_peak_memory_of_a_model_is_the_same_in_every_run_and_grows_with_the_batch():
    few, many = (Case("softmax", SIZES, "training", ((64,) * rows,)) for rows in (64, 256))
    work = MACHINE.prepare(few)
    work()
    peaks = [MACHINE.peak_memory(call) for call in (work, work, MACHINE.prepare(few), MACHINE.prepare(many))]
    assert peaks[0] == peaks[1] == peaks[2]
    assert 0 < 3 * peaks[0] < peaks[3]


def test_the_matrix_rate_is_that_of_numbers_as_models_have_them(monkeypatch):
    """Equal ones are faster to multiply on a GPU."""
    factors = []
    monkeypatch.setattr(torch, "mm", lambda left, right, out: factors.extend((left, right)))
    work, operations = MACHINE.matrix_product(64, 32)
    work()
    assert operations == 2 * 64 * 32 * 128
    for factor, scale in zip(factors, (1.0, 0.02), strict=True):
        assert factor.std().item() == pytest.approx(scale, rel=0.1) and factor.unique().numel() > 0.9 * factor.numel()


@pytest.mark.parametrize(("model", "masked"), [("linformer", True), ("softmax", True), ("softmax-flash", False)])
def test_off_the_cpu_models_run_with_the_mask_that_users_models_have(model, masked):
    """But for those named by a kernel. (The device meta stands for a GPU.)"""
    peer = MODELS[model](SIZES).to("meta")
    masks = []
    attention = peer.model.encoder.sentence_encoder.layers[0].self_attn
    attention.register_forward_pre_hook(lambda _, arguments: masks.append(arguments[1]))
    peer.kernel = None  # device meta has none
    peer.features(*(tensor.to("meta") for tensor in peer.draw(SIZES, (64, 64))))
    assert [mask is not None for mask in masks] == [masked]


def test_calls_take_turns():
    order = []
    seconds = in_turns({name: lambda name=name: order.append(name) for name in "ab"}, rounds=3)
    assert order == list("ababab") and {name: len(own) for name, own in seconds.items()} == {"a": 3, "b": 3}
    impatient = in_turns({"a": lambda: None}, rounds=7, patience=0.0)
    assert len(impatient["a"]) == 3, "no fewer, or there is no median"
    assert spread([3.0, 1.0, 2.0]) == {"low": 1.5, "seconds": 2.0, "high": 2.5}


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (7, 7), (1000, 1000)])
def test_the_largest_batch_that_fits(limit, found):
    tried = []
    assert limit * 7 / 8 <= largest(lambda rows: (tried.append(rows), rows <= limit)[1]) <= found
    assert len(tried) < 20


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


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import benchmark

    return benchmark


def write_reviews(folder, *lengths):
    """A tiny IMDB as scripts/prepare_imdb.py writes it."""
    (folder / "input0").mkdir(parents=True)
    builder = MMapIndexedDatasetBuilder(str(folder / "input0" / "train.bin"))
    for length in lengths:
        builder.add_item(torch.ones(length, dtype=torch.int))
    builder.finalize(str(folder / "input0" / "train.idx"))
    return folder


@pytest.fixture
def reviews(tmp_path):
    return write_reviews(tmp_path / "imdb", 30, 5000, 200, 7, 90)


def test_without_rounds_memory_alone_is_measured_the_same_each_time(tmp_path):
    def measured(rounds, *names):
        small = plan(lengths=(512, 1024, 2048), models=("softmax",))
        benchmark = Benchmark(small, MACHINE, rounds, 30.0, tmp_path / str(rounds))
        benchmark.run(list(names))
        return write_report(benchmark.out, benchmark.settings, benchmark.rows), benchmark.rows

    report, rows = measured(0, "table3", "models", "growth")
    assert "Table 3: how many times less memory" in report and "## Exponents" in report and "faster" not in report
    assert not any("seconds" in row for row in rows) and not (tmp_path / "0" / "figure2.png").exists()
    assert {row["phase"] for row in rows} == {"inference", "training"}, "what has no memory to measure is not run"
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


def parsed(script, *words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["benchmark.py", *map(str, words)])
        return script.parse_arguments()


def test_the_command_measures_what_is_missing_and_refuses_other_settings(script, tmp_path):
    command = ["scripts/benchmark.py", "--quick", "--layers", 1, "--embed-dim", 24, "--heads", 3, "--vocab-size", 50]
    command += ["--tokens", 64, "--rounds", 2, "--lengths", 256, 512, "--threads", 1, "--out", tmp_path / "runs"]
    run(*command, "--suites", "table3", cwd=tmp_path)
    results = json.loads((tmp_path / "runs" / "results.json").read_text())
    printed = run(*command, "--suites", "table3", "attention", cwd=tmp_path)
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
        ("--lengths", 0): "lengths=0 is not allowed: it must be at least 256",
        ("--rounds", -1): "--rounds=-1 is not allowed: it must be at least 0",
        ("--vocab-size", 4): "vocab-size=4 is not allowed: it must be above 4",
        ("--limit", "nan"): "--limit=nan is not allowed: it must be above 0",
        ("--heads", 5, "--out", tmp_path / "new"): "encoder_attention_heads=5 is not allowed",
    }
    for words, message in wrong.items():
        arguments = parsed(script, *command[1:], "--suites", "attention", *words)
        with pytest.raises((ValueError, OSError), match=re.escape(message)):
            script.main(arguments)


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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc to find processes in")
def test_the_process_of_a_killed_benchmark_ends_too(tmp_path):
    started = tmp_path / "started"
    (tmp_path / "killed.py").write_text(ENDLESS.format(started=str(started)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "killed.py")]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        wait_until(started.is_file)
        assert len(running_in_group(process.pid)) > 1
        process.kill()
        process.wait()
        wait_until(lambda: not running_in_group(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


ENDLESS = """
import pathlib, time
from benchmarking import measuring

def _endless(*unused):
    pathlib.Path({started!r}).touch()
    time.sleep(300)

if __name__ == "__main__":
    measuring._largest_batch = _endless
    measuring.Machine("cpu", "float32").largest_batch(None, 1.0)
"""


def _kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_does_not_fit_in_memory_costs_its_own_figure_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "_largest_batch", _kill)  # in a process of its own
    with pytest.raises(RuntimeError, match="its process ended early"):
        MACHINE.largest_batch(Case("softmax", SIZES, "training", ((64,),)), 1.0)

    def too_large(self, work):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Machine, "peak_memory", too_large)
    case = Case("linformer", SIZES, "inference", ((64,),))
    monkeypatch.setitem(runner.SUITES, "models", lambda plan: [Group("one", (case,))])
    benchmark = Benchmark(plan(), MACHINE, 2, 30.0, tmp_path)
    benchmark.run(["models"])
    assert benchmark.rows[0]["seconds"] > 0
    assert "out of memory" in write_report(tmp_path, benchmark.settings, benchmark.rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_suite_names_its_groups_once_and_fits_its_lengths(device, reviews):
    long_plan = plan(lengths=tuple(2**power for power in range(9, 17)), device=device, reviews=reviews)
    for name, suite in suites.SUITES.items():
        groups = list(suite(long_plan))
        assert groups, name
        assert len({group.name for group in groups}) == len(groups), name
        for group in groups:
            assert len(set(group.cases)) == len(group.cases), group.name
            assert len({(case.model, case.note) for case in group.cases}) == len(group.cases), group.name
            assert all(case.sizes.projected_length < case.sizes.length for case in group.cases)


def test_models_are_those_asked_for_once_each():
    names = {
        group.name.split()[-1]: [case.model for case in group.cases]
        for group in suites.models(plan(models=("softmax", "performer", "softmax-math", "performer")))
    }
    kernels = ["softmax-flash", "softmax-efficient", "softmax-math"]
    assert names["inference"] == ["softmax", *kernels, "performer"]
    assert names["training"] == ["softmax", "performer", "softmax-math"]


def test_savings_and_exponents():
    def row(model, n, k, seconds):
        return {"model": model, "n": n, "k": k, "seconds": seconds}

    rows = [
        row("softmax", 1024, 128, 8.0),
        row("linformer", 1024, 128, 2.0),
        {"model": "linformer", "n": 1024, "k": 256},
    ]
    last = savings(rows, "seconds", {1024: (1.7, 1.6, 1.3)}).splitlines()[-1]
    assert last == "| 1024 | 4.0 (1.7) | not measured (1.6) | not measured (1.3) |  |  |"
    assert exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
