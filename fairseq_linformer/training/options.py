"""Options of a training: completion, and checks before the start.

These checks reject options that would lose work or silently give wrong numbers. Options that fairseq, Hydra or PyTorch
reject at the start with an understandable message are not checked again.
"""

import logging
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq.dataclass import FairseqDataclass
from omegaconf import DictConfig, OmegaConf, open_dict

from ..checkpoint import read_checkpoint
from ..checkpoint_files import LAST
from ..errors import check
from ..model.hub import architecture_options
from ..model.options import LinformerRobertaConfig
from ..model.roberta import LinformerRobertaModel
from ..precision import bfloat16_instructions, describe_precision
from .configuration import CONFIG_FILE, check_groups, typed_options

DDP = ("pytorch_ddp", "c10d")  # two names for PyTorch's DistributedDataParallel
LEGACY_DDP = "legacy_ddp"  # fairseq's backend, which reduces gradients after the backward pass
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK")  # set by torchrun, as is WORLD_SIZE
RESET = ("optimizer", "lr_scheduler", "dataloader", "meters")  # parts of a checkpoint that can be reset
OF_NO_SIZE = "linformer_roberta"  # the architecture of configs/model/options.yaml
WARM_UP = 0.06  # share of the updates, as in RoBERTa's recipes for GLUE (Liu et al. 2019, table 10)

# The metrics that validation logs with a criterion; True if higher is better.
VALIDATED: dict[str, Mapping[str, bool]] = {
    "masked_lm": {"loss": False, "ppl": False},
    "masked_lm_distillation": {"loss": False, "ppl": False},
    "encoder_distillation": {"loss": False, "cosine": True, "similarity_error": False, "layer_error": False},
}

logger = logging.getLogger(__name__)


@dataclass
class TrainingTaskConfig(FairseqDataclass):
    """Options of every task."""

    save_interval_minutes: float = field(
        default=15.0,
        metadata={"help": "save a checkpoint at least every so many minutes; 0: after updates and epochs alone"},
    )
    bfloat16: str = field(
        default="no",
        metadata={
            "help": "compute in bfloat16, on a CPU matrix products alone: no, yes, or auto, where the processor or the "
            "GPU has instructions for it"
        },
    )


def choose_precision(cfg: DictConfig, bfloat16: str) -> str:
    """Return yes or no for ``task.bfloat16``, whose value may also be auto; on a GPU, set fairseq's ``common.bf16``.

    A run resumes with the precision that it began with, on any machine.
    """
    check("task.bfloat16", bfloat16, bfloat16 in ("no", "yes", "auto"), "no, yes or auto")
    common, on_gpu = cfg.common, _on_gpu(cfg)
    if common.fp16 or common.bf16 or common.amp:
        return "no"
    run = Path(cfg.checkpoint.save_dir)
    if bfloat16 == "auto" and (run / CONFIG_FILE).is_file():
        bfloat16 = OmegaConf.load(run / CONFIG_FILE).task.get("bfloat16", "no")
    elif bfloat16 == "auto":
        is_old = (run / LAST).is_file()  # a run of an earlier version, in float32
        bfloat16 = "yes" if bfloat16_instructions(on_gpu) and not is_old else "no"
    common.bf16 = on_gpu and bfloat16 == "yes"
    logger.info(describe_precision(bfloat16 == "yes", on_gpu))
    return bfloat16


