"""scripts/compare_attention.py: what it measures, draws and does not measure again. Training is left to other tests."""

import json
from dataclasses import replace

import pytest
from benchmarking import mechanisms
from benchmarking.measuring import Machine
from benchmarking.mechanisms import CostMeter, compare_mechanisms, tiny_sizes

from tests.helpers.benchmarks import MACHINE, SIZES


@pytest.fixture
def data(tmp_path):
    """All of a corpus that is read where nothing is trained: the dictionary, of 50 pieces."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").write_text("".join(f"piece{number} 1\n" for number in range(50)))
    return tmp_path / "data"


@pytest.fixture
def trained(monkeypatch):
    """Stands for the trainings: the perplexities that they log, ten updates each; and what they were asked for."""
    asked = []
    curves = {"softmax": [(5.0, 90.0), (10.0, 40.0)], "linear": [(5.0, 80.0), (10.0, 30.5)]}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked.append((folder.name, updates, embed_dim, overrides))
        return [{"valid_num_updates": n, "valid_ppl": ppl} for n, ppl in curves[folder.name]] + [{"loss": 1}]

    monkeypatch.setattr(mechanisms, "pretrain", pretrain)
    monkeypatch.setattr(mechanisms, "tiny_sizes", lambda data: replace(SIZES, dropout=0.0))
    monkeypatch.setattr(mechanisms, "LENGTHS", {32: 8, 128: 16})
    monkeypatch.setattr(mechanisms, "TOKENS", 64)
    return asked


@pytest.mark.slow
def test_table_plots_and_cost(trained, data, tmp_path):
    compare_mechanisms(data, tmp_path / "out", ["softmax", "linear"], updates=10, rounds=1)
    lines = (tmp_path / "out" / "results.md").read_text().splitlines()
    assert lines[0].startswith("| attention | perplexity | parameters | tokens/s, n=32 | MiB, n=32 | tokens/s, n=128 |")
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| `linear`", "30.5"], ["| `softmax`", "40.0"]]
    (measured,) = json.loads((tmp_path / "out" / "cost.json").read_text())
    cost = measured["cost"]
    assert all(own["seconds"]["128"] > 0 and own["MiB"]["128"] > own["MiB"]["32"] > 0 for own in cost.values())
    assert cost["softmax"]["parameters"] == cost["linear"]["parameters"]
    assert all((tmp_path / "out" / name).stat().st_size > 10_000 for name in ("perplexity.png", "cost.png"))
    assert [name for name, *_ in trained] == ["softmax", "linear"]
    for name, updates, embed_dim, overrides in trained:
        assert (updates, embed_dim) == (10, 128) and f"model.attention={name}" in overrides

    compare_mechanisms(data, tmp_path / "out", ["softmax", "linear"], updates=10, rounds=1)
    assert json.loads((tmp_path / "out" / "cost.json").read_text()) == [measured], "not measured again"


def test_the_model_that_is_measured_is_that_of_the_configuration(data):
    """Its dictionary has 50 pieces, fairseq's four own symbols, and the <mask> of the task."""
    sizes = tiny_sizes(data)
    assert (sizes.layers, sizes.embed_dim, sizes.heads, sizes.vocabulary) == (4, 128, 4, 55)
    assert (sizes.dropout, sizes.sharing) == (0.0, "layerwise")
    assert sizes.options == (("local_conv", 9), ("encoder_normalize_before", True))


def test_costs_belong_to_code_machine_and_options(tmp_path, monkeypatch):
    """Those of others are neither taken nor lost."""
    file, sizes = tmp_path / "cost.json", replace(SIZES, dropout=0.0)
    meter = CostMeter(sizes, MACHINE, rounds=1, lengths={32: 8})
    monkeypatch.setattr(mechanisms, "TOKENS", 32)

    def measured(**change):
        replace(meter, **change).measure_once(["linear"], file)
        return json.loads(file.read_text())

    first = measured()
    assert measured() == first
    second = measured(rounds=2)
    assert second[:1] == first and len(second) == 2
    with monkeypatch.context() as patch:
        patch.setattr(mechanisms, "code_digest", lambda: "of other code")
        third = measured()
    assert third[:2] == second and len(third) == 3
    fourth = measured(machine=Machine("cpu", "bfloat16"))
    assert fourth[:3] == third and len(fourth) == 4
    assert measured() == fourth
    file.write_text('{"linear": {}}')
    with pytest.raises(ValueError, match=r"cost\.json holds no costs of attentions: move it away"):
        measured()
