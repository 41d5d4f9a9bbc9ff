"""What a training is made of, by content: the composed configuration, the data, and the checkpoint that it starts from.

Checkpoints and result files carry it, so that no folder is continued, or called complete, for another training. Names
and times decide nothing: a folder that moved is the same one, a file that was replaced under its old name is another.
"""

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from ..checkpoint import Progress, checkpoint_file
from ..data.dictionaries import REPORT_FILE, SHARDS_FILE
from ..data.task_record import SUMMARY_FILE
from ..errors import UserError
from ..files import LOCK_FILE, digest_file, digest_folder, digest_options, is_in, write_whole
from ..model.compat import without_removed_options
from ..model.config import OPTIONS, resolve_config
from ..model.roberta import LinformerRobertaModel
from .configuration import compose_configuration, flat, typed_command
from .run_length import warm_up_of
from .run_start import named_start

CONFIG_FILE = "config.yaml"  # in a run's folder: the configuration of the training that made its checkpoints


# Where a run and what it reads lie; what they hold is compared instead.
_PLACES = ("checkpoint.save_dir", "common.tensorboard_logdir", "common.user_dir")
_SOURCES = ("task.data", "checkpoint.finetune_from_model", "checkpoint.restore_file", "criterion.teacher")
# What fairseq's defaults take from the machine, wherever they stand in the configuration.
_MACHINE = ("device_id", "distributed_world_size", "nprocs_per_node")
SEEDS = ("common.seed", "task.seed")

# What a training may go on with otherwise: its length, and how it is validated, saved, logged and spread over devices.
# Of these groups all options decide what an update computes, but for those below; of the next only those named; of all
# others none. Rows and tokens per update are compared as such (``_per_update``).
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
    "lr_scheduler.max_update",
    "optimizer.lr",  # which is optimization.lr
    "lr_scheduler.lr",
    "task.save_interval_minutes",
    "model.checkpoint_activations",
    "model.compile_layers",
    "model.flex_attention",
)
_SAME_OPTIMIZER = {"fused_adam": "adam"}  # each goes on with the other's state

_TEACHER = "content of criterion.teacher"
_ROWS = "rows per update (dataset.batch_size x optimization.update_freq x processes)"
_TOKENS = "tokens per update (dataset.max_tokens x optimization.update_freq x processes)"
_MAX_TOKENS = "dataset.max_tokens"
_BEST_ON = "the split of the best checkpoint (the first of dataset.valid_subset)"
_WARM_UP = "lr_scheduler.warmup_updates"
# Compared where both records have it: earlier versions had not the first three, a warm-up may come of the length, and
# nothing is best where nothing is validated.
_NOT_IN_ALL = (_TEACHER, _TOKENS, _BEST_ON, _WARM_UP)
# Options that earlier versions lack, or today's, with the values that change nothing.
_LATER = {"optimizer.embedding_lr_multiplier": 1.0, "criterion.class_weights": None}
_LATER |= {"task.mask_prob_end": None, "task.train_rows": None}

_SHOWN = 3  # options that a message names

