"""Everything that is measured of one checkpoint, over rows of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..attention import Attention
from ..attention.linformer import ProjectedAttention
from ..attention.softmax import SoftmaxAttention
from ..conversion.fitting import attention_of
from ..model.encoder import SentenceEncoder
from .low_rank import OWN, Errors, describe_low_rank
from .maps import head_maps, projected_weights
from .matrices import DEAD, STATISTICS, WHAT, describe_matrices
from .spectrum import SHARES, cumulative, describe_spectrum


@dataclass(frozen=True)
class Measured:
    """The numbers of a checkpoint, ready for JSON.

    Attributes:
        spectrum: of its attention.
        low_rank: what low rank loses of softmax attention; None for Revisited Linformer, which does not approximate it.
        matrices: of E and F, and how the rows are used; None for full attention.
    """

    spectrum: dict[str, Any]
    low_rank: dict[str, Any] | None
    matrices: dict[str, Any] | None


def attentions_of(encoder: SentenceEncoder) -> list[Attention]:
    """The attention of each layer."""
    return [module for module in encoder.modules() if isinstance(module, Attention)]


@torch.no_grad()
def measure(encoder: SentenceEncoder, rows: Tensor, chosen: Sequence[int] | None) -> Measured:
    """Measures a model.

    Args:
        encoder: in evaluation mode.
        rows: token ids (R, n) without padding.
        chosen: k of each layer; None for full attention.
    """
    attentions = attentions_of(encoder)
    projected = [attention for attention in attentions if isinstance(attention, ProjectedAttention)]
    compares = attentions[0].name != "revisited-linformer"
    curves = torch.zeros((len(attentions), attentions[0].num_heads, rows.size(1)), dtype=torch.double)
    errors = [Errors() for _ in attentions]
    used: list[list[Tensor]] = [[] for _ in attentions]
    for row in tqdm(rows, unit="row", disable=None):
        first_values = None
        for layer, (attention, x) in enumerate(zip(attentions, inputs_of(encoder, row), strict=True)):
            spectra = errors[layer].add(attention, x, first_values) if compares else []
            if layer == 0:
                first_values = attention.v_proj(x)
            if not isinstance(attention, SoftmaxAttention):  # its own map is another than that of softmax
                spectra = [torch.linalg.svdvals(own.float()) for own in head_maps(attention, x)]
            for head, values in enumerate(spectra):
                curves[layer, head] += cumulative(values).cpu() / len(rows)
            if isinstance(attention, ProjectedAttention):
                weights = projected_weights(attention, x).rows
                used[layer].append(weights.double().mean((0, 1)).cpu())
    head_dim = attentions[0].head_dim
    return Measured(
        describe_spectrum(curves, chosen, head_dim),
        describe_low_rank(errors, rows.size(1), head_dim) if compares else None,
        _describe_rows(attentions, used) if projected else None,
    )


def inputs_of(encoder: SentenceEncoder, row: Tensor) -> list[Tensor]:
    """What the attention of each layer reads for one row of token ids (n,): (1, n, d) each."""
    with torch.no_grad(), attention_of(encoder) as calls:
        encoder(row.unsqueeze(0).to(encoder.embed_tokens.weight.device))
    return [given[0] for given, _ in calls]


def _describe_rows(attentions: list[Attention], used: list[list[Tensor]]) -> dict[str, Any]:
    layers = [_describe_use(torch.stack(rows).mean(0)) for rows in used]
    return {"what": WHAT, "matrices": describe_matrices(attentions), "layers": layers}


def _describe_use(weights: Tensor) -> dict[str, Any]:
    """Of the mean weights (m,) onto the rows of a layer; 0 for all where a window shows what they stand for."""
    use = weights / weights.mean().clamp(min=torch.finfo(weights.dtype).tiny)
    return {"share": float(weights.sum()), "use": use.tolist(), "unused": (use < DEAD).nonzero().flatten().tolist()}


def _by_layer(matrices: Sequence[Mapping[str, Any]], kind: str) -> list[float]:
    """A statistic of the median row, mean over the matrices of each layer; one number where all layers share one."""
    layers = dict.fromkeys(matrix["layer"] for matrix in matrices)
    return [fmean(matrix["median"][kind] for matrix in matrices if matrix["layer"] == layer) for layer in layers]


def in_short(measured: Measured) -> dict[str, Any]:
    """The numbers that are drawn against updates: each a list over layers, or one number for all."""
    ranks = measured.spectrum["effective_rank"]
    short: dict[str, Any] = {
        f"effective rank at {float(share):.0%}": [fmean(layer) for layer in ranks[f"{share:g}"]] for share in SHARES
    }
    if measured.low_rank is not None:
        layers = [layer["linformer"].get(OWN) for layer in measured.low_rank["layers"]]
        if all(layers):
            short["error of the model's own map"] = [own[0]["median"] for own in layers]
    if measured.matrices is not None:
        for kind in STATISTICS if measured.matrices["matrices"] else ():
            short[kind] = _by_layer(measured.matrices["matrices"], kind)
        short["unused rows"] = [len(layer["unused"]) for layer in measured.matrices["layers"]]
    return short
