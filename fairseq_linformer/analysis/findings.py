"""What an analysis found, in three sentences from its numbers: about rank, projections, and where tokens look.

The numbers are the contents of spectrum.json, low_rank.json, if there is one, and looks.json.

Dimensions: L layers, h heads, T shown tokens.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from .low_rank import OWN

NEAR = 4  # positions on either side
KINDS = {"segment means": "segment means", "Gaussian": "Gaussian matrices", OWN: "its own E and F"}


def describe_rank(spectrum: Mapping[str, Any]) -> str:
    """How low the rank of attention is."""
    needed = {share: [fmean(heads) for heads in layers] for share, layers in spectrum["effective_rank"].items()}
    parts = [f"{_percent(float(share))} need {_span(layers, '{:.0f}'.format)}" for share, layers in needed.items()]
    first = next(iter(needed.values()))
    lowest = "in all layers alike" if min(first) == max(first) else f"fewest in layer {first.index(min(first))}"
    chosen = spectrum["projected_length"]
    model = f"; the model has k = {_span(chosen, str)}" if chosen else ""
    return (
        f"Rank: of the sum of attention's {spectrum['n']} singular values, {' and '.join(parts)} values "
        f"(mean over heads, {lowest}){model}."
    )


def describe_loss(low_rank: Mapping[str, Any] | None, spectrum: Mapping[str, Any]) -> str:
    """Which projection loses least of full attention, and in which layers.

    They are compared at the k of the layer, or of n / 4 where it has none; of those that were tried, at the nearest.
    Where no Linformer is compared, as with rotary positions, it is what P loses where it is replaced itself.
    """
    if low_rank is None:
        return "Loss: this attention does not approximate softmax attention, so no projection is compared with it."
    chosen = spectrum["projected_length"] or [max(1, spectrum["n"] // 4)] * len(low_rank["layers"])
    losses: dict[tuple[str, int], dict[int, float]] = {}  # of the best kind, by kind and k, and then by layer
    for number, (layer, k) in enumerate(zip(low_rank["layers"], chosen, strict=True)):
        nearest = {
            kind: min(tried, key=lambda point, k=k: abs(math.log(point["k"] / k)))  # type: ignore[misc]
            for kind, tried in (layer["linformer"] or layer["projected"]).items()
            if kind in KINDS
        }
        best = min(nearest, key=lambda kind: nearest[kind]["median"])
        losses.setdefault((best, nearest[best]["k"]), {})[number] = nearest[best]["median"]
    parts = [
        f"{KINDS[kind]} of k = {k} in {_layers([*own], len(low_rank['layers']))} ({_span(own.values(), _percent)})"
        for (kind, k), own in losses.items()
    ]
    return f"Loss: smallest with {', with '.join(parts)}; this is the error of P w, median over columns w."


def describe_looks(looks: Mapping[str, Any]) -> str:
    """Where the shown tokens look in the first model: at what is near, and at which token most."""
    model, n, count = looks["models"][0], looks["length"], len(looks["tokens"])
    maps = np.maximum(np.array(model["maps"], dtype=float), 0)  # (L, h, T, T); negative weights look at nothing
    total = maps.sum(-1) + np.maximum(np.array(model["beyond"], dtype=float), 0)
    shares = (maps / np.maximum(total, 1)[..., None]).mean(1)  # (L, T, T)
    positions = np.arange(count)
    near = np.abs(positions[:, None] - positions) <= NEAR
    whole = positions < (count if count == n else max(1, count - NEAR))  # whose neighbours are all shown
    even = near[whole].sum(1).mean() / n
    by_layer = (shares * near).sum(-1)[:, whole].mean(1)  # (L,)
    layer, column = np.unravel_index(shares.mean(1).argmax(), (len(shares), count))
    return (
        f"Looks: {_percent(by_layer.max())} of a token's attention in layer {by_layer.argmax()} goes to positions up "
        f"to {NEAR} away, {_percent(by_layer.min())} in layer {by_layer.argmin()} ({_percent(even)} if it were even); "
        f"most is on {looks['tokens'][column].strip()!r} at position {column} in layer {layer}, "
        f"{_percent(shares.mean(1).max())}."
    )


def _span(values: Collection[float], write: Callable[[float], str]) -> str:
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _layers(numbers: Sequence[int], count: int) -> str:
    if len(numbers) == count:
        return "every layer"
    *others, last = map(str, numbers)
    return f"layers {', '.join(others)} and {last}" if others else f"layer {last}"
