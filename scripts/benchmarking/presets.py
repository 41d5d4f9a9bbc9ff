"""The presets of configs/pretrain, as comparisons and the benchmark take them."""

from typing import Any

from omegaconf import OmegaConf

from fairseq_linformer.training.configuration import CONFIGS

BEST = "near_and_far"


def preset_options(name: str) -> dict[str, Any]:
    """The options of the model that a preset sets."""
    return dict(OmegaConf.load(CONFIGS / "pretrain" / "preset" / f"{name}.yaml").model)


def preset_overrides(name: str) -> list[str]:
    """The same as overrides of a training."""
    return [f"model.{option}={value}" for option, value in preset_options(name).items()]
