"""Optimizer ``muon``: Muon for the matrices of the layers, Adam for all other parameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdamConfig
from torch import Tensor

from ..errors import UserError, check
from ..model.roberta import EMBEDDINGS, IN_LAYERS
from .fused_adam import FairseqAdam, FusedAdam

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic with the largest slope at 0 (Jordan et al. 2024)
STEPS = 5


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return the nearest matrices with singular values of about 1, by Newton-Schulz iteration.

    Each of five steps is x <- a x + (b y + c y^2) x with y = x x^T. A singular value above 0.0015 times the norm ends
    between 0.68 and 1.21; a smaller one, as in square matrices, ends below. The cost is 10 products of r x r with r x c
    matrices and 5 products of r x r matrices, r <= c.

    Args:
        matrices: (..., r, c), one or a stack of them.

    Returns:
        (..., r, c): float64 for a float64 input, otherwise bfloat16 on a GPU, as in the source, and on a CPU the type
        of autocast, float32 without it.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks",
    https://kellerjordan.github.io/posts/muon.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(_product_type(matrices))
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(STEPS):
        y = x @ x.mT
        x = add_product(x, add_product(y, y, y, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _product_type(matrices: Tensor) -> torch.dtype:
    if matrices.dtype == torch.float64:
        return torch.float64
    if matrices.device.type != "cpu":
        return torch.bfloat16
    # A CPU without instructions for bfloat16 needs 10 to 45 times as long for it as for float32.
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def stacked(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the ``orthogonalised`` matrices, computed in one batch per shape."""
    directions = list(matrices)
    for shape in {matrix.shape for matrix in matrices}:
        numbers = [number for number, matrix in enumerate(matrices) if matrix.shape == shape]
        stack = orthogonalised(torch.stack([matrices[number] for number in numbers]))
        for number, direction in zip(numbers, stack.unbind(), strict=True):
            directions[number] = direction
    return directions


def split_by_group(parameters: Sequence[torch.nn.Parameter], group: str) -> tuple[list[torch.nn.Parameter], ...]:
    """Split parameters into those whose ``param_group`` is `group`, and all others."""
    members = [parameter for parameter in parameters if getattr(parameter, "param_group", None) == group]
    return members, [parameter for parameter in parameters if getattr(parameter, "param_group", None) != group]


class Muon(FusedAdam):
    """Optimizer that uses Muon for parameter groups with a ``momentum``, and Adam for all other groups.

    With the momentum M <- mu M + G of a matrix's gradient G (r x c) its step is

        W <- W - lr (0.2 sqrt(max(r, c)) orthogonalised(G + mu M) + weight_decay W)

    The entries of an orthogonal matrix have the root mean square 1 / sqrt(max(r, c)), those of a step 0.2 lr, about as
    with Adam: both share a learning rate and weight decay. If G is 0, as in layers that LayerDrop skips, W only decays.
    Parameters in Adam's groups that the model marks with ``EMBEDDINGS`` have ``embedding_lr_multiplier`` times the
    learning rate, and an unchanged product of learning rate and weight decay.

    Source: Liu et al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982, equation 4.
    """

    supports_flat_params = False  # the optimizer needs the shapes of parameters

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        # With common.amp the loss scale sometimes overflows. Adam's fused kernel skips such a step itself; Muon has no
        # such kernel, so PyTorch's scaler must skip the whole step.
        self._step_supports_amp_scaling = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; ``closure`` is PyTorch's."""
        loss = super().step(closure)
        for group in self.param_groups:
            if "momentum" in group:
                self._step_of_matrices(group)
        return loss

    def _of_this_step(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return embeddings and other parameters as two groups; the saved state has one group of both."""
        if "momentum" in group:
            return []
        (updated_group,) = super()._of_this_step(group)
        multiplier = group["embedding_lr_multiplier"]
        embeddings, other_parameters = split_by_group(group["params"], EMBEDDINGS)
        scaled = {"lr": group["lr"] * multiplier, "weight_decay": group["weight_decay"] / multiplier}
        return [{**updated_group, "params": other_parameters}, {**updated_group, "params": embeddings, **scaled}]

    @torch.no_grad()
    def _step_of_matrices(self, group: dict[str, Any]) -> None:
        matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
        if not matrices:
            return
        for matrix in matrices:
            state = self.state[matrix]
            if not state:  # Adam's names, as Adam reads all states that it loads
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(matrix))
            state["step"] += 1
        gradients = [matrix.grad for matrix in matrices]
        momenta = [self.state[matrix]["exp_avg"] for matrix in matrices]
        # As in PyTorch's own optimizers: on a GPU, one kernel for many tensors.
        torch._foreach_mul_(momenta, group["momentum"])
        torch._foreach_add_(momenta, gradients)
        ahead = torch._foreach_add(gradients, momenta, alpha=group["momentum"])
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        # Separate calls for the matrices of base, 2,000 small kernels, would make a GPU wait for the host.
        directions = map(orthogonalised, ahead) if ahead[0].is_cpu else stacked(ahead)
        moves = torch.stack(torch._foreach_norm(gradients, math.inf)) > 0  # on the device
        for matrix, direction, moved in zip(matrices, directions, moves, strict=True):
            matrix.addcmul_(direction, moved, value=-0.2 * math.sqrt(max(matrix.shape)) * group["lr"])


@dataclass
class MuonConfig(FairseqAdamConfig):
    """Options of ``muon``: those of fairseq's ``adam``, the momentum and the multiplier for embeddings."""

    momentum: float = field(default=0.95, metadata={"help": "mu, of the gradients of the layers' matrices"})
    embedding_lr_multiplier: float = field(
        default=1.0, metadata={"help": "learning rate of token embeddings and untied LM head over the others'"}
    )


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FairseqAdam):
    """Optimizer with ``Muon`` for matrices that the model marks with ``IN_LAYERS``, Adam for other parameters.

    A learning rate at which matrices are stable is too small for token embeddings: with a large vocabulary they need
    about sqrt(d) times as much (Hayou and Liu 2025, "Optimal embedding learning rate in LLMs", arXiv 2506.15025).

    Raises:
        UserError: no parameter is marked with ``IN_LAYERS``, or the multiplier is not positive.
    """

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        multiplier = self.cfg.embedding_lr_multiplier
        check("optimizer.embedding_lr_multiplier", multiplier, multiplier > 0, "a positive number")
        matrices, other_parameters = split_by_group(parameters, IN_LAYERS)
        if not matrices:
            raise UserError("optimizer=muon: no layer has a matrix to train; optimizer=fused_adam needs none")
        groups = [
            {"params": other_parameters, "embedding_lr_multiplier": multiplier},
            {"params": matrices, "momentum": self.cfg.momentum},
        ]
        return Muon([group for group in groups if group["params"]], **self.optimizer_config)
