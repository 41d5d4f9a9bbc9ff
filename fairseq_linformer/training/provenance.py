"""What a training is made of, by content: the composed configuration, the data, and the checkpoint that it starts from.

A run's folder keeps it (``running.RUN_FILE``), and so does every file that describes a result. Names and times decide
nothing: a folder that moved is the same one, and a file that was replaced under its old name is another.
"""

import hashlib
import json
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from fairseq.dataclass.initialize import hydra_init
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..config import OPTIONS
from ..errors import UserError

_BESIDE = Path(__file__).resolve().parents[2]
_INSTALLED = _BESIDE / "fairseq_linformer_configs"  # by a wheel: setup.py
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _BESIDE / "configs"

# Where a run and what it reads lie; what they hold is compared instead.
_PLACES = ("checkpoint.save_dir", "common.tensorboard_logdir", "common.user_dir")
_SOURCES = ("task.data", "checkpoint.finetune_from_model", "checkpoint.restore_file")
# What fairseq's defaults take from the machine, wherever they stand in the configuration.
_MACHINE = ("device_id", "distributed_world_size", "nprocs_per_node")
SEEDS = ("common.seed", "task.seed")
_OWN_LAST = "checkpoint_last.pt"  # fairseq's restore_file for the run's own last checkpoint

_SHOWN = 3  # options that a message names
_BLOCK = 1 << 20
_composing = threading.Lock()  # Hydra keeps what it composes with in the process


@dataclass(frozen=True)
class Provenance:
    """What a run is made of.

    Attributes:
        config: folder and name of its YAML, ``pretrain/tiny_512``.
        configuration: every option by its dotted name, without those that say where things lie.
        data: digest of the data's folder.
        checkpoint: digest of the checkpoint that it starts from, if any.
    """

    config: str
    configuration: Mapping[str, Any]
    data: str
    checkpoint: str | None

    @classmethod
    def of(cls, config: str, overrides: Sequence[str]) -> "Provenance":
        """What fairseq-hydra-train would train with a YAML of configs/ and Hydra's overrides, as the files are now.

        Raises:
            ValueError: Hydra does not compose it.
            FileNotFoundError: the data, or the checkpoint, does not exist.
        """
        options = dict(_flat(compose_configuration(config, overrides)))
        data, start, restored = (options[name] for name in _SOURCES)
        start = start or (None if restored == _OWN_LAST else restored)
        given = {word.lstrip("+").partition("=")[0] for word in overrides}
        kept = {
            name: value
            for name, value in options.items()
            if name not in (*_PLACES, *_SOURCES) and (name.rpartition(".")[2] not in _MACHINE or name in given)
        }
        return cls(config, kept, digest_folder(Path(data)), None if start is None else digest_file(Path(start)))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def digests(self) -> dict[str, str | None]:
        """The same in short, for the files that describe a result."""
        return {"checkpoint": self.checkpoint, "data": self.data, "configuration": _digest(self.configuration)}

    def recipe(self) -> str:
        """A digest of all but the seeds: runs of one task that share it are one experiment."""
        options = {name: value for name, value in self._options().items() if name not in SEEDS}
        return _digest({**self.as_json(), "configuration": options})

    def changes(self, now: "Provenance") -> str:
        """Names what `now` has otherwise, empty where it has all the same."""
        changed = []
        if now.config != self.config:
            changed.append(f"the configuration was {self.config}, is {now.config}")
        recorded, asked = self._options(), now._options()
        for name in sorted({*recorded, *asked}):
            before, after = (options.get(name, "absent") for options in (recorded, asked))
            if before != after:
                changed.append(f"{name} was {before}, is {after}")
        changed[_SHOWN:] = [f"{len(changed) - _SHOWN} more options"] if len(changed) > _SHOWN else []
        if now.data != self.data:
            changed.append("the data has other content")
        if now.checkpoint != self.checkpoint:
            changed.append("the checkpoint that it starts from has other content")
        return ", ".join(changed)

    def _options(self) -> dict[str, Any]:
        """The configuration; options of model and task that came after it was recorded are at their defaults."""
        task = TASK_DATACLASS_REGISTRY.get(self.configuration.get("task._name"))
        of_task = {f"task.{own.name}": own.default for own in fields(task)} if task else {}
        return {**{f"model.{name}": own.default for name, own in OPTIONS.items()}, **of_task, **self.configuration}


def compose_configuration(config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What fairseq-hydra-train composes of a YAML of configs/ and Hydra's overrides, resolved.

    Raises:
        ValueError: Hydra does not compose it; the message is the first line of Hydra's.
    """
    try:
        with _composing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Hydra's, of what fairseq leaves to its older ways
            cfg = _composed(config, overrides)
            HydraConfig.instance().set_config(cfg)  # where ${hydra:…} is looked up
            return _resolved(cfg)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{config} with {' '.join(overrides)}: {str(error).strip().splitlines()[0]}") from error


def _composed(config: str, overrides: Sequence[str]) -> DictConfig:
    folder, name = config.split("/")
    hydra_init(name)
    GlobalHydra.instance().clear()
    of_fairseq = "hydra.searchpath=[pkg://fairseq.config]"
    with initialize_config_dir(str(CONFIGS / folder), job_name=name, version_base="1.1"):
        words = [of_fairseq, f"hydra.job.config_name={name}", *overrides]
        return compose(name, overrides=words, return_hydra_config=True)


def _resolved(cfg: DictConfig) -> dict[str, Any]:
    options = OmegaConf.to_container(cfg, enum_to_str=True)
    own = OmegaConf.create({name: value for name, value in options.items() if name != "hydra"})  # type: ignore[union-attr]
    return OmegaConf.to_container(own, resolve=True)  # type: ignore[return-value]


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """The SHA-256 of a file; read once in a process, unless it is replaced or written to.

    Raises:
        FileNotFoundError: there is none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    about = path.stat()
    return _digest_content(
        path.absolute(), (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    )


@cache
def _digest_content(path: Path, version: tuple[int, ...]) -> str:
    digest = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def digest_folder(folder: Path) -> str:
    """The SHA-256 of the names and digests of all files below a folder, hidden ones excepted.

    Raises:
        FileNotFoundError: there is none.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = [Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    own = {str(file.relative_to(folder)): file for file in files}
    return _digest({name: digest_file(file) for name, file in own.items() if not Path(name).name.startswith(".")})
