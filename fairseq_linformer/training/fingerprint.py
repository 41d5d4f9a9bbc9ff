"""Run fingerprint: the configuration of a run, and digests of its data and its initial checkpoint.

Checkpoints and result files contain it, so that a folder is neither resumed nor called complete for another training.
Contents are compared, not names and times: a moved folder is the same, a replaced file is not.
"""

import hashlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.utils import split_paths
from omegaconf import DictConfig, OmegaConf

from ..checkpoint import checkpoint_file
from ..data.dictionaries import REPORT_FILE
from ..data.subword_models import SHARDS_FILE
from ..data.task_record import SUMMARY_FILE
from ..digests import digest_file, digest_folder, digest_options
from ..files import LOCK_FILE
from ..model.config import resolve_config
from ..model.options import OPTIONS
from ..model.roberta import LinformerRobertaModel
from .configuration import compose_configuration, flat
from .options import initial_checkpoint

# Paths; the content of their files is compared instead.
PATHS = (
    "checkpoint.save_dir",
    "checkpoint.finetune_from_model",
    "checkpoint.restore_file",
    "common.tensorboard_logdir",
    "common.user_dir",
    "task.data",
    "criterion.teacher",
)
# Options whose defaults in fairseq depend on the machine, in any group of the configuration.
MACHINE = ("device_id", "distributed_world_size", "nprocs_per_node")

# A run resumes only with the same values of the options in these groups and of these single options ...
COMPARED_GROUPS = ("model", "task", "criterion", "optimizer", "optimization", "lr_scheduler")
COMPARED_OPTIONS = {
    "checkpoint": ("best_checkpoint_metric", "maximize_best_checkpoint_metric"),
    "common": ("seed", "fp16", "memory_efficient_fp16", "bf16", "memory_efficient_bf16", "amp"),
    "dataset": (
        "train_subset",
        "curriculum",
        "required_batch_size_multiple",
        "required_seq_len_multiple",
        "grouped_shuffling",
        "update_ordered_indices_seed",
    ),
}
# ... except for these: the run's length, its saving, and the computation of an update.
MAY_DIFFER = (
    "optimization.max_update",
    "optimization.max_epoch",
    "optimization.stop_time_hours",
    "optimization.update_freq",
    "optimizer.lr",  # a copy of optimization.lr
    "lr_scheduler.total_num_update",
    "lr_scheduler.max_update",
    "lr_scheduler.warmup_updates",
    "lr_scheduler.lr",
    "task.save_interval_minutes",
    "model.checkpoint_activations",
    "model.compile_layers",
    "model.flex_attention",
)

TEACHER = "content of criterion.teacher"
ROWS = "rows per update (dataset.batch_size x optimization.update_freq x processes)"
TOKENS = "tokens per update (dataset.max_tokens x optimization.update_freq x processes)"
BEST_ON = "the split of the best checkpoint (the first of dataset.valid_subset)"  # absent without validation

MOST_NAMED = 3  # options in a message

# Files that mark a subfolder of the data's folder as other data or runs.
MARKS = (SUMMARY_FILE, REPORT_FILE, SHARDS_FILE, LOCK_FILE)


