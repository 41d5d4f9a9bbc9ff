"""scripts/compare_multipliers.py: what each run is asked for, and what is drawn. Training is left to other tests."""

import json

import pytest
from benchmarking import variants
from benchmarking.multipliers import compare_multipliers
from compare_multipliers import parse_arguments


@pytest.mark.slow
def test_every_multiplier_is_trained_at_every_length_beside_what_has_none(monkeypatch, tmp_path):
    asked = {}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked[folder.relative_to(tmp_path / "out").as_posix()] = overrides

    monkeypatch.setattr(variants, "pretrain", pretrain)
    monkeypatch.setattr(variants, "perplexity", lambda data, run: 100.0 if "c1" in run.parts else 50.0)
    tables = compare_multipliers(
        tmp_path / "data", tmp_path / "out", [512, 4096], [1.0, 0.125], [0.005], seeds=[1], updates=5, jobs=1
    )
    assert sorted(asked) == [
        f"n{n}/{name}/lr0.005/seed1" for n in (4096, 512) for name in ("c0.125", "c1", "mean-pool", "one-mean")
    ]
    long = asked["n4096/c0.125/lr0.005/seed1"]
    assert "model.projection_multiplier=0.125" in long and "model.max_positions=4096" in long
    assert "dataset.batch_size=1" in long and "dataset.batch_size=4" in asked["n512/c1/lr0.005/seed1"]
    assert asked["n512/one-mean/lr0.005/seed1"][-1] == "model.projected_length=1", "after the k of all"
    assert tables.count("| c1 | 0.005 | 100.00 | 100.00 | +100.0 % |") == 2
    assert json.loads((tmp_path / "out" / "results.json").read_text())["updates"] == 5
    assert (tmp_path / "out" / "multipliers.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lengths", "64"], "--lengths: 64 is not allowed: it must be a whole number at least 128"),
        (["--multipliers", "0"], "--multipliers: 0 is not allowed: it must be a number above 0"),
        (["--multipliers", "1", "1.0"], "--multipliers: each must be there once, not 1.0, 1.0"),
    ],
)
def test_what_cannot_work_is_refused(words, said, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--data", "data", *words])
    assert said in capsys.readouterr().err
