"""Attention as a map of n x n: what each position takes of every other one, for one row of text.

Softmax attention has the map in its weights. A Linformer has n x m weights W on rows that F makes of n positions: W F
is its map, and with a window the weights of what is near are added. The mechanisms' own functions give the weights:
what they make of the identity in place of the values. A head's output is its map times the values without their bias,
plus that bias; with a value residual the same map mixes the layer's values and the first layer's.

Dimensions: n sequence length, m projected rows, f near positions, h heads, d_h = d / h.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..attention import Attention, AttentionConfig
from ..attention.linformer import LinformerAttention, ProjectedAttention
from ..attention.near import weights_of_first
from ..attention.pooling import AttentionPooling
from ..attention.projection import Projection
from ..attention.revisited_linformer import RevisitedLinformerAttention
from ..attention.softmax import SoftmaxAttention
from ..errors import check

CHANNELWISE = ("conv", "max-pool")  # projections


class Weights(NamedTuple):
    """What the positions of a row attend to, (h, n, ...).

    A first position that attends to every position as it is (``linformer_class_token``) has zeros here.

    Attributes:
        rows: (h, n, m), of the projected rows.
        near: (h, n, f), of the positions that are seen as they are, and which these are: (h, n, f), -1 where there is
            none. None without a window.
    """

    rows: Tensor
    near: tuple[Tensor, Tensor] | None


def check_has_map(attention: str, config: AttentionConfig) -> None:
    """Refuses a model whose attention is no map of n x n for each head.

    Raises:
        UserError: the mechanism, or the projection, is such a one.
    """
    allowed = f"one of {', '.join(_MAPS)}: of others there is no picture"
    check("attention", attention, attention in _MAPS, allowed)
    if attention != "softmax":
        allowed = "another than conv and max-pool, where every channel has a map of its own"
        check("projection", config.projection, config.projection not in CHANNELWISE, allowed)


def head_maps(attention: Attention, x: Tensor) -> Iterator[Tensor]:
    """The map of each head in turn, (n, n): row i is what position i takes of every position.

    Args:
        attention: in evaluation mode.
        x: what it reads, (1, n, d), without padding.
    """
    yield from _MAPS[attention.name](attention, x)


def softmax_maps(attention: Attention, x: Tensor) -> Iterator[Tensor]:
    """softmax(Q K^T / sqrt(d_h)) of each head in turn, (n, n), whatever the mechanism."""
    queries, keys = (attention.split_heads(own) for own in attention.project(x)[:2])
    identity = torch.eye(x.size(1), dtype=x.dtype, device=x.device)[None, None]
    at = torch.arange(x.size(1), device=x.device)
    bias = attention.biased(None, at, at) if attention.alibi else None
    for head in range(attention.num_heads):
        own = slice(head, head + 1)
        yield attention.attend(queries[:, own], keys[:, own], identity, None if bias is None else bias[own])[0, 0]


def projection_matrix(projection: Projection, x: Tensor) -> Tensor:
    """E or F as the matrix that multiplies a row of text x, (1, n, d): (1, m, n), or (h, m, n) where heads differ."""
    identity = torch.eye(x.size(1), dtype=x.dtype, device=x.device).unsqueeze(0)
    if isinstance(projection, AttentionPooling):
        weights = projection.weights(*projection.windows(x, None))  # (1, m, h, w)
        matrix = (weights @ projection.windows(identity, None)[0]).transpose(1, 2)  # (1, m, h, n) -> (1, h, m, n)
    else:
        matrix = projection(identity)  # (1, m, n) or (1, h, m, n)
    return matrix.view(-1, *matrix.shape[-2:])


def projected_weights(attention: ProjectedAttention, x: Tensor) -> Weights:
    """The weights of a Linformer, Revisited or not, on a row of text x, (1, n, d)."""
    keys, _, rows = attention.keys_and_values(x, None)
    n = x.size(1)
    if isinstance(attention, RevisitedLinformerAttention):
        return Weights(attention.mix(x, keys, _identity(attention, keys.size(2), x), rows)[0], None)
    linformer = cast(LinformerAttention, attention)
    others = torch.arange(n, device=x.device).unsqueeze(-1) >= int(linformer.class_token)  # (n, 1)
    seen = linformer.see(x, None)
    identity = _identity(attention, seen.keys.size(2), x).expand(seen.keys.size(0), -1, -1, -1)
    weights = linformer.mix(seen._replace(values=identity))[0] * others  # (h, n, m), or s in place of m
    if seen.near is None:
        return Weights(weights, None)
    numbers = torch.arange(1, n + 1, device=x.device).view(1, n, 1, 1).expand(-1, -1, attention.num_heads, -1)
    rows = numbers.new_zeros((1, attention.num_heads, keys.size(2), 1))
    own = seen.near.join(rows, *2 * [numbers.to(x.dtype)])[:, :, keys.size(2) :, 0].long() - 1  # (N, h, s - m)
    near = own.transpose(0, 1).repeat_interleave(seen.near.size, 1)[:, :n]
    return Weights(weights[..., : keys.size(2)], (weights[..., keys.size(2) :], near))


def _projected_maps(attention: ProjectedAttention, x: Tensor) -> Iterator[Tensor]:
    weights, matrix = projected_weights(attention, x), projection_matrix(attention.value_projection, x)
    n = x.size(1)
    first_is_full = isinstance(attention, LinformerAttention) and attention.class_token
    first = weights_of_first(attention, x, None)[0] if first_is_full else None  # (h, n)
    for head, (rows, columns) in enumerate(zip(weights.rows, matrix.expand(attention.num_heads, -1, -1), strict=True)):
        own = rows @ columns  # (n, m) (m, n)
        if weights.near is not None:
            near, positions = (both[head] for both in weights.near)
            shifted = torch.zeros((n, n + 1), dtype=x.dtype, device=x.device).scatter_add_(1, positions + 1, near)
            own = own + shifted[:, 1:]
        if first is not None:
            own[0] = first[head]
        yield own


def _identity(attention: Attention, size: int, like: Tensor) -> Tensor:
    """(1, h, size, size): the identity in place of every head's values."""
    return torch.eye(size, dtype=like.dtype, device=like.device).expand(1, attention.num_heads, -1, -1)


_MAPS: dict[str, Callable[..., Iterator[Tensor]]] = {
    SoftmaxAttention.name: softmax_maps,
    LinformerAttention.name: _projected_maps,
    RevisitedLinformerAttention.name: _projected_maps,
}
