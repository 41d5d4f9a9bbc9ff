"""Parameters that a training leaves as they are."""

from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel

from ..errors import check


def freeze_lm_head(model: RobertaModel) -> None:
    """Leaves the LM head's own parameters out of the training; the embedding that it shares stays in.

    Without this several processes do not train what one trains: they average a gradient for every parameter, and for
    one that has none the optimizer would take the average, 0, and decay its weight.
    """
    embedding = model.encoder.sentence_encoder.embed_tokens.weight
    for parameter in model.encoder.lm_head.parameters():
        if parameter is not embedding:
            parameter.requires_grad_(False)


def freeze_but_positions(model: BaseFairseqModel, first: int) -> None:
    """Leaves everything out of the training but the embeddings of the positions from `first` on, counted from 0.

    Their table is one parameter: the gradients of its other rows become 0. Weight decay must be 0, too.

    Raises:
        UserError: the model has no such learned positions.
    """
    encoder = getattr(getattr(model, "encoder", None), "sentence_encoder", None)
    table: Any = getattr(encoder, "embed_positions", None)
    count = 0 if table is None else len(table.weight) - (table.padding_idx + 1)
    allowed = f"above 0 and below the model's {count} learned positions"
    check("task.only_positions_from", first, 0 < first < count, allowed)
    kept = table.padding_idx + 1 + first
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is table.weight)
    table.weight.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:kept]), gradient[kept:]]))
