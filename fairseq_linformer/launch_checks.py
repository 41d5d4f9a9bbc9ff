"""What a training can be told to do, but not on this machine: said before it starts."""

from pathlib import Path

import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.file_io import PathManager
from omegaconf import DictConfig

from .config import check


def check_precision(config: DictConfig) -> None:
    """Refuses 16-bit floats where fairseq's optimiser for them needs a GPU.

    fairseq keeps a copy of the parameters in float32, in one tensor, and asks CUDA where to put it.

    Args:
        config: fairseq's whole configuration.

    Raises:
        ValueError: common.fp16 is on, on a machine without a GPU that CUDA sees.
    """
    common = config.common
    in_one_tensor = not (common.bf16 or common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    needs_gpu = common.fp16 and in_one_tensor and not torch.cuda.is_available()
    check("common.fp16", common.fp16, not needs_gpu, "false (common.fp16=false, or no --fp16) without a GPU")


def check_restore_file(config: DictConfig) -> None:
    """Refuses to train from scratch, as fairseq would, where a checkpoint was named to go on from.

    Raises:
        FileNotFoundError: there is no such checkpoint.
    """
    file = config.checkpoint.restore_file
    default = CheckpointConfig().restore_file  # that of save_dir, where a new run has none
    named = Path(file).with_suffix("")
    shards = f"{named.name}{config.checkpoint.checkpoint_suffix}*.pt"  # with FSDP one for each rank
    if file != default and not PathManager.isfile(file) and not list(named.parent.glob(shards)):
        raise FileNotFoundError(f"checkpoint.restore_file={file}: there is no such checkpoint")
