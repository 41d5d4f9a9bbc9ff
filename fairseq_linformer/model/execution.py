"""Compilation of layers, and activation checkpointing: layers run again in the backward pass."""

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ..attention.kernels.flex import RECOMPILE_LIMIT


def compile_layers(layers: Iterable[nn.Module]) -> None:
    """Compile each layer.

    The first length has a graph with static shapes, which is fastest; all other lengths share one with dynamic shapes.
    Padding, evaluation, and layers with different options add graphs.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    for layer in layers:
        layer.compile()


def recompute(layer: nn.Module, *arguments: Tensor | None, offload: bool) -> Tensor:
    """Run a layer with activation checkpointing: only its input is kept for the backward pass.

    Both passes have the same dropout masks. With `offload` the input is kept in the memory of the CPU; the first
    layer's values stay on the device. This uses PyTorch's checkpointing. fairseq's runs a backward pass within the
    backward pass, which DistributedDataParallel rejects if layers share parameters or parameters do not contribute to
    the loss, and it recomputes without autocast.
    """
    if not torch.is_grad_enabled():
        return layer(*arguments)
    with save_on_cpu(pin_memory=True) if offload else nullcontext():
        return checkpoint(layer, *arguments, use_reentrant=False)
