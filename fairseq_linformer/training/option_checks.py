"""Which of fairseq's options cannot work at all, with this model, or on this machine."""

import logging
import os
from ast import literal_eval
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from ..checkpoint_files import LAST
from ..errors import check
from .configuration import check_groups
from .run_start import RESET

DDP = ("pytorch_ddp", "c10d")  # two names for PyTorch's DistributedDataParallel
LEGACY_DDP = ("legacy_ddp", "no_c10d")  # and two for fairseq's own, which reduces gradients after the backward pass
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK")  # what torchrun sets, beside WORLD_SIZE

# What fairseq divides by, takes for no limit, or refuses with a traceback, some of it at the end of the first epoch.
LEAST = {
    "dataset.batch_size": 1,
    "dataset.batch_size_valid": 1,
    "dataset.max_tokens": 1,
    "dataset.max_tokens_valid": 1,
    "dataset.required_batch_size_multiple": 1,
    "dataset.num_workers": 0,
    "dataset.validate_interval": 1,
    "checkpoint.save_interval": 1,
    "lr_scheduler.warmup_updates": 0,
    "optimizer.weight_decay": 0,
}

# What validation logs with a criterion, and whether more of it is better.
VALIDATED: dict[str, Mapping[str, bool]] = {
    "masked_lm": {"loss": False, "ppl": False},
    "masked_lm_distillation": {"loss": False, "ppl": False},
    "encoder_distillation": {"loss": False, "cosine": True, "similarity_error": False, "layer_error": False},
}

logger = logging.getLogger(__name__)

Rules = Iterator[tuple[str, bool, str]]  # an option, whether its value can work, and what is allowed


def check_launch(cfg: Any) -> None:
    """Refuses, by name and before any work, options that fairseq refuses late, with a traceback, or not at all.

    Args:
        cfg: fairseq's whole configuration of a training, or a group of it that knows the whole, such as the task's. A
            group that stands alone, such as that of a task built in Python, has nothing to check.

    Raises:
        UserError: an option of ``distributed_training`` or ``common``, or one that depends on it, cannot work, a number
            is too small, a group of options is none of fairseq's, or the metric of the best checkpoint is none.
    """
    root: Any = cfg._get_root() if isinstance(cfg, DictConfig) else {}
    if "distributed_training" not in root:
        return
    check_groups(root)
    rules = (_numbers, _start, _processes, _sharding, _model, _precision)
    for name, works, allowed in chain.from_iterable(rule(root) for rule in rules):
        group, option = name.split(".")
        check(name, root[group][option], works, allowed)
    if (criterion := getattr(root.criterion, "_name", None)) in VALIDATED:
        check_best_metric(root, VALIDATED[criterion])


def check_best_metric(root: Any, validated: Mapping[str, bool]) -> None:
    """Refuses a metric of the best checkpoint that no validation has, or that is best the other way round.

    fairseq would look it up after the first validation, and keep the worst checkpoint of a metric.

    Args:
        root: fairseq's whole configuration of a training.
        validated: the metrics that validation logs, and whether more of each is better.

    Raises:
        UserError: it is none of them, or ``maximize_best_checkpoint_metric`` does not suit it.
    """
    if root.dataset.disable_validation:
        return
    options = root.checkpoint
    name, most = options.best_checkpoint_metric, options.maximize_best_checkpoint_metric
    check("checkpoint.best_checkpoint_metric", name, name in validated, f"one of {', '.join(validated)}")
    allowed = f"{str(validated[name]).lower()} with checkpoint.best_checkpoint_metric={name}"
    check("checkpoint.maximize_best_checkpoint_metric", most, most == validated[name], allowed)


def adapt(cfg: DictConfig) -> None:
    """Changes those of fairseq's defaults with which several processes, or the optimizer, cannot train, in place.

    Of two checkpoints to start from, which fairseq refuses, ``restore_file`` counts: a command goes on from another run
    by this one more word.

    Args:
        cfg: fairseq's whole configuration of a training.
    """
    if getattr(cfg.optimizer, "_name", None) == "muon":
        cfg.common.fp16_no_flatten_grads = True  # in one tensor, fairseq's default in 16 bits, there are no matrices
    if cfg.dataset.data_buffer_size:
        cfg.dataset.data_buffer_size = 0
        logger.info("dataset.data_buffer_size=0: the thread that reads ahead could abort the program as it ends")
    start = cfg.checkpoint
    if start.restore_file != LAST and start.finetune_from_model is not None:
        logger.info(f"checkpoint.finetune_from_model=null, as checkpoint.restore_file={start.restore_file} is given")
        start.finetune_from_model = None
    options = cfg.distributed_training
    if options.distributed_world_size == 1:
        return
    # Otherwise rank 0 alone reads a checkpoint and sends it to the others, who refuse the configuration in it.
    cfg.checkpoint.load_checkpoint_on_all_dp_ranks = True
    if options.ddp_backend in DDP and not _on_gpu(cfg):
        options.ddp_backend = LEGACY_DDP[0]  # fairseq passes DistributedDataParallel a GPU's number on any machine
        logger.info(f"without a GPU: distributed_training.ddp_backend={LEGACY_DDP[0]}")


