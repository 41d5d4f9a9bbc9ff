"""Command lines that train, as text to type."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import read_task_state
from ..files import check_path
from .configuration import CONFIGS

FINE_TUNING = "finetune/finetune"  # the YAML of every fine-tuning; recipe=NAME gives the differences of a task


def override(name: str, value: object) -> str:
    """``name=value`` as Hydra reads it, whatever characters the value holds (a folder's name, say).

    Raises:
        UserError: the value holds "${", which no quotes save from fairseq.
    """
    check_path(str(value))
    if re.fullmatch(r"[\w.-]*/[\w./-]+|(?!(?i:true|false|null|inf|nan)$)[A-Za-z_][\w-]*", str(value), re.ASCII):
        return f"{name}={value}"  # a folder's name that needs no quotes
    # Inside quotes a backslash is one, except before a quote.
    quoted = re.sub(r"(\\*)('|$)", lambda match: 2 * match[1] + ("\\'" if match[2] else ""), str(value))
    return f"{name}='{quoted}'"


def command_line(config: str, *overrides: str) -> str:
    """What to type to train with a YAML of configs/, ``pretrain/tiny_512``."""
    folder, name = config.split("/")
    settings = " ".join(shlex.quote(setting) for setting in overrides)
    configs = "configs" if Path("configs").resolve() == CONFIGS else '"$(linformer configs)"'
    return f"fairseq-hydra-train --config-dir {configs}/{folder} --config-name {name} {settings}"


def recipe_name(task: str) -> str:
    """The YAML of a task in configs/finetune/recipe: sst_2 for SST-2, own where there is none."""
    name = task.lower().replace("-", "_")
    return name if (CONFIGS / "finetune" / "recipe" / f"{name}.yaml").is_file() else "own"


def pretraining_command(data: Path, named: tuple[Path, Mapping[str, Any]] | None = None) -> str | None:
    """What to type to train on a prepared corpus: a new model, or the one whose tokenizer the corpus was prepared with.

    None for a sentence encoder, which learns from a second model, its original.

    Args:
        data: the corpus.
        named: the checkpoint whose tokenizer it was prepared with, and its content; None for a new model.

    Raises:
        UserError: a name holds "${".
    """
    text = override("task.data", data)
    if named is None:
        return command_line("pretrain/tiny_512", text)
    checkpoint, state = named
    if read_task_state(state.get("task_state"))["sentence_modules"]:
        return None
    recipe = [] if torch.cuda.is_available() else ["recipe=tiny"]  # the default needs one, for fp16
    start = override("checkpoint.finetune_from_model", checkpoint)
    return command_line("pretrain/continue", *recipe, text, start)
