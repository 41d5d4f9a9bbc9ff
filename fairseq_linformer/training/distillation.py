"""The registered criterion ``masked_lm_distillation``: masked language modelling beside a teacher.

Dimensions: B batch, n sequence length, d embedding, N masked tokens, V vocabulary.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.tasks import FairseqTask
from omegaconf import MISSING
from torch import Tensor, nn

from ..errors import UserError
from ..model.roberta import LinformerRobertaModel
from . import masked_lm_loss
from .teacher import TEACHER_HELP, WithTeacher, layer_errors


@dataclass
class MaskedLmDistillationConfig(MaskedLmConfig):
    """Options of ``masked_lm_distillation``: those of ``masked_lm``, and the teacher."""

    teacher: str = field(default=MISSING, metadata={"help": TEACHER_HELP})
    logits_weight: float = field(default=1.0, metadata={"help": "weight of the divergence from the teacher's logits"})
    layers_weight: float = field(default=1.0, metadata={"help": "weight of the error of the outputs of layers"})


class _Watched:
    """A model as a criterion calls it, which keeps what it was asked and what it said."""

    def __init__(self, model: nn.Module, with_layers: bool) -> None:
        self.get_targets = model.get_targets
        self.with_layers = with_layers
        self._model = model

    def __call__(self, **inputs: Any) -> tuple[Tensor, dict[str, Any]]:
        self.inputs = {**inputs, "return_all_hiddens": self.with_layers}
        self.logits, self.extra = self._model(**self.inputs)
        return self.logits, self.extra


@register_criterion("masked_lm_distillation", dataclass=MaskedLmDistillationConfig)
class MaskedLmDistillation(WithTeacher, MaskedLmLoss):
    """The loss of ``masked_lm``, and how far a model is from its teacher, on the same masked text.

        loss + logits_weight KL(teacher || model) + layers_weight mean over layers of |x - t|^2 / |t|^2

    The divergence is a sum over masked tokens, as the loss is (Hinton et al. 2015, arXiv 1503.02531, at temperature 1).
    x and t are the outputs of a layer at all real positions; their error counts once per masked token, so that batches
    weigh alike. Layerwise targets are those of CALD (arXiv 2410.06846), which turns RoBERTa into Linformer.

    Logged as ``loss`` is that of ``masked_lm`` alone, so that perplexities compare; beside it ``divergence``, in base 2
    as well, and ``layer_error``. In validation there is no teacher. An update costs a forward pass of the teacher more.

    Raises:
        FileNotFoundError: there is no such teacher.
        UserError: it has another vocabulary, reads shorter texts, or has other layers where these are compared.
    """

    def __init__(self, cfg: MaskedLmDistillationConfig, task: FairseqTask) -> None:
        super().__init__(cfg, task)
        self.begin(cfg, task, "logits_weight", "layers_weight")

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Refuses one that reads shorter rows than the task has.

        Raises:
            UserError: it does.
        """
        longest, wanted = teacher.args.max_positions, self.task.cfg.tokens_per_sample
        if longest < wanted:
            raise UserError(
                f"criterion.teacher={file} reads {longest} tokens, the task's rows have {wanted}: give one for longer "
                f"texts, which linformer convert {file} --out DIR model.max_positions={wanted} makes of it"
            )

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor | int, dict[str, Any]]:
        """The loss of a batch, what to divide its gradients by, and what is logged."""
        if not model.training:
            return super().forward(model, sample, reduce)
        watched = _Watched(model, with_layers=self.cfg.layers_weight > 0)
        loss, size, log = super().forward(watched, sample, reduce)
        logits, extra = self.ask_teacher(watched.logits, **watched.inputs)
        divergence = (size > 0) * divergence_from(watched.logits, logits)  # where nothing is masked, logits are of all
        log["divergence"] = divergence.detach()
        loss = loss + self.cfg.logits_weight * divergence
        if watched.with_layers:
            real = watched.inputs["src_tokens"].ne(self.padding_idx)
            error = size * layer_errors(watched.extra["inner_states"], extra["inner_states"], real).mean()
            log["layer_error"] = error.detach()
            loss = loss + self.cfg.layers_weight * error
        return loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        masked_lm_loss.MaskedLmLoss.reduce_metrics(logging_outputs)
        masked_lm_loss.log_per_token(logging_outputs, divergence=math.log(2), layer_error=1.0)


def divergence_from(logits: Tensor, targets: Tensor) -> Tensor:
    """KL(targets || logits) in nats, the sum over N tokens; logits are (N, V)."""
    own, wanted = (F.log_softmax(of, dim=-1, dtype=torch.float32) for of in (logits, targets))
    return F.kl_div(own, wanted, reduction="sum", log_target=True)
