"""Checkpoints that no training wrote."""

from pathlib import Path

import torch


def state(updates, **more):
    """What a checkpoint after that many updates holds, in fairseq's layout."""
    history = {"num_updates": updates, "optimizer_name": "Adam", "lr_scheduler_state": {}}
    extra = {"train_iterator": {"epoch": 3}, "best": 4.5, "previous_training_time": 60.0}
    weights = {"weight": torch.arange(float(updates), updates + 2000)}
    return {"model": weights, "args": None, "cfg": {}, "optimizer_history": [history], "extra_state": extra, **more}


def assert_same_weights(one: Path, other: Path, but: "str | None" = None) -> None:
    """Of two checkpoints, to the last bit; parameters that have `but` in their names aside."""
    one, other = (torch.load(path, weights_only=True)["model"] for path in (one, other))
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name]) and not (but and but in name)] == []


def write_run(folder: Path, data: "Path | str") -> Path:
    """The folder of a run with a checkpoint that has no parameters, but says which data it was trained on."""
    history = {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 0}
    others = {"optimizer_history": [history], "extra_state": {"train_iterator": None}}
    folder.mkdir(parents=True)
    cfg = {"model": {"_name": "linformer_roberta"}, "task": {"_name": "masked_lm", "data": str(data)}}
    torch.save({"model": {}, "cfg": cfg, **others}, folder / "checkpoint_best.pt")
    return folder
