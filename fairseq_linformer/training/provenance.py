"""What a training is made of, by content: the composed configuration, the data, and the checkpoint that it starts from.

The checkpoints of a training carry it, a run of `linformer finetune` keeps it in its folder (``launch.RUN_FILE``), and
so does every file that describes a result. Names and times decide nothing: a folder that moved is the same one, and a
file that was replaced under its old name is another.
"""

import hashlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from fairseq.dataclass.initialize import hydra_init
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import split_paths
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..config import OPTIONS
from ..errors import UserError
from .checkpoint_files import LAST

_BESIDE = Path(__file__).resolve().parents[2]
_INSTALLED = _BESIDE / "fairseq_linformer_configs"  # by a wheel: setup.py
CONFIGS = _INSTALLED if _INSTALLED.is_dir() else _BESIDE / "configs"

# Where a run and what it reads lie; what they hold is compared instead.
_PLACES = ("checkpoint.save_dir", "common.tensorboard_logdir", "common.user_dir")
_SOURCES = ("task.data", "checkpoint.finetune_from_model", "checkpoint.restore_file")
# What fairseq's defaults take from the machine, wherever they stand in the configuration.
_MACHINE = ("device_id", "distributed_world_size", "nprocs_per_node")
SEEDS = ("common.seed", "task.seed")

# What a training may go on with otherwise: its length, and how it is validated, saved, logged and spread over devices.
# Of these groups all options decide what an update computes, but for those below; of the next only those named; of all
# others none. Rows per update are compared as such (``_rows_per_update``).
_GROUPS_THAT_DECIDE = ("model", "task", "criterion", "optimizer", "optimization", "lr_scheduler")
_OPTIONS_THAT_DECIDE = {
    "checkpoint": ("best_checkpoint_metric", "maximize_best_checkpoint_metric"),
    "common": ("seed", "fp16", "memory_efficient_fp16", "bf16", "memory_efficient_bf16", "amp"),
    "dataset": (
        "max_tokens",
        "train_subset",
        "curriculum",
        "required_batch_size_multiple",
        "required_seq_len_multiple",
        "grouped_shuffling",
        "update_ordered_indices_seed",
    ),
}
_OPTIONS_THAT_MAY_CHANGE = (
    "optimization.max_update",
    "optimization.max_epoch",
    "optimization.stop_time_hours",
    "optimization.update_freq",
    "lr_scheduler.total_num_update",
    "optimizer.lr",  # which is optimization.lr
    "lr_scheduler.lr",
    "task.save_interval_minutes",
    "model.checkpoint_activations",
    "model.compile_layers",
)
_SAME_OPTIMIZER = {"fused_adam": "adam"}  # each goes on with the other's state

_SHOWN = 3  # options that a message names
_BLOCK = 1 << 20
_LARGE, _BLOCKS = 1 << 28, 64
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
        given = {word.lstrip("+").partition("=")[0] for word in overrides}
        kept = {
            name: value
            for name, value in options.items()
            if name not in (*_PLACES, *_SOURCES) and (name.rpartition(".")[2] not in _MACHINE or name in given)
        }
        start = start_of({name.removeprefix("checkpoint."): value for name, value in options.items()})
        return cls(config, kept, digest_data(options["task.data"]), None if start is None else digest_file(start))

    @classmethod
    def of_training(cls, options: Mapping[str, Any], data: str, checkpoint: str | None) -> "Provenance":
        """What a training goes on with: of its whole configuration, what may not change meanwhile.

        Args:
            options: the whole configuration, before the model is built, which completes it.
            data: digest of the data.
            checkpoint: digest of the checkpoint that it starts from, if any.
        """
        flat = dict(_flat(options))
        kept = {name: value for name, value in flat.items() if not _may_change(name)}
        kept["optimizer._name"] = _SAME_OPTIMIZER.get(flat["optimizer._name"], flat["optimizer._name"])
        if flat["dataset.batch_size"] is not None:
            kept["rows per update (dataset.batch_size x optimization.update_freq x processes)"] = _rows_per_update(flat)
        return cls("", kept, data, checkpoint)

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


def _may_change(name: str) -> bool:
    group, _, option = name.partition(".")
    if group in _GROUPS_THAT_DECIDE:
        return not option or name in (*_PLACES, *_SOURCES, *_OPTIONS_THAT_MAY_CHANGE)
    return option not in _OPTIONS_THAT_DECIDE.get(group, ())


def _rows_per_update(options: Mapping[str, Any]) -> str:
    """Rows of one update on all processes together, in each epoch that has a number of its own."""
    rows = options["dataset.batch_size"] * options["distributed_training.distributed_world_size"]
    return ", ".join(f"{rows * times:g}" for times in options["optimization.update_freq"])


def start_of(checkpoint_options: Mapping[str, Any]) -> Path | None:
    """The checkpoint that a training starts from, by the options that name one; None where its weights are new."""
    start, restored = (checkpoint_options[name] for name in ("finetune_from_model", "restore_file"))
    start = start or (None if restored == LAST else restored)
    return None if start is None else Path(start)


def typed_command() -> list[str]:
    """The program's name and arguments of this process, or of the job that Hydra started in it."""
    if not HydraConfig.initialized():  # fairseq-train, or a process of several that fairseq started
        return [Path(*sys.argv[:1]).name, *sys.argv[1:]]
    hydra = HydraConfig.get()
    folders = [source.path for source in hydra.runtime.config_sources if source.schema == "file"]
    where = ["--config-dir", folders[0]] if folders else []
    return ["fairseq-hydra-train", *where, "--config-name", str(hydra.job.config_name), *hydra.overrides.task]


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


def digest_data(folders: str) -> str:
    """The digest of the folder of a training's data, or of its folders, between colons."""
    digests = [digest_folder(Path(folder)) for folder in split_paths(folders)]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _digest_large(file: Path) -> str:
    """The SHA-256 of a file's size and of blocks spread over it, its ends included: a corpus may have terabytes."""
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as stream:
        for block in range(_BLOCKS):
            stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def digest_folder(folder: Path) -> str:
    """The SHA-256 of the names and digests of all files below a folder, hidden ones excepted.

    Of a file of more than 256 MiB its size counts, and 64 blocks of 1 MiB spread over it.

    Raises:
        FileNotFoundError: there is none.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    files = [Path(place, name) for place, _, names in os.walk(folder, followlinks=True) for name in names]
    own = {str(file.relative_to(folder)): file for file in files}
    shown = {name: file for name, file in own.items() if not Path(name).name.startswith(".")}
    large = {name for name, file in shown.items() if file.stat().st_size > _LARGE}
    return _digest({name: (_digest_large if name in large else digest_file)(file) for name, file in shown.items()})
