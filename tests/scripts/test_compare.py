"""scripts/compare.py: trained runs, the table, and continuation of an interrupted comparison."""

import json
import math
import re
from functools import cache

import compare
import numpy as np
import pytest
import torch
import yaml
from compare import Comparison, Pretraining, Result, Trial, markdown, parse_arguments, read_comparison
from copy_distance import NO_COPY, ClassLosses
from omegaconf import OmegaConf

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.errors import UserError
from fairseq_linformer.model.config import resolve_config
from fairseq_linformer.training.configuration import compose_configuration
from fairseq_linformer.training.updates import DIVERGED
from tests.helpers.layers import D, build

PERPLEXITIES = {("a", 0.1, 1): 10.0, ("a", 0.01, 1): 12.0, ("a", 0.1, 2): 20.0}
PERPLEXITIES |= {("b", 0.1, 1): math.inf, ("b", 0.01, 1): 11.0, ("b", 0.01, 2): 24.0}


class StubPretraining(Pretraining):
    """Runs with the perplexities above."""

    def measure(self, trial):
        perplexity = PERPLEXITIES.get((trial.variant, trial.learning_rate, trial.seed), math.inf)
        if math.isinf(perplexity):
            return Result(perplexity)
        losses, distances = np.log([9.0, 3.0, perplexity]), np.array([NO_COPY, 1, 400])
        classes = ClassLosses.of_tokens(losses, distances, np.zeros(3, dtype=int), [64, 192, 384, 512])
        return Result(perplexity, classes, {5: 30.0, 10: 20.0}, 0.25)

    def update(self, trial):
        return lambda: None


def stub(folder, learning_rates=(0.1, 0.01)):
    pretraining = StubPretraining(folder, folder, "pretrain/tiny_512", {"a": [], "b": []}, 10)
    return Comparison(pretraining, learning_rates, [1, 2])


def test_the_best_learning_rate_of_each_variant_is_trained_with_all_seeds_and_compared_by_seed(tmp_path):
    comparison = stub(tmp_path)
    rows = comparison.run(jobs=2, rounds=1)
    assert comparison.results.keys() == {Trial(*key) for key in PERPLEXITIES}, "no other rate with the second seed"
    assert [row["learning_rate"] for row in rows] == [0.1, 0.01]
    content = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert content["variants"][1]["tried"] == {"0.1": None, "0.01": 11.0}
    line = markdown(rows).splitlines()[3]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["`b`", "0.01", "25 %", "17.50 ± 9.19", "+15.0 ± 7.1 %"]  # 1 of 10 and 4 of 20
    assert cells[5].startswith("9 (")
    assert cells[8].startswith(f"{math.sqrt(11 * 24):.3g} ("), "beyond 192"
    assert cells[9].startswith(f"{math.sqrt(11 * 24 / 10 / 20):.3g} (")
    for plot, name in ((compare.plot_curves, "curves.png"), (compare.plot_distances, "distances.png")):
        plot(rows, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_variant_that_diverges_with_all_rates_is_named(tmp_path):
    with pytest.raises(UserError, match=r"b/lr0.1/seed1 .*--learning-rates"):
        stub(tmp_path, learning_rates=[0.1]).run(jobs=1, rounds=1)


def test_a_run_that_diverges_is_a_result_and_other_failures_are_errors(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errors.pop())

    monkeypatch.setattr(compare.Training, "run", fail)
    errors = ["out of memory", f"{DIVERGED}: after update 2"]
    pretraining = Pretraining(tmp_path, tmp_path, "pretrain/tiny_512", {"a": []}, 10)
    assert pretraining.measure(Trial("a", 0.1, 1)) == Result(math.inf)
    with pytest.raises(OSError, match="out of memory"):
        pretraining.measure(Trial("a", 0.1, 1))


def comparison_of(*words):
    return read_comparison(parse_arguments(["--data", "data", "--out", "out", *words]))


@pytest.mark.parametrize("word", ["optimization.lr=[1]", "+common.seed=7"])
def test_an_override_of_a_flag_is_rejected(word):
    with pytest.raises(UserError, match=re.escape(word)):
        comparison_of("--variant", "a", word)


@pytest.mark.parametrize("file", sorted(compare.COMPARISONS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_comparison_is_of_models_that_can_be_built(file):
    pretraining = comparison_of("--comparison", file.stem).pretraining
    assert next(iter(pretraining.variants)) == "softmax" and "control" in pretraining.variants
    compose = cache(lambda words: compose_configuration(pretraining.config, ["task.data=DATA", *words]))  # slow
    for words in pretraining.variants.values():
        composed = tuple(word for word in words if not re.match(r"model\.(?!max_positions)", word))
        model = OmegaConf.from_dotlist([word for word in words if word not in composed]).get("model", {})
        content = compose(composed)
        resolve_config(OmegaConf.create({**content["model"], **model}), content["task"]["tokens_per_sample"])


def test_every_mechanism_is_compared():
    content = yaml.safe_load((compare.COMPARISONS / "mechanisms.yaml").read_text())
    words = " ".join(content["variants"].values()).split()
    assert {word.partition("=")[2] for word in words if word.startswith("model.attention=")} == ATTENTIONS.keys()


@pytest.mark.parametrize(("selection", "low", "high"), [("exact", 1.0, 1.0), ("random", 0.1, 0.3)])
def test_the_quality_of_a_selection_is_relative_to_the_keys_of_highest_score(selection, low, high):
    """With 12 local and 12 selected keys of 64."""
    options = {"reformer_chunk_length": 4, "reformer_hashes": 1, "reformer_local": True}
    attention = build("reformer", n=64, reformer_selection=selection, **options)[0]
    overlap, weight = compare.selection_quality(attention, torch.randn(2, 64, D))
    assert low <= overlap <= high + 1e-6 and overlap <= weight + 1e-6 and weight <= 1 + 1e-6
