"""scripts/compare_attention.py: what it measures, draws and does not measure again. Training is left to other tests."""

import json

import pytest
from benchmarking.measuring import Machine

from tests.helpers import ROOT


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
    (measured,) = json.loads((tmp_path / "cost.json").read_text())
    cost = measured["cost"]
    assert all(own["seconds"]["128"] > 0 and own["MiB"]["128"] > 1 for own in cost.values()), "it holds activations"
    assert cost["softmax"]["parameters"] == cost["linear"]["parameters"]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("perplexity.png", "cost.png"))

    script.compare(corpus, tmp_path, ["softmax", "linear"], updates=10, rounds=1)
    assert json.loads((tmp_path / "cost.json").read_text()) == [measured], "not measured again"


def test_costs_belong_to_code_machine_and_options(script, corpus, tmp_path, monkeypatch):
    """Those of others are neither taken nor lost."""

    def measured(**change):
        script.measure_cost(**{"attentions": ["linear"], "data": corpus, "out": tmp_path, "rounds": 1, **change})
        return json.loads((tmp_path / "cost.json").read_text())

    monkeypatch.setattr(script, "LENGTHS", {32: 8})
    first = measured()
    assert measured() == first
    second = measured(rounds=2)
    assert second[:1] == first and len(second) == 2
    monkeypatch.setattr(script, "code_digest", lambda: "of other code")
    third = measured()
    assert third[:2] == second and len(third) == 3
    monkeypatch.setattr(script, "MACHINE", Machine("cpu", "bfloat16"))
    assert measured()[:3] == third and len(measured()) == 4
    (tmp_path / "cost.json").write_text('{"linear": {}}')
    with pytest.raises(ValueError, match=r"cost\.json holds no costs of attentions: move it away"):
        measured()
