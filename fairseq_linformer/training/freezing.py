"""Frozen parameters of RoBERTa: the LM head, or all but the embeddings of later positions."""

from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaModel

from ..errors import check


def freeze_lm_head(model: RobertaModel) -> None:
    """Freeze the parameters of the LM head except the shared embedding.

    Otherwise several processes would train differently from one: they average a gradient of every parameter, so that
    an unused parameter has the gradient 0 instead of none, and the optimizer decays its weight.
    """
    embedding = model.encoder.sentence_encoder.embed_tokens.weight
    for parameter in model.encoder.lm_head.parameters():
        if parameter is not embedding:
            parameter.requires_grad_(False)


def freeze_but_positions(model: BaseFairseqModel, first: int) -> None:
    """Freeze all parameters except the embeddings of positions from `first` on, counted from 0.

    The table of positions is one parameter: the gradients of its other rows become 0. Weight decay must be 0, too.

    Raises:
        UserError: the model has no such learned positions.
    """
    encoder = getattr(getattr(model, "encoder", None), "sentence_encoder", None)
    table: Any = getattr(encoder, "embed_positions", None)
    count = 0 if table is None else len(table.weight) - (table.padding_idx + 1)
    allowed = f"above 0 and below the model's {count} learned positions"
    check("task.only_positions_from", first, 0 < first < count, allowed)
    start = table.padding_idx + 1 + first
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is table.weight)
    table.weight.register_hook(lambda gradient: torch.cat([torch.zeros_like(gradient[:start]), gradient[start:]]))
