"""The registered optimizer ``muon``: Muon for the matrices of the layers, Adam for everything else."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdamConfig
from torch import Tensor

from ..errors import UserError
from ..model.roberta import IN_LAYERS
from .fused_adam import FairseqAdam, FusedAdam

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic whose slope at 0 is largest (Jordan et al. 2024)
STEPS = 5


def orthogonalised(matrix: Tensor) -> Tensor:
    """The nearest matrix whose singular values are about 1, by Newton and Schulz's iteration.

    Each of five steps is x <- a x + (b y + c y^2) x with y = x x^T; singular values end between 0.7 and 1.2. Costs 10
    products of r x r with r x c matrices, and 5 of r x r matrices, r <= c.

    Args:
        matrix: (r, c).

    Returns:
        (r, c), in bfloat16 on a GPU, as in the source; in float32 on a CPU; in float64 of a matrix in float64.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks",
    https://kellerjordan.github.io/posts/muon.
    """
    a, b, c = COEFFICIENTS
    # A CPU without instructions for bfloat16 takes 10 to 45 times as long with it as with float32.
    fast = torch.float32 if matrix.device.type == "cpu" else torch.bfloat16
    x = matrix if matrix.dtype == torch.float64 else matrix.to(fast)
    tall = x.size(0) > x.size(1)
    if tall:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(STEPS):
        y = x @ x.T
        x = torch.addmm(x, torch.addmm(y, y, y, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(FusedAdam):
    """Adam of all groups of parameters but those with a ``momentum``, whose matrices take Muon's step.

    With the momentum M <- mu M + G of a matrix's gradient G (r x c) its step is

        W <- W - lr (0.2 sqrt(max(r, c)) orthogonalised(G + mu M) + weight_decay W)

    An orthogonal matrix has entries of 1 / sqrt(max(r, c)) in quadratic mean, so that a step has 0.2 lr, about as Adam:
    one learning rate and one weight decay serve both.

    Source: Liu et al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982, equation 4.
    """

    supports_flat_params = False  # it must see which parameters are matrices

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        # With common.amp the loss scale overflows now and then. Adam's kernel leaves such a step out itself; of this
        # optimizer, whose matrices have no such kernel, PyTorch's scaler leaves it out as a whole.
        self._step_supports_amp_scaling = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of the parameters that have a gradient; ``closure`` as in every optimizer of PyTorch."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "momentum" not in group]
        loss = super().step(closure)
        self.param_groups = groups
        for group in groups:
            if "momentum" in group:
                self._step_of_matrices(group)
        return loss

    @torch.no_grad()
    def _step_of_matrices(self, group: dict[str, Any]) -> None:
        for matrix in group["params"]:
            if matrix.grad is None:
                continue
            state = self.state[matrix]
            if not state:  # named as Adam's, which looks into all states that it loads
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(matrix))
            state["step"] += 1
            momentum = state["exp_avg"].mul_(group["momentum"]).add_(matrix.grad)
            direction = orthogonalised(matrix.grad.add(momentum, alpha=group["momentum"]))
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(direction, alpha=-0.2 * math.sqrt(max(matrix.shape)) * group["lr"])


@dataclass
class MuonConfig(FairseqAdamConfig):
    """The options of fairseq's ``adam``, which learning rate and weight decay share, and the matrices' momentum."""

    momentum: float = field(default=0.95, metadata={"help": "mu, of the gradients of the layers' matrices"})


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FairseqAdam):
    """``Muon`` of the matrices that the model marks with ``IN_LAYERS``, Adam of its other parameters.

    Raises:
        UserError: none of the parameters is marked.
    """

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        matrices = [own for own in parameters if getattr(own, "param_group", None) == IN_LAYERS]
        if not matrices:
            raise UserError("optimizer=muon: no layer has a matrix to train; optimizer=fused_adam needs none")
        others = [own for own in parameters if getattr(own, "param_group", None) != IN_LAYERS]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": matrices, "momentum": self.cfg.momentum}]
        return Muon([group for group in groups if group["params"]], **self.optimizer_config)
