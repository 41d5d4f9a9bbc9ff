"""Command lines that train, as text to type."""

import re
import shlex
from pathlib import Path

from ..system.files import check_path
from .configuration import CONFIGS

FINE_TUNING = "finetune/finetune"  # the YAML of every fine-tuning; recipe=NAME gives the differences of a task


def override(name: str, value: object) -> str:
    """``name=value`` as Hydra reads it, whatever characters the value holds (a folder's name, say).

    Raises:
        ValueError: the value holds "${", which no quotes save from fairseq.
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
    configs = "configs" if CONFIGS.name == "configs" else '"$(linformer configs)"'  # from a checkout, or from a wheel
    return f"fairseq-hydra-train --config-dir {configs}/{folder} --config-name {name} {settings}"


def recipe_name(task: str) -> str:
    """The YAML of a task in configs/finetune/recipe: sst_2 for SST-2, own where there is none."""
    name = task.lower().replace("-", "_")
    return name if (CONFIGS / "finetune" / "recipe" / f"{name}.yaml").is_file() else "own"


def fine_tuning_command(task: str, data: Path) -> str:
    """What to type to fine-tune on the prepared folder of a task."""
    start = "checkpoint.finetune_from_model=CHECKPOINT"
    return command_line(FINE_TUNING, f"recipe={recipe_name(task)}", override("task.data", data), start)
