"""Optimizer ``fused_adam``: fairseq's Adam with PyTorch's fused kernel."""

import math
from collections.abc import Callable
from typing import Any

import torch
from fairseq import optim
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdamConfig

from ..errors import check

OF_STATE = "params", "updates", "lr"  # state of a group; its other entries are options
COPIES = "parameters_in_32_bits"  # key in the optimizer's state
ROUNDING, SMALLEST = 2.0**-8, 2.0**-24  # relative rounding of bfloat16; smallest positive float16


class FusedAdam(torch.optim.AdamW):
    """Adam of fairseq, ``fairseq.optim.adam.Adam``, with all parameters of a group in one kernel.

    PyTorch and fairseq add epsilon differently. With bias corrections c1 = 1 - beta1^t and c2 = 1 - beta2^t a step is
    lr / c1 * m / (sqrt(v / c2) + eps) in PyTorch, and lr / c1 * sqrt(c2) * m / (sqrt(v) + eps) in fairseq, which is
    PyTorch's with eps / sqrt(c2). Moments have fairseq's layout, so that each optimizer resumes from the other's state.
    """

    supports_flat_params = True  # for fairseq's wrapper for 16-bit floats
    supports_memory_efficient_fp16 = False  # the kernel needs parameters and moments of one type

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set a loaded state, also one of fairseq's Adam, which has no ``fused`` option."""
        for group in state["param_groups"]:
            group["fused"] = True
        super().__setstate__(state)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient; ``closure`` is PyTorch's."""
        groups = self.param_groups
        self.param_groups = [part for group in groups for part in self._of_this_step(group)]
        loss = super().step(closure)
        self.param_groups = groups
        return loss

    def _of_this_step(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Count the step, and return the groups of the kernel for a group of parameters."""
        # A separate counter, as the kernel's counters are on the device: reading one would wait for it.
        if "updates" not in group:  # a new group, or one of a state of fairseq's Adam
            group["updates"] = max((int(self.state[p]["step"]) for p in group["params"] if p in self.state), default=0)
        group["updates"] += 1
        return [{**group, "eps": group["eps"] / math.sqrt(1 - group["betas"][1] ** group["updates"])}]


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FairseqAdam(optim.adam.FairseqAdam):
    """Optimizer ``adam`` of fairseq, implemented by ``FusedAdam``.

    The class has the name of fairseq's, as fairseq compares names before it loads an optimizer's state: a run that
    began with ``adam`` resumes with ``fused_adam``, and the other way round.
    """

    def __init__(self, cfg: FairseqAdamConfig, params: Any) -> None:
        check("optimizer.fp16_adam_stats", True, not cfg.fp16_adam_stats, "false: moments are in 32 bits")
        optim.FairseqOptimizer.__init__(self, cfg)
        self._optimizer = self.make_optimizer(list(params))
        # fairseq's wrapper for 16 bits creates gradients with its copies of the parameters; a model has none yet.
        self._has_copies = all(parameter.grad is not None for parameter in self.params)

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return the PyTorch optimizer to wrap."""
        return FusedAdam(parameters, **self.optimizer_config)

    def state_dict(self) -> dict[str, Any]:
        """Return PyTorch's state; in 16 bits also the 32-bit copies of the parameters, to resume without rounding."""
        state = super().state_dict()
        if self._has_copies:
            state[COPIES] = [parameter.detach() for parameter in self.params]
        return state

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load a state, but keep the current options, which PyTorch would replace by the saved ones.

        A saved 32-bit copy is used only if it rounds to the model's parameter, which an averaged one does not.
        """
        current_options = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, options in zip(self.param_groups, current_options, strict=True):
            group.update({name: value for name, value in options.items() if name not in OF_STATE})
            group.update({name: value for name, value in (optimizer_overrides or {}).items() if name in options})
        if not self._has_copies or COPIES not in state_dict:
            return
        for parameter, copy in zip(self.params, state_dict[COPIES], strict=True):
            if torch.allclose(parameter, copy.to(parameter), rtol=ROUNDING, atol=SMALLEST):
                parameter.data.copy_(copy)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """Arguments of ``FusedAdam``."""
        return {**super().optimizer_config, "fused": True}
