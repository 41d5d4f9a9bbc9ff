"""Checkpoints that no training wrote."""

from pathlib import Path

import torch


def state(updates, **more):
    """Return the content of a checkpoint after that many updates, in fairseq's layout."""
    history = {"num_updates": updates, "optimizer_name": "Adam", "lr_scheduler_state": {}}
    extra = {"train_iterator": {"epoch": 3}, "best": 4.5, "previous_training_time": 60.0}
    weights = {"weight": torch.arange(float(updates), updates + 2000)}
    return {"model": weights, "args": None, "cfg": {}, "optimizer_history": [history], "extra_state": extra, **more}


def assert_same_weights(actual: Path, expected: Path, ignored: "str | None" = None) -> None:
    """Compare the parameters of two checkpoints to the last bit, except those with `ignored` in their names."""
    actual, expected = (torch.load(path, weights_only=True)["model"] for path in (actual, expected))
    assert actual.keys() == expected.keys()
    compared = [name for name in actual if not (ignored and ignored in name)]
    assert [name for name in compared if not torch.equal(actual[name], expected[name])] == []


def write_run(folder: Path, data: "Path | str") -> Path:
    """Write the folder of a run with a checkpoint that has the path of its data, but no parameters."""
    history = {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 0}
    training = {"optimizer_history": [history], "extra_state": {"train_iterator": None}}
    folder.mkdir(parents=True)
    cfg = {"model": {"_name": "linformer_roberta"}, "task": {"_name": "masked_lm", "data": str(data)}}
    torch.save({"model": {}, "cfg": cfg, **training}, folder / "checkpoint_best.pt")
    return folder
