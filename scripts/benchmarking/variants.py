"""What is data: the studies and their variants, in studies.yaml."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from fairseq_linformer.errors import check
from fairseq_linformer.training.configuration import CONFIGS

BEST = "near_and_far"  # a preset of configs/pretrain
PRESET = "preset="


@cache
def read_studies() -> dict[str, Any]:
    """What --help says of the studies, their defaults and their variants."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text(encoding="utf-8"))
    return content


def variants_of(study: str, n: int) -> dict[str, list[str]]:
    """The variants that a study has, with rows of n tokens: presets and Hydra's overrides by name."""
    window = min(128, n)
    sizes = {"k": min(128, max(1, n // 4)), "window": window, "even": 2 * (window // 2)}
    named = read_studies()[study].get("variants", {})
    return {name: line.format(**sizes).split() for name, line in named.items()}


def preset_options(name: str) -> dict[str, Any]:
    """The options of the model that a preset sets.

    Raises:
        UserError: there is no such preset, or it sets more than the model.
    """
    models = _models_of_presets()
    check("preset", name, name in models, f"one of {', '.join(models)}, which set the model alone")
    return dict(models[name])


@cache
def _models_of_presets() -> dict[str, Any]:
    """The models of the presets that set nothing else, by name."""
    presets = {file.stem: OmegaConf.load(file) for file in sorted((CONFIGS / "pretrain" / "preset").glob("*.yaml"))}
    return {name: content.model for name, content in presets.items() if content.keys() == {"model"}}


def with_preset(overrides: Sequence[str], everywhere: Sequence[str] = ()) -> list[str]:
    """The overrides of a variant: those of its preset, where it has one, then those of all variants, then its own."""
    presets = [word for word in overrides if word.startswith(PRESET)]
    options = [option for word in presets for option in preset_options(word.removeprefix(PRESET)).items()]
    own = [word for word in overrides if word not in presets]
    return [*(f"model.{name}={value}" for name, value in options), *everywhere, *own]
