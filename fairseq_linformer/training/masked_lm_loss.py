"""Loss of masked language modelling without the logits of all masked tokens in memory."""

import math
from typing import Any

from fairseq.criterions import masked_lm
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.utils import get_perplexity
from torch import Tensor

from ..model.roberta import LinformerRobertaEncoder


class MaskedLmLoss(masked_lm.MaskedLmLoss):  # fairseq's name, as runs resume only under the same
    """Criterion ``masked_lm`` of fairseq with a loss that our model computes itself (``model/lm_head.py``).

    Other models, and TPUs, use fairseq's loss. If nothing is masked, the loss and all gradients are 0.
    """

    def forward(
        self, model: BaseFairseqModel, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return the sum of a batch's losses, the number of masked tokens, and the logging output."""
        if self.tpu or not isinstance(getattr(model, "encoder", None), LinformerRobertaEncoder):
            return super().forward(model, sample, reduce)
        target, inputs = sample["target"], dict(sample["net_input"])
        masked = target.ne(self.padding_idx)
        if "masked_positions" not in inputs:
            inputs["masked_positions"] = masked.flatten().nonzero()[:, 0]
        targets = target.flatten()[inputs["masked_positions"]]
        loss, _ = model(**inputs, masked_tokens=masked, masked_targets=targets)
        size = masked.int().sum()
        log = {"loss": loss.detach(), "sample_size": size}
        return loss, size, {**log, "ntokens": sample["ntokens"], "nsentences": sample["nsentences"]}

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        log_per_token(logging_outputs, loss=math.log(2))
        metrics.log_derived("ppl", lambda meters: get_perplexity(meters["loss"].avg))


def log_per_token(logging_outputs: list[dict[str, Any]], **bases: float) -> None:
    """Log sums over masked tokens, divided by their number and a base; 0 with weight 0 if none is masked."""
    size = sum(log["sample_size"] for log in logging_outputs)
    for name, base in bases.items():
        if all(name in log for log in logging_outputs):
            total = sum(log[name] for log in logging_outputs)
            metrics.log_scalar(name, total / (size + (size == 0)) / base, size, round=3)
