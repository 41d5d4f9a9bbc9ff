"""scripts/compare_attention.py: what it measures, draws and does not measure again. Training is left to other tests."""

import json

import pytest

from tests.conftest import ROOT


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import compare_attention

    monkeypatch.setattr(compare_attention, "LENGTHS", {32: 8, 128: 16})
    rows = {"softmax": [(5.0, 90.0), (10.0, 40.0)], "linear": [(5.0, 80.0), (10.0, 30.5)]}
    monkeypatch.setattr(
        compare_attention,
        "pretrain",
        lambda attention, *_: (
            [{"valid_num_updates": n, "valid_ppl": ppl} for n, ppl in rows[attention]] + [{"loss": 1}]
        ),
    )
    return compare_attention


def test_table_plots_and_cost(script, corpus, tmp_path, capsys):
    script.compare(corpus, tmp_path, ["softmax", "linear"], updates=10, rounds=1)
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert lines[0].startswith("| attention | perplexity | parameters | tokens/s, n=32 | MiB, n=32 | tokens/s, n=128 |")
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| `linear`", "30.5"], ["| `softmax`", "40.0"]]
    cost = json.loads((tmp_path / "cost.json").read_text())
    assert all(own["seconds"]["128"] > 0 and own["MiB"]["128"] > 1 for own in cost.values()), "it holds activations"
    assert cost["softmax"]["parameters"] == cost["linear"]["parameters"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("perplexity.png", "cost.png"))

    script.compare(corpus, tmp_path, ["softmax", "linear"], updates=10, rounds=1)
    assert json.loads((tmp_path / "cost.json").read_text()) == cost, "not measured again"