def check_options(cfg: DictConfig) -> None:
    """Raise an error for an option that would lose work or be silently ignored."""
    check_groups(cfg)
    optimization, common, checkpoint = cfg.optimization, cfg.common, cfg.checkpoint
    for group, option in (("dataset", "validate_interval"), ("checkpoint", "save_interval")):
        interval = cfg[group][option]  # fairseq divides by it after the first epoch
        check(f"{group}.{option}", interval, interval >= 1, "at least 1")
    frequencies = optimization.update_freq
    check("optimization.update_freq", frequencies, len(frequencies) > 0 and min(frequencies) >= 1, "at least 1")
    for part in RESET:  # otherwise each repetition of an interrupted command would start again
        reset = checkpoint[f"reset_{part}"]
        allowed = "false without checkpoint.restore_file, a checkpoint of another run"
        check(f"checkpoint.reset_{part}", reset, checkpoint.restore_file != LAST or not reset, allowed)
    for name in ("write_checkpoints_asynchronously", "no_save_optimizer_state"):
        check(f"checkpoint.{name}", checkpoint[name], not checkpoint[name], "false, or no run could resume")
    _check_processes(cfg)
    on_gpu = _on_gpu(cfg)
    flex = getattr(cfg.model, "flex_attention", False)
    check("model.flex_attention", flex, on_gpu or not flex, "false without a GPU")
    allowed = "false without torch_xla; fairseq-train's --bf16 sets it: --bfloat16 yes does not"
    check("common.tpu", common.tpu, not common.tpu or find_spec("torch_xla") is not None, allowed)
    # fairseq's fp16 optimizer keeps a float32 copy of the parameters in one tensor, for which it needs CUDA.
    in_one_tensor = not (common.bf16 or common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    works = on_gpu or not (common.fp16 and in_one_tensor)
    check("common.fp16", common.fp16, works, "false (common.fp16=false, or no --fp16) without a GPU")
    if (criterion := getattr(cfg.criterion, "_name", None)) in VALIDATED:
        check_best_metric(cfg, VALIDATED[criterion])


def check_data_file(data: Path, name: str) -> None:
    if not data.is_dir():
        raise FileNotFoundError(f"data={data}: there is no such folder")
    if not (data / name).is_file():
        raise FileNotFoundError(f"data={data}: it has no {name}")


def _check_processes(cfg: DictConfig) -> None:
    """Raise an error for processes that fairseq does not join: all would train the same model in one folder."""
    by_torchrun = all(name in os.environ for name in TORCHRUN)
    launcher, name = ("torchrun", "WORLD_SIZE") if by_torchrun else ("slurm", "SLURM_STEP_NUM_TASKS")
    started, size = os.environ.get(name, "1"), cfg.distributed_training.distributed_world_size
    allowed = f"{name}={started}, as many processes as were started (+distributed={launcher}): each would train alone"
    check("distributed_training.distributed_world_size", size, started == "1" or size > 1, allowed)


def check_best_metric(cfg: Any, validated: Mapping[str, bool]) -> None:
    """Raise an error if validation does not log the metric of the best checkpoint, or its direction is wrong.

    fairseq would fail after the first validation, or keep the worst checkpoint.

    Args:
        cfg: fairseq's whole configuration of a training.
        validated: the metrics that validation logs; True if higher is better.
    """
    if cfg.dataset.disable_validation:
        return
    name, maximize = cfg.checkpoint.best_checkpoint_metric, cfg.checkpoint.maximize_best_checkpoint_metric
    check("checkpoint.best_checkpoint_metric", name, name in validated, f"one of {', '.join(validated)}")
    allowed = f"{str(validated[name]).lower()} with checkpoint.best_checkpoint_metric={name}"
    check("checkpoint.maximize_best_checkpoint_metric", maximize, maximize == validated[name], allowed)


def override_defaults(cfg: DictConfig) -> None:
    """Override, in place, those defaults of fairseq that do not work with several processes or the optimizer.

    fairseq rejects two initial checkpoints. Here ``restore_file`` has precedence, so that adding this one option to a
    command makes it start from another run.
    """
    if getattr(cfg.optimizer, "_name", None) == "muon":
        cfg.common.fp16_no_flatten_grads = True  # fairseq's default in 16 bits flattens matrices
    cfg.dataset.data_buffer_size = 0  # its prefetching thread could abort the program at exit
    if cfg.checkpoint.restore_file != LAST:
        cfg.checkpoint.finetune_from_model = None
    options = cfg.distributed_training
    if options.distributed_world_size == 1:
        return
    # Otherwise only rank 0 reads a checkpoint and sends it to other ranks, which reject the configuration in it.
    cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
    if options.ddp_backend in DDP and not _on_gpu(cfg):
        options.ddp_backend = LEGACY_DDP  # fairseq always passes a GPU's index to DistributedDataParallel


def _on_gpu(cfg: Any) -> bool:
    return not cfg.common.cpu and (cfg.common.tpu or torch.cuda.is_available())


class InitialCheckpoint(NamedTuple):
    """Initial checkpoint of a training, and the option of fairseq that names it."""

    option: str
    path: Path

    def not_found(self) -> FileNotFoundError:
        return FileNotFoundError(f"checkpoint.{self.option}={self.path}: there is no such checkpoint")


def initial_checkpoint(checkpoint_options: Mapping[str, Any]) -> InitialCheckpoint | None:
    """Return the initial checkpoint of a training; None if its weights are new. ``restore_file`` has precedence."""
    for option, default in (("restore_file", LAST), ("finetune_from_model", None)):
        name = checkpoint_options[option]
        if name and name != default:
            return InitialCheckpoint(option, Path(name))
    return None


def checkpoint_to_load(cfg: DictConfig) -> Path | None:
    """Return the checkpoint that fairseq will load; None if the training begins with new weights.

    A run with ``restore_file`` resumes from its own last checkpoint, as with ``finetune_from_model``; fairseq would
    start again each time that the command is repeated.

    Raises:
        FileNotFoundError: the initial checkpoint does not exist; fairseq would train from scratch.
    """
    options, last = cfg.checkpoint, Path(cfg.checkpoint.save_dir, LAST)
    initial = initial_checkpoint(options)
    if last.is_file():
        if initial is not None and initial.option == "restore_file":
            advice = f"to begin at checkpoint.restore_file={initial.path}, name another checkpoint.save_dir"
            logger.info(f"the run resumes from {last}; {advice}")
            options.update({"restore_file": LAST, "optimizer_overrides": "{}"})
            options.update({f"reset_{part}": False for part in RESET})
        return last
    if initial is not None and not initial.path.is_file():
        raise initial.not_found()
    return initial and initial.path


def adopt_model_options(cfg: DictConfig) -> None:
    """Copy the architecture options of the initial checkpoint to options that the user did not set, in place.

    Typed options, and values of the configuration that differ from the default, stay; so do options of training, such
    as dropout. With ``restore_file``, nothing is copied if the configuration names a model and no checkpoint, as in
    pretraining.
    """
    initial = initial_checkpoint(cfg.checkpoint)
    if initial is None or "projected_length" not in cfg.model:
        return
    is_template = getattr(cfg.model, "_name", None) == OF_NO_SIZE
    if initial.option == "restore_file" and cfg.checkpoint.finetune_from_model is None and not is_template:
        return
    # An interrupted run has the options in its own checkpoint, too. It may be damaged until it is replaced later.
    sources = (initial.path, Path(cfg.checkpoint.save_dir, LAST))
    source = next((path for path in sources if path.is_file()), None)
    if source is None:
        raise initial.not_found()
    options = architecture_options(LinformerRobertaModel.resolve(read_checkpoint(source)["cfg"]))
    adopt(cfg.model, options, typed=typed_options("model"))


def adopt(model: DictConfig, options: Mapping[str, Any], typed: Collection[str] = ()) -> None:
    """Set the options of a model, in place, that are None or have their defaults and were not typed."""
    defaults = LinformerRobertaConfig()
    adopted = {
        name: value
        for name, value in options.items()
        if name not in typed and model.get(name) in (None, getattr(defaults, name))
    }
    with open_dict(model):
        model.update(adopted)
    changed = (f"{name}={value}" for name, value in adopted.items() if value != getattr(defaults, name))
    logger.info(f"the model's options, from the checkpoint: {', '.join(changed)}")


def updates_of(rows: float, batch_size: int) -> int:
    """Return the number of updates that process `rows` rows, at least one."""
    return max(1, math.ceil(rows / batch_size))


def updates_of_epochs(epochs: float, rows: int, batch_size: int) -> int:
    """Return the number of updates of `epochs` epochs, at least one; the last batch of an epoch may be smaller."""
    return max(1, math.ceil(round(epochs * updates_of(rows, batch_size), 6)))  # 0.1 x 30 is a little above 3
