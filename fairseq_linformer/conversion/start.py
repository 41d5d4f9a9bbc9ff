"""What a model takes over from the parameters of another.

Dimensions: n sequence length, k projected length, d embedding, h heads.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoint import FIRST_POSITION
from ..model.parts import LocalConvolution


def tiled(positions: Tensor, length: int) -> Tensor:
    """The embedding of `length` positions, (length + 2, d), that repeats a shorter one, as Longformer begins.

    What a model has learned of near positions holds everywhere but where two copies meet (Beltagy et al. 2020, arXiv
    2004.05150, section 5).
    """
    before, own = positions[:FIRST_POSITION], positions[FIRST_POSITION:]
    times = -(-length // len(own))
    return torch.cat([before, own.repeat(times, 1)[:length]])


def interpolated(positions: Tensor, length: int) -> Tensor:
    """The embedding of `length` positions, (length + 2, d), stretched from a shorter one: both ends stay ends."""
    before, own = positions[:FIRST_POSITION], positions[FIRST_POSITION:]
    stretched = F.interpolate(own.T.unsqueeze(0), size=length, mode="linear", align_corners=True)
    return torch.cat([before, stretched[0].T])


LONGER = {"random_blocks": 0, "rotations": -1}  # buffers that are larger for longer texts, and the dimension that grows
OF_OPTIONS = ("multiplier", "sub_blocks")  # buffers that say what options say
EXTENSIONS: dict[str, Callable[[Tensor, int], Tensor]] = {"tile": tiled, "interpolate": interpolated}


def stretched(matrix: Tensor, length: int) -> Tensor:
    """E (k, n), or (h, k, n), for `length` > n positions: rows keep their share of the text, and nearly their sum."""
    n = matrix.size(-1)
    wider = F.interpolate(matrix.flatten(0, -2).unsqueeze(0), size=length, mode="linear", align_corners=False)
    return wider[0].unflatten(0, matrix.shape[:-1]) * (n / length)


class Started(NamedTuple):
    """The names of parameters, and of what is drawn at random, that were not simply taken over.

    Attributes:
        new: of the model, without a counterpart in the other, or larger than that: they keep their own start, what is
            drawn at random for longer texts beyond that of shorter ones.
        left_out: of the other, without a counterpart in the model, or where the model shares another's.
    """

    new: list[str]
    left_out: list[str]


@torch.no_grad()
def start_from(model: nn.Module, state: Mapping[str, Tensor], extension: str) -> Started:
    """Gives a new model the parameters of another, in place.

    Where the model is for longer texts, positions are extended and E and F stretched. What is drawn at random comes
    along: the other was trained with it. E and F that heads shared are those of each. A local convolution that the
    other lacks adds nothing at first: it is zero; a wider one is the other's between zeros, a narrower one its middle.

    Args:
        model: new, of the same width, depth and vocabulary.
        state: parameters and buffers of the other by the names of the model.
        extension: of positions, one of EXTENSIONS.
    """
    new: list[str] = []
    multipliers = {name: buffer for name, buffer in model.named_buffers() if name.endswith("_projection.multiplier")}
    for name, parameter in model.named_parameters():
        there = state.get(name)
        if there is not None and name.endswith("embed_positions.weight") and len(there) < len(parameter):
            there = EXTENSIONS[extension](there, len(parameter) - FIRST_POSITION)
        if there is not None and (constant := name.replace("weight", "multiplier")) in multipliers:
            if there.size(-1) < parameter.size(-1):
                there = stretched(there, parameter.size(-1))
            there = there * (state[constant] / multipliers[constant])
            if there.shape == parameter.shape[1:]:  # one matrix for all heads is that of each
                there = there.expand_as(parameter)
        if there is not None and name.endswith("local_conv.conv.weight"):  # (d, 1, w), w odd: its middle stays there
            beside = (parameter.size(-1) - there.size(-1)) // 2
            there = F.pad(there, (beside, beside))
        if there is not None and there.shape == parameter.shape:
            parameter.copy_(there)
        else:
            new.append(name)
    new += _take_drawn(model, state)
    for name, module in model.named_modules():
        if isinstance(module, LocalConvolution) and f"{name}.conv.weight" in new:
            for parameter in module.parameters():
                parameter.zero_()
    return Started(new, sorted({*(state.keys() - model.state_dict().keys()), *_not_shared(model, state)}))


def _take_drawn(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Takes over the buffers that are drawn at random, for longer texts as their first part, and names the others."""
    new = []
    for name, buffer in model.named_buffers():
        there, kind = state.get(name), name.rpartition(".")[2]
        if there is None or kind in OF_OPTIONS:
            continue
        part = buffer
        if kind in LONGER:
            dim = LONGER[kind]
            part = buffer.narrow(dim, 0, min(there.size(dim), buffer.size(dim)))
        if part.shape == there.shape:
            part.copy_(there)
        if buffer.shape != there.shape:
            new.append(name)
    return new


def _not_shared(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """The second names of parameters that are one in the model, and under which the other has something else."""
    firsts: dict[Tensor, str] = {}
    names = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = firsts.setdefault(parameter, name)
        if name != first and name in state and not (first in state and torch.equal(state[name], state[first])):
            names.append(name)
    return names