# What tells a folder within that of the data as something else: other data, or runs.
_MARKS = (SUMMARY_FILE, REPORT_FILE, SHARDS_FILE, LOCK_FILE)


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
        options = dict(flat(compose_configuration(config, overrides)))
        given = {word.lstrip("+").partition("=")[0] for word in overrides}
        kept = {
            name: value
            for name, value in options.items()
            if name not in (*_PLACES, *_SOURCES) and (name.rpartition(".")[2] not in _MACHINE or name in given)
        }
        start = named_start({name.removeprefix("checkpoint."): value for name, value in options.items()})
        kept |= _content_of_teacher(options)
        return cls(config, kept, digest_data(options["task.data"]), digest_file(start.checkpoint) if start else None)

    @classmethod
    def of_training(cls, options: Mapping[str, Any], data: str, checkpoint: str | None) -> "Provenance":
        """What a training goes on with: of its whole configuration, what may not change meanwhile.

        Args:
            options: the whole configuration, before the model is built, which completes it.
            data: digest of the data.
            checkpoint: digest of the checkpoint that it starts from, if any.
        """
        whole = dict(flat(options))
        kept = {name: value for name, value in whole.items() if not _may_change(name)}
        kept["optimizer._name"] = _SAME_OPTIMIZER.get(whole["optimizer._name"], whole["optimizer._name"])
        for limit, name in (("dataset.batch_size", _ROWS), (_MAX_TOKENS, _TOKENS)):
            if whole[limit] is not None:
                kept[name] = _per_update(whole, limit)
        if not whole["dataset.disable_validation"]:
            kept[_BEST_ON] = whole["dataset.valid_subset"].partition(",")[0]
        kept |= _content_of_teacher(whole)
        if whole["optimization.max_epoch"] > 0 and kept.get(_WARM_UP) == warm_up_of(whole["optimization.max_update"]):
            del kept[_WARM_UP]  # it comes of the length, which may change
        return cls("", kept, data, checkpoint)

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> "Provenance":
        """Of what ``as_json`` gave; other keys are left out."""
        return cls(**{part.name: content[part.name] for part in fields(cls)})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def digests(self) -> dict[str, str | None]:
        """The same in short, for the files that describe a result."""
        return {"checkpoint": self.checkpoint, "data": self.data, "configuration": digest_options(self.configuration)}

    def recipe(self) -> str:
        """A digest of all but the seeds: runs of one task that share it are one experiment."""
        options = {name: value for name, value in self._options().items() if name not in SEEDS}
        return digest_options({**self.as_json(), "configuration": options})

    def changes(self, now: "Provenance") -> str:
        """Names what `now` has otherwise, empty where it has all the same."""
        changed = []
        if now.config != self.config:
            changed.append(f"the configuration was {self.config}, is {now.config}")
        recorded, asked = self._options(), now._options()
        for name in sorted({*recorded, *asked}):
            before, after = (options.get(name, "absent") for options in (recorded, asked))
            if before != after and not (name in _NOT_IN_ALL and "absent" in (before, after)):
                changed.append(f"{name} was {before}, is {after}")
        changed[_SHOWN:] = [f"{len(changed) - _SHOWN} more options"] if len(changed) > _SHOWN else []
        if now.data != self.data:
            changed.append("the data has other content")
        if now.checkpoint != self.checkpoint:
            changed.append("the checkpoint that it starts from has other content")
        return ", ".join(changed)

    def _options(self) -> dict[str, Any]:
        """The configuration; options of model and task, and later ones, that it does not name are at their defaults."""
        task = TASK_DATACLASS_REGISTRY.get(self.configuration.get("task._name"))
        of_task = {f"task.{own.name}": own.default for own in fields(task)} if task else {}
        given = {
            name: value
            for name, value in without_removed_options(self.configuration, "model.").items()
            if name not in _SOURCES
        }
        if given.get(_MAX_TOKENS) is not None:
            given[_MAX_TOKENS] = "given"  # how many is in _TOKENS
        return {**{f"model.{name}": own.default for name, own in OPTIONS.items()}, **of_task, **_LATER, **given}


def _may_change(name: str) -> bool:
    group, _, option = name.partition(".")
    if group in _GROUPS_THAT_DECIDE:
        return not option or name in (*_PLACES, *_SOURCES, *_OPTIONS_THAT_MAY_CHANGE)
    return option not in _OPTIONS_THAT_DECIDE.get(group, ())


def _per_update(options: Mapping[str, Any], limit: str) -> str:
    """Rows or tokens of one update on all processes together, in each epoch that has a number of its own."""
    size = options[limit] * options["distributed_training.distributed_world_size"]
    return ", ".join(f"{size * times:g}" for times in options["optimization.update_freq"])


