"""What results say where the files in a run's folder are damaged."""

import json
from argparse import Namespace

import pytest

from fairseq_linformer.finetune.results import (
    SCORES_FILE,
    read_scores,
    write_results,
    write_scores,
)
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.training.launch import RUN_FILE
from fairseq_linformer.training.provenance import Provenance

OPTIONS = {"common.seed": 1, "dataset.batch_size": 16, "optimization.lr": [0.01], "optimization.max_update": 6}
MADE = Provenance("finetune/rte", OPTIONS, "1" * 64, "0" * 64)
SCORES = {"valid": {"accuracy": 80.5}}


@pytest.fixture
def folder(tmp_path):
    """A complete run of RTE, below the folder of results."""
    run = tmp_path / "RTE" / "seed1"
    run.mkdir(parents=True)
    (run / RUN_FILE).write_text(json.dumps({**MADE.as_json(), "complete": True}))
    (run / "predictions-valid.tsv").write_text("label\tprediction\n0\t0\n")
    write_scores(run, MADE, SCORES)
    return run


def write(out):
    return write_results(out, out / "a.pt", "0" * 64, resolve_config(Namespace(encoder_layers=1), 16), [], [])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_that_lacks_an_option_is_named(folder, tmp_path, name):
    assert "| RTE | accuracy | 80.5 |" in write(tmp_path)
    options = {option: value for option, value in OPTIONS.items() if option != name}
    (folder / RUN_FILE).write_text(json.dumps({**MADE.as_json(), "configuration": options, "complete": True}))
    with pytest.raises(ValueError, match=rf"seed1/run\.json is damaged: /configuration has no {name}: remove"):
        write(tmp_path)


@pytest.mark.parametrize(
    "scores",
    [
        {},
        {"valid": {}},
        {"valid": {"accurcy": 80.5}},
        {"valid": {"accuracy": 80.5, "f1": 80.5}},
        {"vali": {"accuracy": 80.5}},
        {"a\0b": {"accuracy": 80.5}},
        {"a" * 300: {"accuracy": 80.5}},
    ],
)
def test_scores_other_than_the_tasks_are_computed_again(folder, tmp_path, scores):
    assert read_scores(folder, MADE) == SCORES
    content = json.loads((folder / SCORES_FILE).read_text())
    (folder / SCORES_FILE).write_text(json.dumps({**content, "scores": scores}))
    assert read_scores(folder, MADE) is None
    assert "| RTE | accuracy | failed |" in write(tmp_path)
