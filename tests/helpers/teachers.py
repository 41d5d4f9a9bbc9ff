"""Models for others to learn from, and the part of a training's task that a criterion asks."""

from types import SimpleNamespace

import torch

from fairseq_linformer.training.untrained import save_untrained, untrained_model
from tests.helpers.models import SIZES, Task


def task_of(folder, length=64):
    cfg = SimpleNamespace(data=str(folder), tokens_per_sample=length)
    words = Task().source_dictionary
    return SimpleNamespace(cfg=cfg, source_dictionary=words, target_dictionary=words, to_train=None, vocabulary={})


def write_teacher(folder, **options):
    """A checkpoint whose parameters are larger than at a start."""
    options = {**SIZES, "attention": "softmax", "max_positions": 64, **options}
    dictionary = Task().source_dictionary
    folder.mkdir()
    with (folder / "dict.txt").open("w") as stream:
        dictionary.save(stream)
    torch.manual_seed(0)
    model = untrained_model(options, dictionary)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    save_untrained(folder, folder, dictionary, options, model.state_dict())
    return folder / "checkpoint.pt"
