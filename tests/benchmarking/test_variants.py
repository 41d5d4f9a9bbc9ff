"""scripts/compare.py: what each run is asked for, and the table. Training is left to other tests."""

from pathlib import Path

import pytest
from benchmarking import variants
from benchmarking.variants import compare_variants
from compare import parse_arguments

NAMES = ["--data", "data", "--variant", "linformer", "--variant", "softmax", "model.attention=softmax"]


def test_variants_have_their_own_overrides_after_those_of_all():
    arguments = parse_arguments([*NAMES, "--all", "model.local_conv=0"])
    softmax = ["model.local_conv=0", "model.attention=softmax"]
    assert vars(arguments) == {
        **{"data": Path("data"), "out": Path("runs/compare"), "seeds": [1, 2, 3], "updates": 1500, "jobs": 2},
        "variants": {"linformer": ["model.local_conv=0"], "softmax": softmax},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variant", "softmax"], "--variant: each must be there once, not linformer, softmax, softmax"),
        (["--seeds", "1", "2", "1"], "--seeds: each must be there once, not 1, 2, 1"),
        (["--updates", "0"], "--updates: 0 is not allowed"),
        (["--jobs", "-1"], "--jobs: -1 is not allowed"),
    ],
)
def test_what_is_typed_twice_or_out_of_range_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        parse_arguments([*NAMES, *words])
    assert said in capsys.readouterr().err


def test_every_variant_is_trained_with_every_seed_and_tabulated(monkeypatch, tmp_path):
    asked = {}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked[folder.relative_to(tmp_path / "out").as_posix()] = (updates, overrides)

    measured = {"a/seed1": 10.0, "a/seed2": 14.0, "b/seed1": 7.0, "b/seed2": 7.0}
    monkeypatch.setattr(variants, "pretrain", pretrain)
    monkeypatch.setattr(
        variants, "_perplexity", lambda data, run: measured[run.relative_to(tmp_path / "out").as_posix()]
    )
    both = {"a": [], "b": ["optimization.lr=[0.001]"]}
    table = compare_variants(tmp_path / "data", tmp_path / "out", both, seeds=[1, 2], updates=5, jobs=2)
    assert table.splitlines()[2:] == ["| a | 10.00, 14.00 | 12.00 ± 2.83 |", "| b | 7.00, 7.00 | 7.00 ± 0.00 |"]
    assert sorted(asked) == sorted(measured) and {updates for updates, _ in asked.values()} == {5}
    overrides = asked["b/seed2"][1]
    assert overrides[0] == "common.seed=2" and overrides[-1] == "optimization.lr=[0.001]", "after the recipe's own"


def test_a_training_that_fails_ends_the_comparison(monkeypatch, tmp_path):
    def fail(*arguments):
        raise OSError("fairseq-hydra-train ended with status 1")

    monkeypatch.setattr(variants, "pretrain", fail)
    with pytest.raises(OSError, match="ended with status 1"):
        compare_variants(tmp_path, tmp_path, {"a": []}, seeds=[1], updates=5, jobs=1)