def _on_gpu(root: Any) -> bool:
    return not root.common.cpu and (root.common.tpu or torch.cuda.is_available())


def _numbers(root: Any) -> Rules:
    for name, least in LEAST.items():
        value = OmegaConf.select(root, name)
        if value is not None:  # no limit, or an option that this scheduler, optimizer or task has not
            yield name, value >= least, f"at least {least}"
    yield "common.seed", 0 <= root.common.seed < 2**32, f"from 0 to {2**32 - 1}, as numpy takes it"
    betas = OmegaConf.select(root, "optimizer.adam_betas")
    if betas is not None:
        try:
            given = literal_eval(betas) if isinstance(betas, str) else betas
            works = len(given) == 2 and all(0 <= beta < 1 for beta in given)
        except (TypeError, ValueError, SyntaxError):
            works = False
        yield "optimizer.adam_betas", works, "two numbers from 0 to below 1, such as [0.9,0.98]"
    frequencies = root.optimization.update_freq
    allowed = "one number or several, each at least 1"
    yield "optimization.update_freq", len(frequencies) > 0 and min(frequencies) >= 1, allowed


def _start(root: Any) -> Rules:
    # Without that the first start would ignore it, and each repetition of the command begin again.
    elsewhere = root.checkpoint.restore_file != LAST
    allowed = "false without checkpoint.restore_file, a checkpoint of another run"
    for part in RESET:
        yield f"checkpoint.reset_{part}", elsewhere or not root.checkpoint[f"reset_{part}"], allowed


def _processes(root: Any) -> Rules:
    # Processes that fairseq does not join each train the same model, into one folder.
    by_torchrun = all(name in os.environ for name in TORCHRUN)
    launcher, name = ("torchrun", "WORLD_SIZE") if by_torchrun else ("slurm", "SLURM_STEP_NUM_TASKS")
    started = os.environ.get(name, "1")
    allowed = f"{name}={started}, as many processes as were started (+distributed={launcher}): each would train alone"
    joined = root.distributed_training.distributed_world_size > 1
    yield "distributed_training.distributed_world_size", started == "1" or joined, allowed


def _sharding(root: Any) -> Rules:
    options = root.distributed_training
    allowed = (
        f"one of {', '.join(DDP + LEGACY_DDP)}: each GPU holds the whole model, "
        "20 bytes per parameter in 16 bits, 16 in 32"
    )
    yield "distributed_training.ddp_backend", options.ddp_backend in DDP + LEGACY_DDP, allowed
    allowed = "none: each GPU holds the optimizer's whole state, 8 bytes per parameter"
    yield "distributed_training.zero_sharding", options.zero_sharding == "none", allowed
    allowed = "false: nothing is sharded"
    yield "distributed_training.cpu_offload", not options.cpu_offload, allowed
    yield "distributed_training.use_sharded_state", not options.use_sharded_state, allowed


def _model(root: Any) -> Rules:
    options = root.distributed_training
    allowed = "false: the model has no pipeline stages"
    yield "distributed_training.pipeline_model_parallel", not options.pipeline_model_parallel, allowed
    allowed = "1: the model's matrices are not split over GPUs"
    yield "common.model_parallel_size", root.common.model_parallel_size == 1, allowed

    if getattr(root.model, "flex_attention", False):
        yield "model.flex_attention", _on_gpu(root), "false without a GPU"

    # DistributedDataParallel waits for the gradient of every parameter, unless told that some have none.
    layerdrop = getattr(root.model, "encoder_layerdrop", None)
    several = options.distributed_world_size > 1 and _on_gpu(root)  # without a GPU it is not used: adapt
    waits = several and options.ddp_backend in DDP and not options.find_unused_parameters
    allowed = (
        f"true with model.encoder_layerdrop={layerdrop}, where skipped layers have no gradient "
        "(or distributed_training.ddp_backend=legacy_ddp)"
    )
    yield "distributed_training.find_unused_parameters", not (waits and layerdrop), allowed


def _precision(root: Any) -> Rules:
    common = root.common
    allowed = "false without torch_xla; fairseq-train's --bf16 sets it: pass +precision=bf16 to fairseq-hydra-train"
    yield "common.tpu", not common.tpu or find_spec("torch_xla") is not None, allowed
    # fairseq's fp16 optimizer keeps a float32 copy of the parameters in one tensor, and asks CUDA where to put it.
    in_one_tensor = not (common.bf16 or common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    works = _on_gpu(root) or not (common.fp16 and in_one_tensor)
    yield "common.fp16", works, "false (common.fp16=false, or no --fp16) without a GPU"
    optimizer = getattr(root.optimizer, "_name", None)
    for name in ("memory_efficient_fp16", "memory_efficient_bf16"):
        allowed = f"false with optimizer={optimizer}, whose parameters are in 32 bits (optimizer=adam has others)"
        yield f"common.{name}", not (optimizer in ("fused_adam", "muon") and common[name]), allowed
