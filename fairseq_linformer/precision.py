"""Choice of bfloat16 on processors and GPUs that have instructions for it."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

INSTRUCTIONS = {
    "AMX": torch.cpu._is_amx_tile_supported,
    "AVX512_BF16": torch.cpu._is_avx512_bf16_supported,
}


def bfloat16_instructions(on_gpu: bool) -> str | None:
    """Return the name of the instructions for bfloat16; None if the GPU, or the processor, has none."""
    if on_gpu:
        return torch.cuda.get_device_name() if torch.cuda.is_bf16_supported(including_emulation=False) else None
    return next((name for name, is_supported in INSTRUCTIONS.items() if is_supported()), None)


def describe_precision(bfloat16: bool, on_gpu: bool) -> str:
    """Return a line for the user: the precision, and whether there are instructions for bfloat16."""
    instructions = bfloat16_instructions(on_gpu) or "none"
    return f"precision: {'bfloat16' if bfloat16 else 'float32'} (instructions for bfloat16: {instructions})"


def with_bfloat16_products(call: Callable[P, R], device: str = "cpu") -> Callable[P, R]:
    """Return a function that computes matrix products in bfloat16.

    Parameters, gradients, sums and the optimizer's state stay in float32. A model whose parameters are in bfloat16
    takes the same time.
    """
    wrapped: Callable[P, R] = torch.autocast(device, torch.bfloat16)(call)
    return wrapped