def _content_of_teacher(options: Mapping[str, Any]) -> dict[str, str]:
    """The digest of a distillation's teacher; nothing where there is none, which its criterion refuses."""
    named = options.get("criterion.teacher")
    file = checkpoint_file(Path(named)) if named else None
    return {_TEACHER: digest_file(file)} if file is not None and file.is_file() else {}


def _own_flags(group: str, options: Namespace) -> dict[str, Any]:
    """Of a part of fairseq without a dataclass, like ``--optimizer sgd``: fairseq gives it all flags of the command."""
    registry: Mapping[str, Any] = ARCH_MODEL_REGISTRY if group == "model" else REGISTRIES[group]["registry"]
    parser = ArgumentParser()
    registry[options._name].add_args(parser)
    own = {name: getattr(options, name, default) for name, default in vars(parser.parse_args([])).items()}
    return {"_name": options._name, **own}


def digest_data(folders: str) -> str:
    """The digest of the folder of a training's data, or of its folders, between colons.

    Raises:
        FileNotFoundError: there is none.
    """
    digests = [
        digest_folder(folder, () if (folder / SHARDS_FILE).is_file() else _MARKS)
        for folder in map(Path, split_paths(folders))
    ]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


class Record:
    """What a training that begins now is made of.

    Args:
        cfg: its whole configuration.

    Raises:
        FileNotFoundError: there is no such data.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg
        self._folder = Path(cfg.checkpoint.save_dir)
        named = named_start(cfg.checkpoint)
        start = named and named.checkpoint
        # A run goes on where the checkpoint that it started from is gone, and from an earlier one of its own.
        self._knows_start = start is None or (start.is_file() and not is_in(self._folder, start))
        options: Any = OmegaConf.to_container(cfg, enum_to_str=True)
        options |= {group: _own_flags(group, x) for group, x in options.items() if isinstance(x, Namespace)}
        if issubclass(ARCH_MODEL_REGISTRY.get(options["model"]["_name"], object), LinformerRobertaModel):
            # Complete, as its flags and Hydra's options leave other parts of it to the architecture.
            options["model"] = vars(resolve_config(cfg.model, cfg.task.get("tokens_per_sample")))
        digest = digest_file(start) if start is not None and self._knows_start else None
        self._made_of = Provenance.of_training(options, digest_data(cfg.task.data), digest)
        self._is_written = False

    def as_state(self) -> dict[str, Any]:
        """What a checkpoint of this training says of it."""
        return {**self._made_of.as_json(), "command": typed_command()}

    def check_same(self, checkpoint: Path, progress: Progress) -> None:
        """Compares this training with the one that a checkpoint in its folder is of.

        Raises:
            UserError: they differ in more than what may change (``provenance.Provenance.of_training``).
        """
        made_of = progress.task_state["made_of"]
        if made_of is None:
            return  # it was written by fairseq alone
        recorded = Provenance.of_json(made_of)
        if not self._knows_start:
            self._made_of = replace(self._made_of, checkpoint=recorded.checkpoint)
        if changes := recorded.changes(self._made_of):
            before, now = recorded._options(), self._made_of._options()
            of_model = [f"model.{name}" for name, own in OPTIONS.items() if not own.metadata["training_only"]]
            then = f"checkpoint.restore_file={checkpoint} to go on from this run there"
            if any(before[name] != now[name] for name in of_model):  # its parameters may have other shapes
                then = f"checkpoint.finetune_from_model=FILE, which linformer convert makes of {checkpoint}"
            elsewhere = f"name another checkpoint.save_dir, with {then}"
            raise UserError(f"{self._folder} holds a run with other settings ({changes}): {elsewhere}")

    def write(self) -> None:
        """Writes config.yaml, once; called when it is sure that the folder's checkpoints are this training's."""
        if not self._is_written:
            write_whole(self._folder / CONFIG_FILE, OmegaConf.to_yaml(self._cfg))
            self._is_written = True
