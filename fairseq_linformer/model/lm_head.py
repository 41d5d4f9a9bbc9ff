"""The loss of the LM head, computed in chunks so that all logits are never in memory at once.

Dimensions: N masked tokens, V vocabulary, d embedding. This module does not import fairseq.
"""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits per chunk, in float32: 64 MiB, 333 tokens of 50,265 pieces; on a GPU 512 MiB, which use it fully. Sums of few
# chunks lose little precision in bfloat16.
LOGITS_ON_CPU, LOGITS_ON_GPU = 2**24, 2**27


def linear_cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of the logits x weight^T + bias over N tokens, in nats and float32.

    Gradients are computed with the loss, chunk by chunk, as in PyTorch's function of this name (2.13). PyTorch returns
    the loss in the type of x: in float16 it is infinite from about 6,000 tokens of 50,265 pieces on, in bfloat16 it has
    two digits. Its default chunks take 2.6 times as long on a CPU.

    In float16 the logits are not chunked: such small gradients need the loss scale, which is available only in the
    backward pass. Under autocast in bfloat16 x, the weight and the bias are rounded first.

    Args:
        x: (N, d).
        weight: (V, d).
        bias: (V,).
        targets: (N,), int64.
    """
    if x.device.type == "cuda":
        weight, bias = pad_vocab(weight, bias)
    autocast = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    if dtype == torch.float16:
        scores = F.log_softmax(F.linear(x, weight, bias), dim=-1, dtype=torch.float32)
        return F.nll_loss(scores, targets, reduction="sum")
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    with torch.autocast(x.device.type, enabled=False) if autocast else nullcontext():
        loss: Tensor = ChunkedCrossEntropy.apply(x, weight, bias, targets, torch.is_grad_enabled())
    return loss


def pad_vocab(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pad the vocabulary to a multiple of eight: with other sizes, products on a GPU take up to five times as long.

    Logits of added pieces are the smallest number of the type, so their probability is 0.
    """
    padding = -len(weight) % 8
    if padding == 0:
        return weight, bias
    return F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=torch.finfo(bias.dtype).min)


class ChunkedCrossEntropy(torch.autograd.Function):
    """The sum of losses over chunks; the backward pass scales its gradients in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, with_gradients: bool) -> Tensor:
        needed = [with_gradients and needs for needs in ctx.needs_input_grad[:3]]
        grad_x = torch.zeros_like(x) if needed[0] else None
        grad_weight = torch.zeros_like(weight) if needed[1] else None
        # In bfloat16 a sum over many chunks loses small terms.
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needed[2] else None
        loss = x.new_zeros((), dtype=torch.float32)
        size = max(1, (LOGITS_ON_CPU if x.device.type == "cpu" else LOGITS_ON_GPU) // len(weight))
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            target = targets[part].unsqueeze(1)
            scores = F.log_softmax(F.linear(x[part], weight, bias), dim=-1, dtype=torch.float32)  # (part of N, V)
            loss -= scores.gather(1, target).sum()
            if not any(needed):
                continue
            error = scores.exp_().scatter_add_(1, target, scores.new_full(target.shape, -1.0)).to(x.dtype)
            if grad_x is not None:
                torch.mm(error, weight, out=grad_x[part])
            if grad_weight is not None:
                grad_weight.addmm_(error.T, x[part])
            if grad_bias is not None:
                grad_bias += error.sum(0, dtype=torch.float32)
            del scores, error  # frees memory for the next chunk's logits
        ctx.gradients = grad_x, grad_weight, None if grad_bias is None else grad_bias.to(bias.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if gradient is None else gradient.mul_(scale) for gradient in gradients), None, None