@dataclass(frozen=True)
class RunFingerprint:
    """Fingerprint of a run.

    Attributes:
        config: folder and name of the YAML, ``pretrain/tiny_512``; empty in a fingerprint from ``of_training``.
        configuration: options by dotted name, without paths.
        data: digest of the data's folder.
        checkpoint: digest of the initial checkpoint; None if there is none.
    """

    config: str
    configuration: Mapping[str, Any]
    data: str
    checkpoint: str | None

    @classmethod
    def of_command(cls, config: str, overrides: Sequence[str]) -> "RunFingerprint":
        """Return the fingerprint of the run that fairseq-hydra-train trains with a YAML of configs/ and overrides."""
        options = dict(flat(compose_configuration(config, overrides)))
        typed_names = {setting.lstrip("+").partition("=")[0] for setting in overrides}
        configuration = {
            name: value
            for name, value in options.items()
            if name not in PATHS and (name.rpartition(".")[2] not in MACHINE or name in typed_names)
        }
        initial = initial_checkpoint({name.removeprefix("checkpoint."): value for name, value in options.items()})
        digest = digest_file(initial.path) if initial else None
        return cls(config, configuration | _teacher(options), digest_data(options["task.data"]), digest)

    @classmethod
    def of_training(cls, cfg: DictConfig, checkpoint: str | None) -> "RunFingerprint":
        """Return the fingerprint of a training that is about to begin, with the options that must not change on resume.

        Args:
            cfg: the whole configuration, before building the model completes it.
            checkpoint: digest of the initial checkpoint; None if there is none.
        """
        groups: Any = OmegaConf.to_container(cfg, enum_to_str=True)
        # A component of fairseq without a dataclass has all flags of the command: only its name is compared.
        groups |= {name: {"_name": group._name} for name, group in groups.items() if isinstance(group, Namespace)}
        if issubclass(ARCH_MODEL_REGISTRY.get(groups["model"]["_name"], object), LinformerRobertaModel):
            groups["model"] = vars(resolve_config(cfg.model, cfg.task.get("tokens_per_sample")))
        options = dict(flat(groups))
        compared = {name: value for name, value in options.items() if _is_compared(name)}
        # Each of the two optimizers resumes from the other's state.
        compared["optimizer._name"] = {"fused_adam": "adam"}.get(options["optimizer._name"], options["optimizer._name"])
        size = options["distributed_training.distributed_world_size"]
        for limit, name in (("dataset.batch_size", ROWS), ("dataset.max_tokens", TOKENS)):
            if options[limit] is not None:
                counts = (options[limit] * size * times for times in options["optimization.update_freq"])
                compared[name] = ", ".join(f"{count:g}" for count in counts)
        if not options["dataset.disable_validation"]:
            compared[BEST_ON] = options["dataset.valid_subset"].partition(",")[0]
        return cls("", compared | _teacher(options), digest_data(cfg.task.data), checkpoint)

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> "RunFingerprint":
        """Return the fingerprint in the output of ``as_json``; ignore other keys."""
        return cls(**{part.name: content[part.name] for part in fields(cls)})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def digests(self) -> dict[str, str | None]:
        """Return the digests of the fingerprint, for files that describe a result."""
        return {"checkpoint": self.checkpoint, "data": self.data, "configuration": digest_options(self.configuration)}

    def differences(self, current: "RunFingerprint") -> str:
        """Describe the differences between two fingerprints; empty if there are none.

        An option that one of them lacks, as in another version, counts as its default.
        """
        options = []
        for name in sorted(self.configuration.keys() | current.configuration.keys()):
            old_value, new_value = (part.configuration.get(name, part._default(name)) for part in (self, current))
            if name == BEST_ON:
                ignored = None in (old_value, new_value)
            else:  # earlier versions compared more options
                ignored = not (self.config or " " in name or _is_compared(name))
            if old_value != new_value and not ignored:
                options.append(f"{name} was {old_value}, is {new_value}")
        options[MOST_NAMED:] = [f"{len(options) - MOST_NAMED} more options"] if len(options) > MOST_NAMED else []
        parts = {
            f"the configuration was {self.config}, is {current.config}": current.config != self.config,
            "the data has other content": current.data != self.data,
            "the initial checkpoint has other content": current.checkpoint != self.checkpoint,
        }
        return ", ".join([*options, *(text for text, differs in parts.items() if differs)])

    def _default(self, name: str) -> Any:
        """Return the current default of an option; None for an option that this version lacks."""
        group, _, option = name.partition(".")
        if group == "model":
            return OPTIONS[option].default if option in OPTIONS else None
        registry = REGISTRIES[group]["dataclass_registry"] if group in REGISTRIES else {}
        dataclasses: Mapping[str, Any] = TASK_DATACLASS_REGISTRY if group == "task" else registry
        options_class = dataclasses.get(str(self.configuration.get(f"{group}._name")))
        return getattr(options_class(), option, None) if options_class else None


def _is_compared(name: str) -> bool:
    group, _, option = name.partition(".")
    if group in COMPARED_GROUPS:
        return bool(option) and name not in (*PATHS, *MAY_DIFFER)
    return option in COMPARED_OPTIONS.get(group, ())


def _teacher(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of a distillation's teacher; empty if its file is missing, which the criterion rejects."""
    teacher = options.get("criterion.teacher")
    file = checkpoint_file(Path(teacher)) if teacher else None
    return {TEACHER: digest_file(file)} if file is not None and file.is_file() else {}


def digest_data(folders: str) -> str:
    """Return the digest of a training's data: one folder, or several separated by colons."""
    digests = [
        digest_folder(folder, () if (folder / SHARDS_FILE).is_file() else MARKS)
        for folder in map(Path, split_paths(folders))
    ]
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
