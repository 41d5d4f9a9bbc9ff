"""The registered optimizer ``fused_adam``: fairseq's Adam in PyTorch's fused kernel."""

import math
from collections.abc import Callable
from typing import Any

import torch
from fairseq import optim
from fairseq.optim import register_optimizer
from fairseq.optim.adam import FairseqAdamConfig
from torch import Tensor

from ..errors import check

OF_STATE = "params", "updates", "lr"  # of a group; all else is an option
COPIES = "parameters_in_32_bits"  # in the optimizer's state
ROUNDING, SMALLEST = 2.0**-8, 2.0**-24  # of bfloat16, the coarser, relatively; of float16, which has few small numbers


class FusedAdam(torch.optim.AdamW):
    """``fairseq.optim.adam.Adam``, all parameters of a group in one kernel.

    The two differ in where epsilon is added. With bias corrections c1 = 1 - beta1^t and c2 = 1 - beta2^t a step is
    lr / c1 * m / (sqrt(v / c2) + eps) in PyTorch, and lr / c1 * sqrt(c2) * m / (sqrt(v) + eps) in fairseq, which is
    PyTorch's with eps / sqrt(c2). Moments have the layout of fairseq's, so that each goes on from the other's state.
    """

    supports_flat_params = True  # what fairseq's wrapper for 16-bit floats asks
    supports_memory_efficient_fp16 = False  # the kernel has parameters and moments of one type

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a state that is loaded, that of fairseq's Adam too, which has other ways to compute a step."""
        for group in state["param_groups"]:
            group["fused"] = True
        super().__setstate__(state)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of the parameters that have a gradient; ``closure`` as in every optimizer of PyTorch."""
        groups = self.param_groups
        self.param_groups = [part for group in groups for part in self._of_this_step(group)]
        loss = super().step(closure)
        self.param_groups = groups
        return loss

    def _of_this_step(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """A group as the kernel takes it in the next step, which is counted."""
        # Counted beside the kernel's own counters, which are on the device: reading one would wait for it.
        group["updates"] = (group["updates"] if "updates" in group else self._updates_of(group)) + 1
        return [{**group, "eps": group["eps"] / math.sqrt(1 - group["betas"][1] ** group["updates"])}]

    def _updates_of(self, group: dict[str, Any]) -> int:
        """The updates of a group that fairseq's Adam began; 0 for a new one."""
        states: list[dict[str, Tensor]] = [self.state[p] for p in group["params"] if p in self.state]
        return max((int(state["step"]) for state in states), default=0)


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FairseqAdam(optim.adam.FairseqAdam):
    """fairseq's ``adam`` with ``FusedAdam``.

    The name of the class is that of fairseq's, which it compares before it reads an optimizer's state: a run that
    began with ``adam`` goes on with ``fused_adam``, and the other way round.
    """

    def __init__(self, cfg: FairseqAdamConfig, params: Any) -> None:
        check("optimizer.fp16_adam_stats", True, not cfg.fp16_adam_stats, "false: moments are in 32 bits")
        optim.FairseqOptimizer.__init__(self, cfg)
        self._optimizer = self.make_optimizer(list(params))
        # fairseq's wrapper for 16 bits makes gradients along with its copies of the parameters; a model has none yet.
        self._has_copies = all(parameter.grad is not None for parameter in self.params)

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of PyTorch that this one wraps."""
        return FusedAdam(parameters, **self.optimizer_config)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, and in 16 bits the copies of the parameters in 32 bits, without which a run is rounded."""
        state = super().state_dict()
        if self._has_copies:
            state[COPIES] = [parameter.detach() for parameter in self.params]
        return state

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Takes a state, and its copies of parameters that are the model's but for rounding: an average's are not.

        PyTorch would go on with the options that the state was saved with, whatever the configuration says now.
        """
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, options in zip(self.param_groups, own, strict=True):
            group.update({name: value for name, value in options.items() if name not in OF_STATE})
            group.update({name: value for name, value in (optimizer_overrides or {}).items() if name in options})
        if not self._has_copies or COPIES not in state_dict:
            return
        for own, copy in zip(self.params, state_dict[COPIES], strict=True):
            if torch.allclose(own, copy.to(own), rtol=ROUNDING, atol=SMALLEST):
                own.data.copy_(copy)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The arguments of ``FusedAdam``."""
        return {**super().optimizer_config, "fused": True}
