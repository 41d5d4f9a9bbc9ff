"""The registered criterion ``encoder_distillation``: an encoder learns another's features, without a language model.

Dimensions: B batch, n sequence length, d embedding.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import MISSING
from torch import Tensor, nn

from ..data.truncation import cut_texts
from ..errors import check
from ..model.batch import mean_over_text
from ..model.roberta import LinformerRobertaModel
from ..sentence_modules import pooling_of
from .teacher import TEACHER_HELP, WithTeacher, layer_errors

ASKED = {"features_only": True, "return_all_hiddens": True}  # of the model and of its teacher


@dataclass
class EncoderDistillationConfig(FairseqDataclass):
    """Options of ``encoder_distillation``."""

    teacher: str = field(default=MISSING, metadata={"help": TEACHER_HELP})
    layers_weight: float = field(default=1.0, metadata={"help": "weight of the error of the outputs of layers"})
    pooled_weight: float = field(default=1.0, metadata={"help": "weight of 1 - cosine of the vectors of texts"})
    similarities_weight: float = field(
        default=0.0, metadata={"help": "weight of the squared error of the cosines between the texts of a batch"}
    )


@register_criterion("encoder_distillation", dataclass=EncoderDistillationConfig)
class EncoderDistillation(WithTeacher, FairseqCriterion):
    """How far an encoder is from its teacher on texts as they are, nothing masked.

        layers_weight mean over layers of |x - t|^2 / |t|^2 + pooled_weight mean over texts of (1 - cos(u, v))
        + similarities_weight mean over pairs of texts of (cos(u, u') - cos(v, v'))^2

    x and t are the outputs of a layer at all real positions, u and v the vectors of a text: its features pooled as the
    modules of sentence-transformers say that the teacher's checkpoint carries, else the mean over its tokens, <s> and
    </s> included. Pairs are those of a batch, which is one text where texts are long. A batch counts by its tokens.

    A teacher that reads shorter texts reads a longer one in chunks (``data.lengths.cut_texts``), each with positions
    from 0. Targets of tokens then know their chunk alone, and v is pooled over all chunks.

    Logged beside ``loss``: ``cosine``, the mean over texts; ``layer_error``, and the part of each layer; also in
    validation. An update costs a forward pass of the teacher more.

    Raises:
        FileNotFoundError: there is no such teacher.
        UserError: it has another vocabulary, width or number of layers, or pools in a way that is not known, the task's
            rows are no texts, or it trains only positions from another one on than the first that the teacher lacks.
    """

    def __init__(self, cfg: EncoderDistillationConfig, task: FairseqTask) -> None:
        super().__init__(task)
        self.begin(cfg, task, "layers_weight", "pooled_weight", "similarities_weight")
        if getattr(task, "to_train", None) is None:
            return
        _ = self.pooling
        shortest, unmasked = (getattr(task.cfg, name, None) for name in ("shortest_text", "skip_masking"))
        check("task.shortest_text", shortest, shortest is not None, "a number, such as 8, so that rows are texts")
        check("task.skip_masking", unmasked, bool(unmasked), "true: texts are read as they are")

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The loss of a batch, what to divide its gradients by, and what is logged."""
        inputs, tokens, cfg = sample["net_input"], sample["ntokens"], self.cfg
        features, extra = model(**inputs, **ASKED)
        targets, layers = self._targets(inputs["src_tokens"], features)
        own, wanted = features.size(-1), targets.size(-1)
        check("criterion.teacher", cfg.teacher, own == wanted, f"of d={own}, as the model is; it has d={wanted}")
        real = inputs["src_tokens"].ne(self.padding_idx)
        errors = layer_errors(extra["inner_states"], layers, real) if cfg.layers_weight > 0 else features.new_zeros(0)
        vectors, teachers = (pooled(of, real, self.pooling) for of in (features, targets))
        cosines = (vectors * teachers).sum(1)
        similarities = (vectors @ vectors.T - teachers @ teachers.T).square().sum()  # a text and itself add 0
        pairs = len(cosines) * (len(cosines) - 1)
        loss = cfg.pooled_weight * (1 - cosines).mean() + cfg.similarities_weight * similarities / max(1, pairs)
        loss = (loss + cfg.layers_weight * errors.sum() / max(1, len(errors))) * tokens
        log = {"loss": loss, "cosine": cosines.sum(), "similarity_error": similarities}
        log |= {f"layer_{number}": error * tokens for number, error in enumerate(errors, 1)}
        counts = {"sample_size": tokens, "ntokens": tokens, "nsentences": len(cosines), "npairs": pairs}
        return loss, tokens, {name: value.detach() for name, value in log.items()} | counts

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Refuses a training of only those positions that another teacher would lack."""
        first, longest = getattr(self.task.cfg, "only_positions_from", None), teacher.args.max_positions
        allowed = f"null, or {longest}, what {file} reads (and task.shortest_text one more)"
        check("task.only_positions_from", first, first in (None, longest), allowed)

    @cached_property
    def pooling(self) -> str:
        """That of the teacher's modules for sentence-transformers."""
        return pooling_of(self.carried["sentence_modules"])

    def _targets(self, tokens: Tensor, like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Features (B, n, d) of the teacher, and the input of its first layer and output of each, (n, B, d)."""
        longest = self.teacher.args.max_positions
        if tokens.size(1) <= longest:
            features, extra = self.ask_teacher(like, src_tokens=tokens, **ASKED)
            return features, extra["inner_states"]
        chunks = cut_texts(tokens, longest, self.padding_idx)
        features, extra = self.ask_teacher(like, src_tokens=chunks.tokens, **ASKED)
        states = [chunks.joined(state.transpose(0, 1)).transpose(0, 1) for state in extra["inner_states"]]
        return chunks.joined(features), states

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        sums = {name: sum(log[name] for log in logging_outputs) for name in logging_outputs[0]}
        if layers := [sums[name] for name in sums if name.startswith("layer_")]:
            sums["layer_error"] = sum(layers) / len(layers)
        per = {"cosine": "nsentences", "similarity_error": "npairs"}
        for name in [name for name in sums if name not in ("sample_size", "ntokens", *per.values())]:
            count = sums[per.get(name, "sample_size")]
            metrics.log_scalar(name, sums[name] / max(1, count), count, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def pooled(features: Tensor, real: Tensor, how: str) -> Tensor:
    """Vectors of texts of length 1, (B, d) in 32 bits at least.

    Args:
        features: (B, n, d).
        real: (B, n), True where a position is no padding.
        how: as ``pooling_of`` says it.
    """
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    if how == "cls":
        vectors = features[:, 0]
    elif how == "max":
        vectors = features.masked_fill(~real.unsqueeze(-1), -torch.inf).amax(1)
    else:
        vectors = mean_over_text(features, ~real)
    return F.normalize(vectors, dim=1)
