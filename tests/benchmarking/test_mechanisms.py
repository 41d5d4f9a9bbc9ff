"""scripts/compare_attention.py: what it measures, draws and does not measure again. Training is left to other tests."""

import json
from dataclasses import replace

import pytest
from benchmarking import mechanisms, variants
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
    """Stands for the trainings: the validations that they log, ten updates each; and what they were asked for."""
    asked = []
    perplexities = {"softmax": 40.0, "linear": 30.5, "one-mean": 50.0}

    def pretrain(data, folder, updates, embed_dim, overrides):
        asked.append((folder.parents[1].name, updates, overrides))
        return [{"valid_num_updates": n, "valid_ppl": ppl} for n, ppl in ((5.0, 90.0), (10.0, 41.0))] + [{"loss": 1}]

    monkeypatch.setattr(variants, "pretrain", pretrain)
    monkeypatch.setattr(variants, "perplexity", lambda data, run: perplexities[run.parents[1].name])
    monkeypatch.setattr(mechanisms, "tiny_sizes", lambda data: replace(SIZES, dropout=0.0))
    monkeypatch.setattr(mechanisms, "LENGTHS", {32: 8, 128: 16})
    monkeypatch.setattr(mechanisms, "TOKENS", 64)
    return asked


@pytest.mark.slow
def test_tables_plots_and_cost(trained, data, tmp_path):
    def compare():
        return compare_mechanisms(data, tmp_path / "out", ["softmax", "linear"], [0.1], [1, 2], 10, jobs=1, rounds=1)

    assert compare().startswith((tmp_path / "out" / "results.md").read_text().rstrip())
    lines = (tmp_path / "out" / "results.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| linear", "| softmax", "| one-mean"], "best first"
    assert lines[2].endswith("| -23.8 ± 0.0 % |") and lines[3].endswith(" |  |"), (
        "compared with the first that is named"
    )
    assert lines[6].startswith("| attention | parameters | tokens/s, n=32 | MiB, n=32 | tokens/s, n=128 |")
    (measured,) = json.loads((tmp_path / "out" / "cost.json").read_text())
    cost = measured["cost"]
    assert all(own["seconds"]["128"] > 0 and own["MiB"]["128"] > own["MiB"]["32"] > 0 for own in cost.values())
    assert cost["softmax"]["parameters"] == cost["linear"]["parameters"]
    assert all((tmp_path / "out" / name).stat().st_size > 10_000 for name in ("perplexity.png", "cost.png"))
    asked = {name: overrides for name, _, overrides in trained}
    assert "model.attention=linear" in asked["linear"] and "model.projected_length=1" in asked["one-mean"]
    assert all("dataset.validate_interval_updates=1" in overrides for overrides in asked.values())

    compare()
    assert json.loads((tmp_path / "out" / "cost.json").read_text()) == [measured], "not measured again"


def test_damaged_costs_are_refused_before_a_training(trained, data, tmp_path):
    (tmp_path / "cost.json").write_text('[{"about": {}')
    with pytest.raises(ValueError, match=r"cost\.json holds no costs of attentions: move it away"):
        compare_mechanisms(data, tmp_path, ["softmax"], [0.1], [1], 10, jobs=1, rounds=1)
    assert not trained


def test_the_model_that_is_measured_is_that_of_the_configuration(data):
    """Its dictionary has 50 pieces, fairseq's four own symbols, and the <mask> of the task."""
    sizes = tiny_sizes(data)
    assert (sizes.layers, sizes.embed_dim, sizes.heads, sizes.vocabulary) == (2, 64, 4, 55)
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
