"""The instrument of all studies that pretrain: perplexity by distance, measured, kept, written and drawn."""

import json

import numpy as np
import pytest
from benchmarking import masked_text
from benchmarking.distance import distance_tables, draw_distances, measure_distances
from benchmarking.engine import Tuned
from benchmarking.losses_by_distance import NOWHERE, LossesByDistance
from benchmarking.perplexity import PERPLEXITY, draw_mechanisms
from benchmarking.pretraining import Pretraining
from benchmarking.store import Store

from fairseq_linformer.training.launch import Training
from tests.helpers.benchmarks import options

DISTANCES = np.array([NOWHERE, 3, 100, 300, 500])
# Perplexity of each, by variant, seed and n; nothing is 65 to 192 away in rows of 512.
GIVEN = {("a", 1): [400, 10, 1, 80, 20], ("a", 2): [100, 10, 1, 80, 20], ("b", 1): [200, 5, 1, 40, 160]}
GIVEN["b", 2] = GIVEN["b", 1]


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Two variants and two seeds in rows of 512 and of 64; ten rows that are alike."""

    def by_distance(self, trial):
        limit = self.n
        kept = (limit >= DISTANCES) & (DISTANCES != 100)
        losses, distances = np.log(GIVEN[trial.variant, trial.seed])[kept], DISTANCES[kept]
        rows = np.repeat(np.arange(10), len(losses))
        limits = masked_text.octaves(masked_text.WINDOW, limit)
        return LossesByDistance.of(np.tile(losses, 10), np.tile(distances, 10), rows, limits)

    monkeypatch.setattr(Pretraining, "by_distance", by_distance)
    asked = options("perplexity", "--data", tmp_path, "--variant", "a", "--seeds", 1, 2)
    experiments = [Pretraining.of(asked, Store(tmp_path, {}), n, {"a": [], "b": []}) for n in (64, 512)]
    tuned = [Tuned(name, n, {}, 0.1, {1: {}, 2: {}}) for n in (64, 512) for name in "ab"]
    measure_distances(asked, experiments, tuned)
    return tuned


def test_the_table_has_each_class_and_what_is_far_beside_two_others(measured):
    about, short, long = distance_tables(options("perplexity", "--data", "d", "--variant", "a"), measured)
    assert "0.05 % of the text" in about
    assert short.splitlines() == [
        "| rows of 64 | nowhere (50 %) | 1 to 64 (50 %) |",
        "|---|---|---|",
        "| a | 200 (200 to 200) | 10 (10 to 10) |",
        "| b | 200 (200 to 200) | 5 (5 to 5) |",
    ]
    assert long.splitlines() == [
        "| rows of 512 | nowhere (25 %) | 1 to 64 (25 %) | 65 to 192 (0 %) | 193 to 384 (25 %) | 385 to 512 (25 %) "
        "| beyond 192 (50 %) | beyond 192 / nowhere | beyond 192 / a |",
        "|---|---|---|---|---|---|---|---|---|",
        "| a | 200 (200 to 200) | 10 (10 to 10) |  | 80 (80 to 80) | 20 (20 to 20) | 40 (40 to 40) "
        "| 0.2 (0.2 to 0.2) | 1 (1 to 1) |",
        "| b | 200 (200 to 200) | 5 (5 to 5) |  | 40 (40 to 40) | 160 (160 to 160) | 80 (80 to 80) "
        "| 0.4 (0.4 to 0.4) | 2 (2 to 2) |",
    ]
    assert measured[2].by_distance["seeds"][1] == pytest.approx([400, 10, None, 80, 20])


def test_a_text_that_is_too_short_has_a_line_and_a_picture(monkeypatch, tmp_path):
    nothing = LossesByDistance.of(np.zeros(0), np.zeros(0, dtype=int), np.zeros(0, dtype=int), [64, 192, 512])
    monkeypatch.setattr(Pretraining, "by_distance", lambda self, trial: nothing)
    asked = options("perplexity", "--data", tmp_path, "--variant", "a")
    tuned = [Tuned("a", 512, {}, 0.1, {1: {}})]
    measure_distances(asked, [Pretraining.of(asked, Store(tmp_path, {}), 512, {"a": []})], tuned)
    assert distance_tables(asked, tuned)[1] == "Rows of 512: the text is too short, no masked token is rare enough."
    draw_distances(asked, tuned, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_a_curve_and_a_level_for_each_variant(measured, figures, tmp_path):
    draw_distances(None, measured, tmp_path / "a.png")
    short, long = figures[0].axes
    assert long.get_title() == "rows of 512; horizontal lines: no copy in the row"
    a, b = (own[0].get_xydata() for own in long.containers)
    assert a.ravel() == pytest.approx([64, 10, 384, 80, 512, 20]) and b[:, 1] == pytest.approx([5, 40, 160])
    assert [line.get_ydata()[0] for line in short.lines[-2:]] == pytest.approx([200, 200])
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["a", "b"]


def test_mechanisms_with_short_rows_have_a_picture_without_what_is_far(measured, figures):
    for own in measured:
        own.results, own.cost = {1: {"perplexity": 8.0}, 2: {"perplexity": 9.0}}, {"seconds": 0.1}
    for rows, named in ((measured[:2], []), (measured[2:], ["beyond 192"])):
        draw_mechanisms(None, rows, "")
        labels = [text.get_text() for legend in figures.pop().legends for text in legend.get_texts()]
        assert [label for label in labels if label.startswith("beyond")] == named


def test_runs_that_are_complete_are_measured_once_and_without_a_training(corpus, tmp_path, monkeypatch):
    """One variant's rows have a length of their own."""
    monkeypatch.setattr(masked_text, "COMMONEST", 1.0)  # the corpus is too small for rare tokens
    sizes = ["task.tokens_per_sample=64", "model.max_positions=64", "model.projected_length=8"]
    words = ["--data", corpus, "--out", tmp_path / "out", "--all", *sizes, "--variant", "a", "--variant", "b"]
    words += ["task.tokens_per_sample=256", "model.max_positions=256", "--seeds", 1, "--updates", 2, "--jobs", 1]
    asked = options("perplexity", *words)
    printed = PERPLEXITY.run("perplexity", asked)
    assert "| rows of 64 | nowhere" in printed and "| rows of 256 | nowhere" in printed
    assert (tmp_path / "out/results.md").read_text().strip() in printed
    assert (tmp_path / "out/distance.png").stat().st_size > 10_000
    results = json.loads((tmp_path / "out/results.json").read_text())["variants"]
    short, long = (own["by_distance"] for own in results)
    assert sum(one["share"] for one in short["classes"]) == pytest.approx(1) and "far" not in short
    assert long["far"]["name"] == "beyond 192" and long["far_to_b"]["ratio"] is None, "every piece is near somewhere"

    monkeypatch.setattr(Pretraining, "load", lambda *arguments, **options: pytest.fail("measured again"))
    assert PERPLEXITY.run("perplexity", asked) == printed
    monkeypatch.undo()
    monkeypatch.setattr(masked_text, "COMMONEST", 1.0)
    monkeypatch.setattr(Training, "_train", lambda *arguments: pytest.fail("trained again"))
    for file in tmp_path.glob("out/**/losses-*.json"):
        file.unlink()
    checkpoints = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/**/checkpoint_last.pt")}
    assert PERPLEXITY.run("perplexity", asked) == printed and len(checkpoints) == 2
    assert all(path.stat().st_mtime_ns == time for path, time in checkpoints.items())
