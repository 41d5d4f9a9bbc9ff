"""The model card: what it says of a training, and what names and labels of others do to it."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from fairseq_linformer.hf.exporting import export
from tests.helpers import ROOT
from tests.helpers.commands import run, with_hydra
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
