"""The configurations: where they lie, and what fairseq-hydra-train composes of one."""

import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.dataclass.initialize import hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import UserError

_BESIDE = Path(__file__).resolve().parents[2]
_INSTALLED = _BESIDE / "fairseq_linformer_configs"  # by a wheel: setup.py
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _BESIDE / "configs"

# model.NAME=VALUE of Hydra, where null gives none, and --some-name of fairseq-train.
_MODEL_OPTION = re.compile(r"(?:\+*model\.|--)([\w-]+)(?:=(?!null$)|$)")

_composing = threading.Lock()  # Hydra keeps what it composes with in the process


def typed_command() -> list[str]:
    """The program's name and arguments of this process, or of the job that Hydra started in it."""
    if not HydraConfig.initialized():  # fairseq-train, or a process of several that fairseq started
        return [Path(*sys.argv[:1]).name, *sys.argv[1:]]
    hydra = HydraConfig.get()
    folders = [source.path for source in hydra.runtime.config_sources if source.schema == "file"]
    where = ["--config-dir", folders[0]] if folders else []
    return ["fairseq-hydra-train", *where, "--config-name", str(hydra.job.config_name), *hydra.overrides.task]


def typed_model_options() -> set[str]:
    """The options of the model that the command line of this process gives a value, by whatever notation."""
    found = (_MODEL_OPTION.match(word) for word in typed_command()[1:])
    return {match[1].replace("-", "_") for match in found if match}


def compose_configuration(config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What fairseq-hydra-train composes of a YAML of configs/ and Hydra's overrides, resolved.

    Raises:
        UserError: Hydra does not compose it; the message is the first line of Hydra's.
    """
    folder, name = config.split("/")
    words = ["hydra.searchpath=[pkg://fairseq.config]", f"hydra.job.config_name={name}", *overrides]
    try:
        with _composing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Hydra's, of what fairseq leaves to its older ways
            hydra_init(name)
            GlobalHydra.instance().clear()
            with initialize_config_dir(str(CONFIGS / folder), job_name=name, version_base="1.1"):
                cfg = compose(name, overrides=words, return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)  # where ${hydra:…} is looked up
            options: Any = OmegaConf.to_container(cfg, enum_to_str=True)
            del options["hydra"]
            return OmegaConf.to_container(OmegaConf.create(options), resolve=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{config} with {' '.join(overrides)}: {str(error).strip().splitlines()[0]}") from error


def flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every option of a configuration by its dotted name."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
