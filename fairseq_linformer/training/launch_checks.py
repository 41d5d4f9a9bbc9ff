"""Which of fairseq's options for processes and precision cannot work with this model, or on this machine."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch
from omegaconf import DictConfig

from ..errors import check

DDP = ("pytorch_ddp", "c10d")  # two names for PyTorch's DistributedDataParallel
LEGACY_DDP = ("legacy_ddp", "no_c10d")  # and two for fairseq's own, which reduces gradients after the backward pass
LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "RANK")  # what torchrun sets, beside WORLD_SIZE

Rules = Iterator[tuple[str, bool, str]]  # an option, whether its value can work, and what is allowed


def check_launch(cfg: Any) -> None:
    """Refuses, by name and before any work, options that fairseq refuses late, with a traceback, or not at all.

    Args:
        cfg: fairseq's whole configuration of a training, or a group of it that knows the whole, such as the task's. A
            group that stands alone, such as that of a task built in Python, has nothing to check.

    Raises:
        UserError: an option of ``distributed_training`` or ``common``, or one that depends on it, cannot work.
    """
    root: Any = cfg._get_root() if isinstance(cfg, DictConfig) else {}
    if "distributed_training" not in root:
        return
    for name, works, allowed in chain(_processes(root), _sharding(root), _model(root), _precision(root)):
        group, option = name.split(".")
        check(name, root[group][option], works, allowed)


def _processes(root: Any) -> Rules:
    options = root.distributed_training
    started = os.environ.get("WORLD_SIZE", "1") if all(name in os.environ for name in LAUNCHER) else "1"
    # Processes that fairseq does not join each train the same model, into one folder.
    allowed = f"WORLD_SIZE={started}, as many processes as the launcher started: each would train alone"
    yield "distributed_training.distributed_world_size", started == "1" or options.distributed_world_size > 1, allowed

    installed, without = find_spec("fairscale") is not None, "where the package fairscale is not installed"
    allowed = f"one of {', '.join(DDP + LEGACY_DDP)} {without}"
    yield "distributed_training.ddp_backend", installed or options.ddp_backend in DDP + LEGACY_DDP, allowed
    yield "distributed_training.zero_sharding", installed or options.zero_sharding == "none", f"none {without}"

    on_gpu = not root.common.cpu and (root.common.tpu or torch.cuda.is_available())
    # fairseq passes DistributedDataParallel a GPU's number on any machine; fairscale's sharding needs CUDA.
    works_on_cpu = options.ddp_backend not in ("fully_sharded", *(DDP if options.distributed_world_size > 1 else ()))
    yield "distributed_training.ddp_backend", on_gpu or works_on_cpu, f"one of {', '.join(LEGACY_DDP)} on a CPU"


def _sharding(root: Any) -> Rules:
    options = root.distributed_training
    sharded, zero = options.ddp_backend == "fully_sharded", options.zero_sharding != "none"
    several = options.distributed_world_size > 1
    yield "distributed_training.ddp_backend", several or not sharded, f"one of {', '.join(DDP)} for a single process"
    yield "distributed_training.zero_sharding", several or not zero, "none for a single process"
    allowed = "none with ddp_backend=fully_sharded, which shards the optimizer's state itself"
    yield "distributed_training.zero_sharding", not (zero and sharded), allowed
    yield "common.bf16", not (sharded and root.common.bf16), "false with ddp_backend=fully_sharded"
    works = sharded or not options.cpu_offload
    yield "distributed_training.cpu_offload", works, "false without ddp_backend=fully_sharded"
    allowed = "false: checkpoints that are split over several files cannot be read"
    yield "distributed_training.use_sharded_state", not options.use_sharded_state, allowed


def _model(root: Any) -> Rules:
    options = root.distributed_training
    allowed = "false: the model has no pipeline stages"
    yield "distributed_training.pipeline_model_parallel", not options.pipeline_model_parallel, allowed
    allowed = "1: the model's matrices are not split over GPUs"
    yield "common.model_parallel_size", root.common.model_parallel_size == 1, allowed

    # DistributedDataParallel waits for the gradient of every parameter, unless told that some have none.
    layerdrop, unused = getattr(root.model, "encoder_layerdrop", None), None
    if layerdrop:
        unused = f"model.encoder_layerdrop={layerdrop}, where skipped layers have no gradient"
    elif root.task._name == "text_prediction":
        unused = "task=text_prediction, where the LM head has no gradient"
    waits = options.distributed_world_size > 1 and options.ddp_backend in DDP and not options.find_unused_parameters
    allowed = f"true with {unused} (or distributed_training.ddp_backend=legacy_ddp)"
    yield "distributed_training.find_unused_parameters", not (waits and unused), allowed


def _precision(root: Any) -> Rules:
    common = root.common
    # fairseq's fp16 optimizer keeps a float32 copy of the parameters in one tensor, and asks CUDA where to put it.
    in_one_tensor = not (common.bf16 or common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    works = torch.cuda.is_available() or not (common.fp16 and in_one_tensor)
    yield "common.fp16", works, "false (common.fp16=false, or no --fp16) without a GPU"
