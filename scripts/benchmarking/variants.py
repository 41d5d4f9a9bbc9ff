"""What is data: the studies and their variants, in studies.yaml."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fairseq_linformer.training.configuration import CONFIGS

BEST = "near_and_far"  # a preset of configs/pretrain


@cache
def read_studies() -> dict[str, Any]:
    """What --help says of the studies, their defaults and their variants."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text(encoding="utf-8"))
    return content


def variants_of(study: str, n: int) -> dict[str, list[str]]:
    """The variants that a study has, with rows of n tokens: Hydra's overrides by name."""
    window = min(128, n)
    sizes = {"k": min(128, max(1, n // 4)), "window": window, "even": 2 * (window // 2)}
    named = read_studies()[study].get("variants", {})
    return {
        name: [word for own in line.format(**sizes).split() for word in _words(own)] for name, line in named.items()
    }


def _words(word: str) -> list[str]:
    name, _, preset = word.partition("=")
    return preset_overrides(preset) if name == "preset" else [word]


def preset_options(name: str) -> dict[str, Any]:
    """The options of the model that a preset sets."""
    return dict(OmegaConf.load(CONFIGS / "pretrain" / "preset" / f"{name}.yaml").model)


def preset_overrides(name: str) -> list[str]:
    """The same as overrides of a training."""
    return [f"model.{option}={value}" for option, value in preset_options(name).items()]
