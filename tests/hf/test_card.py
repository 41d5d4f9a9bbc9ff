"""The model card: what it says of a training, and what names and labels of others do to it."""

import json
import re

import pytest
import torch
import yaml

pytest.importorskip("transformers", reason="transformers is not installed")

from fairseq_linformer.hf.exporting import export
from tests.helpers import ROOT
from tests.helpers.commands import run, with_hydra
from tests.helpers.exports import write_pretrained, write_vocabulary
from tests.helpers.inputs import write_sst_2


def rows_of(card: str) -> dict[str, str]:
    """The tables of a card, by the names in their first column."""
    rows = [line.strip("|").split("|") for line in card.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): cells[1].strip() for cells in rows}


def updates_of(run_folder, checkpoint, out) -> int:
    export(run_folder / checkpoint, out)
    return int(rows_of((out / "README.md").read_text())["updates"])


@pytest.mark.slow
def test_updates_are_those_of_the_training_however_often_it_was_resumed(corpus, tmp_path):
    """fairseq's history has an entry per process, cumulative, and those of the checkpoint that a training started from:
    a sum of them counts a resumed run twice, and a classifier's pretraining as its own.
    """
    for updates in (2, 3):
        run(*with_hydra(corpus, tmp_path / "pretrained", updates), cwd=tmp_path)
    assert updates_of(tmp_path / "pretrained", "checkpoint_last.pt", tmp_path / "1") == 3
    write_sst_2(tmp_path / "glue")
    words = ["--source", "glue", "--tasks", "SST-2", "--tokenizer", corpus, "--out", "tasks"]
    run("scripts/prepare_glue.py", *words, cwd=tmp_path)
    start = f"checkpoint.finetune_from_model={tmp_path}/pretrained/checkpoint_last.pt"
    words = ["--config-dir", ROOT / "configs/finetune", "--config-name", "finetune", "recipe=sst_2", start]
    words += [f"task.data={tmp_path}/tasks/SST-2", "checkpoint.save_dir=tuned", "common.cpu=true"]
    words += ["dataset.num_workers=0", "optimization.max_epoch=0", "lr_scheduler.warmup_updates=1"]
    for updates, out in ((1, "2"), (4, "3")):
        run("fairseq-hydra-train", *words, f"optimization.max_update={updates}", cwd=tmp_path)
        assert updates_of(tmp_path / "tuned", "checkpoint_last.pt", tmp_path / out) == updates


HOSTILE = "a|b`c`\\|\n---\nlicense: mit\n| x | y |\n```\n<script>alert(1)</script> [here](http://x)\x1b[2J\u2028#"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> str:
    """The card of a run whose files hold what breaks Markdown and YAML, wherever text of others can stand."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "vocabulary").mkdir()
    checkpoint = write_pretrained(folder / "run", write_vocabulary(folder / "vocabulary"))
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["task"]["data"] = f"/x/{HOSTILE}"
    state["cfg"]["optimization"] |= {"lr": [HOSTILE], "update_freq": [HOSTILE]}
    state["cfg"]["checkpoint"]["best_checkpoint_metric"] = HOSTILE
    state["cfg"]["common"]["seed"] = state["cfg"]["dataset"]["batch_size"] = state["extra_state"]["best"] = HOSTILE
    torch.save(state, checkpoint)
    scores = {"made_by": {}, "predictions": {}, "scores": {HOSTILE: {HOSTILE: 3.0}}}
    (folder / "run" / "scores.json").write_text(json.dumps(scores))
    export(checkpoint, folder / "out", folder / "vocabulary")
    return (folder / "out" / "README.md").read_text(encoding="utf-8")


def test_the_front_matter_is_ours_alone(hostile):
    """Another `---` would end it early, or begin one whose licence is not the author's."""
    _, header, body = hostile.split("---\n", 2)
    expected = {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["fairseq", "linformer"]}
    assert yaml.safe_load(header) == expected
    assert "\n---\n" not in body and not re.search(r"^license", body, re.MULTILINE)


def test_tables_keep_their_columns_and_text_stays_text(hostile):
    tables = [line for line in hostile.splitlines() if line.startswith("|")]
    assert len(tables) > 20
    for line in tables:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line
        assert not re.search(r"(?<!\\)(?:\\\\)*[`<]|\]\(", line), line
    assert hostile.count("```") == 2  # the example's
    assert all(character.isprintable() or character == "\n" for character in hostile)
    assert "a\\|b" in hostile


def test_a_table_of_results_brings_no_html(tmp_path):
    (tmp_path / "vocabulary").mkdir()
    checkpoint = write_pretrained(tmp_path / "run", write_vocabulary(tmp_path / "vocabulary"))
    table = "| task | metric |\n|---|---|\n| RTE | accuracy |\n"
    (tmp_path / "run" / "results.md").write_text(table)
    export(checkpoint, tmp_path / "ours")
    assert f"## Results after fine-tuning\n\n{table}" in (tmp_path / "ours" / "README.md").read_text()
    (tmp_path / "run" / "results.md").write_text(f"{table}\n<script>alert(1)</script>\n")
    export(checkpoint, tmp_path / "theirs")
    assert "<script" not in (tmp_path / "theirs" / "README.md").read_text()
