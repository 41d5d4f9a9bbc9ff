"""scripts/compare.py: what each run is asked for, and the table. Training is left to other tests."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarking import variants
from benchmarking.variants import Comparison, as_table, perplexity
from compare import parse_arguments

from tests.helpers import ROOT
from tests.helpers.benchmarks import write_shards

NAMES = ["--data", "data", "--variant", "linformer", "--variant", "softmax", "model.attention=softmax"]


def test_variants_have_their_own_overrides_after_those_of_all():
    arguments = parse_arguments([*NAMES, "--all", "model.local_conv=0"])
    softmax = ["model.local_conv=0", "model.attention=softmax"]
    assert vars(arguments) == {
        **{"data": Path("data"), "out": Path("runs/compare"), "seeds": [1, 2, 3], "updates": 1500, "jobs": 2},
        "learning_rates": [0.005],
        "variants": {"linformer": ["model.local_conv=0"], "softmax": softmax},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variant", "softmax"], "--variant: each must be there once, not linformer, softmax, softmax"),
        (["--variant", "a|b"], "--variant a|b is not allowed: a name comes first"),
        (["--variant", ".hidden"], "--variant .hidden is not allowed: a name comes first"),
        (["--seeds", "1", "2", "1"], "--seeds: each must be there once, not 1, 2, 1"),
        (["--learning-rates", "1e-3", "0.001"], "--learning-rates: each must be there once, not 0.001, 0.001"),
        (["--learning-rates", "0"], "--learning-rates: 0 is not allowed"),
        (["--updates", "0"], "--updates: 0 is not allowed"),
        (["--jobs", "-1"], "--jobs: -1 is not allowed"),
    ],
)
def test_what_is_typed_twice_or_out_of_range_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        parse_arguments([*NAMES, *words])
    assert said in capsys.readouterr().err


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Stands for the trainings: what each run was asked for, by its folder; their perplexities are given."""
    asked = {}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked[folder.relative_to(tmp_path / "out").as_posix()] = (updates, overrides)

    measured = {"a/lr0.1/seed1": 10.0, "a/lr0.01/seed1": 12.0, "a/lr0.1/seed2": 20.0}
    measured |= {"b/lr0.1/seed1": 30.0, "b/lr0.01/seed1": 11.0, "b/lr0.01/seed2": 24.0}
    monkeypatch.setattr(variants, "pretrain", pretrain)
    monkeypatch.setattr(
        variants, "perplexity", lambda data, run: measured[run.relative_to(tmp_path / "out").as_posix()]
    )
    return asked, measured


def test_each_variant_has_its_own_best_learning_rate(trained, tmp_path):
    asked, measured = trained
    both = {"a": [], "b": ["model.local_conv=0"]}
    comparison = Comparison(tmp_path / "data", tmp_path / "out", both, [0.1, 0.01], seeds=[1, 2], updates=5, jobs=2)
    a, b = comparison.run()
    assert (a.learning_rate, b.learning_rate) == (0.1, 0.01) and b.tried == {0.1: 30.0, 0.01: 11.0}
    assert sorted(asked) == sorted(measured), "no other rate with the second seed"
    assert {updates for updates, _ in asked.values()} == {5}
    overrides = asked["b/lr0.01/seed2"][1]
    assert overrides[0] == "common.seed=2" and "optimization.lr=[0.01]" in overrides
    assert overrides[-1] == "model.local_conv=0", "after the recipe's own"
    # 1 and 4 of 20: 11 / 10 and 24 / 20
    assert as_table([a, b], a, updates=5).splitlines() == [
        "| variant | lr | perplexity after 5 updates, seeds 1, 2 | mean | behind a |",
        "|---|---|---|---|---|",
        "| a | 0.1 | 10.00, 20.00 | 15.00 ± 7.07 |  |",
        "| b | 0.01 | 11.00, 24.00 | 17.50 ± 9.19 | +15.0 ± 7.1 % |",
        "",
        "| perplexity with seed 1 | lr 0.1 | lr 0.01 |",
        "|---|---|---|",
        "| a | 10.00 | 12.00 |",
        "| b | 30.00 | 11.00 |",
    ]


def test_a_corpus_in_shards_is_measured_on_the_first(monkeypatch, tmp_path):
    first = write_shards(tmp_path / "data")
    monkeypatch.setattr(variants, "perplexity", lambda data, run: data)
    comparison = Comparison(tmp_path / "data", tmp_path / "out", {"a": []}, [0.1], seeds=[1], updates=5, jobs=1)
    assert comparison.measure(tmp_path) == first
    assert replace(comparison, data=first).measure(tmp_path) == first


def test_the_command_keeps_its_table_and_its_picture(trained, tmp_path, monkeypatch, capsys):
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--variant", "a", "--seeds", "1", "2"]
    monkeypatch.setattr("sys.argv", ["compare.py", *words, "--learning-rates", "0.1", "--updates", "5"])
    (tmp_path / "out").mkdir()
    runpy.run_path(str(ROOT / "scripts/compare.py"), run_name="__main__")
    table = (tmp_path / "out/perplexity.md").read_text()
    assert "| a | 0.1 | 10.00, 20.00 |" in table and table in capsys.readouterr().out
    assert (tmp_path / "out/perplexity.png").read_bytes().startswith(b"\x89PNG")


def test_one_seed_and_one_learning_rate(trained, tmp_path):
    (only,) = Comparison(tmp_path, tmp_path / "out", {"a": []}, [0.1], seeds=[1], updates=5, jobs=1).run()
    assert as_table([only], only, 5).splitlines()[2:] == ["| a | 0.1 | 10.00 | 10.00 |  |"]


def test_the_learning_rate_has_one_place(tmp_path):
    """A variant's own would win over those that are tried, and the table would name another."""
    with pytest.raises(
        ValueError, match=r"optimization\.lr=\[1\] is not allowed: it must be left out: --learning-rates"
    ):
        Comparison(tmp_path, tmp_path, {"a": ["optimization.lr=[1]"]}, [0.1], seeds=[1], updates=5, jobs=1)


def test_a_training_that_fails_ends_the_comparison(monkeypatch, tmp_path):
    def fail(*arguments):
        raise OSError("fairseq-hydra-train ended with status 1")

    monkeypatch.setattr(variants, "pretrain", fail)
    with pytest.raises(OSError, match="ended with status 1"):
        Comparison(tmp_path, tmp_path, {"a": []}, [0.1], seeds=[1], updates=5, jobs=1).run()


def test_a_perplexity_is_measured_once_per_checkpoint(monkeypatch, tmp_path):
    loaded = []

    class Model:
        model, task = torch.nn.Identity(), None

        @classmethod
        def from_pretrained(cls, *arguments, **options):
            loaded.append(arguments)
            return cls()

    monkeypatch.setattr(variants, "LinformerRobertaModel", Model)
    monkeypatch.setattr(variants, "masked_lm_perplexity", lambda *arguments, **options: 7.5 + len(loaded))
    for content, expected in ((b"one", 8.5), (b"one", 8.5), (b"two", 9.5)):
        (tmp_path / "checkpoint_last.pt").write_bytes(content)
        assert perplexity(tmp_path / "data", tmp_path) == expected
