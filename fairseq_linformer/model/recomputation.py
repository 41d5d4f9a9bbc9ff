"""Activation checkpointing: the backward pass runs layers again instead of keeping their activations."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def recompute(layer: nn.Module, *arguments: Tensor | None, offload: bool) -> Tensor:
    """Run a layer of which only the input is kept for the backward pass; both passes have the same dropout masks.

    With `offload` the input is kept in the memory of the CPU; the first layer's values stay on the device. This uses
    PyTorch's checkpointing. fairseq's runs a backward pass within the backward pass, which DistributedDataParallel
    rejects if layers share parameters or parameters do not contribute to the loss, and it recomputes without autocast.
    """
    if not torch.is_grad_enabled():
        return layer(*arguments)
    with save_on_cpu(pin_memory=True) if offload else nullcontext():
        return checkpoint(layer, *arguments, use_reentrant=False)
