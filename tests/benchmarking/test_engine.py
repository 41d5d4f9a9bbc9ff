"""The engine of all studies: what is tuned, kept, refused and timed; with a stub in place of trainings."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from benchmarking import engine
from benchmarking.engine import Comparison, Experiment, Tuned, time_updates
from benchmarking.store import STUDY_FILE, Store, code_digest

from tests.helpers import ROOT
from tests.helpers.benchmarks import options

WORDS = ["--data", "data", "--variant", "a", "--variant", "b", "--seeds", 1, 2, "--learning-rates", 0.1, 0.01]
MEASURED = {("a", 0.1, 1): 10.0, ("a", 0.01, 1): 12.0, ("a", 0.1, 2): 20.0}
MEASURED |= {("b", 0.1, 1): 30.0, ("b", 0.01, 1): 11.0, ("b", 0.01, 2): 24.0}


@dataclass(frozen=True)
class Stub(Experiment):
    """Runs whose scores are given."""

    n: int = 16
    variants: tuple = ("a", "b")
    asked: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    def check(self):
        pass

    def measure(self, trials):
        self.asked.extend(trials)
        return {own: {"perplexity": MEASURED[own.variant, own.rate, own.seed]} for own in trials}

    def score(self, figures):
        return figures["perplexity"]

    def step(self, tuned):
        return lambda: self.steps.append(tuned.variant)

    def origin(self, names):
        return dict.fromkeys(names, "model")


def test_each_variant_has_its_own_best_learning_rate_with_the_first_seed(tmp_path, monkeypatch):
    stub = Stub(Store(tmp_path, {}))
    a, b = stub.tune([0.1, 0.01], [1, 2])
    assert (a.learning_rate, b.learning_rate) == (0.1, 0.01) and b.tried == {0.1: 30.0, 0.01: 11.0}
    assert b.results == {1: {"perplexity": 11.0}, 2: {"perplexity": 24.0}}
    assert {(own.variant, own.rate, own.seed) for own in stub.asked} == set(MEASURED), "no other rate with seed 2"
    monkeypatch.setattr(Stub, "best", staticmethod(max))
    assert [own.learning_rate for own in stub.tune([0.1, 0.01], [1])] == [0.01, 0.1], "the highest score"


def test_a_result_is_computed_once_for_all_that_it_was_made_of(tmp_path):
    store, computed = Store(tmp_path / "out", {}), []

    def compute():
        computed.append(None)
        return {"x": float(len(computed))}

    assert [store.once("a/run", {"seed": seed}, compute)["x"] for seed in (1, 1, 2)] == [1, 1, 2]
    assert [own["x"] for own in store.all("a")] in ([1, 2], [2, 1])
    assert len([*(tmp_path / "out/a").iterdir()]) == 2, "what was there stays"
    file = min((tmp_path / "out/a").iterdir())
    for content, said in {
        '{"made_of": {}}': "has no result",
        '{"made_of": {}, "result": {"x": 2.0}, "digest": "0"}': "its result is not what was written",
        "{": "not JSON",
    }.items():
        file.write_text(content)
        with pytest.raises(ValueError, match=rf"{file.name}.*{said}.*: remove it, or name another --out"):
            [*store.all("a")]
        assert file.read_text() == content
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Store(tmp_path / "file", {}).once("a/run", {}, lambda: pytest.fail("it was computed"))


def test_a_folder_of_other_settings_is_refused_by_name(tmp_path):
    Store(tmp_path, {"study": "speed", "lengths": (1, 2)}).begin()
    Store(tmp_path, {"study": "speed", "lengths": [1, 2]})
    with pytest.raises(ValueError, match=r"study\.json has study=speed, not recall: name another --out"):
        Store(tmp_path, {"study": "recall"})
    (tmp_path / STUDY_FILE).write_text('{"study": "1\\n2"}')
    with pytest.raises(ValueError, match=r"study\.json has study=1 2, not recall: name another --out$"):
        Store(tmp_path, {"study": "recall"})
    for content in ("[]", "{", '"text"'):
        (tmp_path / STUDY_FILE).write_text(content)
        with pytest.raises(ValueError, match=r"study\.json.*: name another --out"):
            Store(tmp_path, {})
        assert (tmp_path / STUDY_FILE).read_text() == content


def test_two_processes_are_not_at_work_in_one_folder(tmp_path):
    store = Store(tmp_path, {})
    store.begin()
    begun = (tmp_path / STUDY_FILE).stat().st_mtime_ns
    script = "import pathlib, sys, benchmarking.store as of; of.Store(pathlib.Path(sys.argv[1]), {}).begin()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'scripts'}"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    said = ended.stderr.splitlines()[-1:]
    assert said == [f"fairseq_linformer.errors.UserError: {tmp_path}: another process is at work there"]
    assert (tmp_path / STUDY_FILE).stat().st_mtime_ns == begun
    Store(tmp_path, {}).begin()  # that of this process is no other


def test_code_is_known_by_its_content(tmp_path):
    digests = set()
    for content in ("x = 1", "x = 2"):
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part/module.py").write_text(content)
        digests |= {code_digest((tmp_path,)), code_digest((tmp_path / "part/module.py",))}
    assert len(digests) == 4


def test_updates_are_timed_in_turns_and_again_for_other_code_only(tmp_path, monkeypatch):
    stub = Stub(Store(tmp_path, {}))
    asked = options("perplexity", *WORDS, "--rounds", 3)

    def timed():
        tuned = [Tuned(name, 16, {}, 0.1, {}) for name in "ab"]
        time_updates(asked, [stub], tuned)
        return [own.cost for own in tuned]

    costs = timed()
    assert stub.steps == list("ababababab"), "two rounds to warm up, and three"
    assert all(0 <= own["low"] <= own["seconds"] <= own["high"] for own in costs)
    assert timed() == costs and len(stub.steps) == 10
    monkeypatch.setattr(engine, "code_digest", lambda: "of other code")
    timed()
    assert len(stub.steps) == 20


def test_the_command_writes_its_table_its_results_and_its_pictures(tmp_path):
    stubs, drawn = [], []
    study = Comparison(
        experiments=lambda options, store: stubs.append(Stub(store)) or stubs,
        quantity="perplexity",
        form="{:.2f}".format,
        columns=lambda options, tuned: {"first seed": lambda own: f"{own.each('perplexity')[0]:g}"},
        pictures={"one.png": lambda options, tuned, path: drawn.append((path.name, len(tuned)))},
        measures=(),
        notes=lambda options, tuned: ["A note."],
    )
    printed = study.run("stub", options("perplexity", *WORDS, "--out", tmp_path))
    assert (tmp_path / "results.md").read_text().rstrip() in printed and drawn == [("one.png", 2)]
    assert printed.splitlines()[:-2] == [
        "| variant | lr | first seed |",
        "|---|---|---|",
        "| a | 0.1 | 10 |",
        "| b | 0.01 | 11 |",
        "",
        "| perplexity, seed 1 | lr 0.1 | lr 0.01 |",
        "|---|---|---|",
        "| a | 10.00 | 12.00 |",
        "| b | 30.00 | 11.00 |",
        "",
        "A note.",
    ]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["options"]["updates"] == 1500 and results["made_of"] == {"n=16": {"a": "model", "b": "model"}}
    assert [own["variant"] for own in results["variants"]] == ["a", "b"]
    with pytest.raises(ValueError, match="has study=stub, not other: name another --out"):
        study.run("other", options("perplexity", *WORDS, "--out", tmp_path))
    printed = study.tables(options("perplexity", "--data", "d", "--variant", "a", "--seeds", 2, 1, *WORDS[-3:]), [])
    assert "| perplexity, seed 2 |" in printed, "the learning rate was tried with the seed that is given first"
