"""Criteria ``masked_lm_distillation`` and ``encoder_distillation``: distillation from a teacher.

Dimensions: B batch, n sequence length, d embedding.
"""

# No postponed annotations here: fairseq and OmegaConf read the types of the fields at run time.

import logging
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import MISSING
from torch import Tensor, nn

from ..checkpoint import TaskState, check_same_vocabulary, checkpoint_file, read_checkpoint, read_task_state
from ..data.truncation import cut_texts
from ..digests import digest_file
from ..errors import check
from ..model.parts import mean_over_text
from ..model.roberta import LinformerRobertaModel
from ..sentence_modules import pooling_of
from . import masked_lm_loss

logger = logging.getLogger(__name__)

TEACHER_HELP = "checkpoint, or its run's folder, of the model to learn from"
FEATURES_AND_LAYERS = {"features_only": True, "return_all_hiddens": True}


class TeacherCriterion:
    """Base class of criteria with a teacher that is neither trained nor saved: ``nn.Module`` does not register it."""

    cfg: Any  # options of the criterion, including ``teacher``
    task: FairseqTask  # of the training

    def begin(self, cfg: Any, task: FairseqTask, *weights: str) -> None:
        """Set the options; check `weights`, the names of loss weights; in a training, load the teacher.

        Raises:
            FileNotFoundError: the teacher does not exist.
            UserError: the teacher has another vocabulary or does not fit the task, or a weight of the loss is negative.
        """
        self.cfg, self.task = cfg, task
        for name in weights:
            check(name, getattr(cfg, name), 0 <= getattr(cfg, name) < math.inf, "at least 0")
        if getattr(task, "to_train", None) is not None:
            _ = self.teacher

    @property
    def teacher(self) -> LinformerRobertaModel:
        """Teacher in evaluation mode, on the CPU until its first batch."""
        return self._teacher_and_task_state[0]

    @cached_property
    def _teacher_and_task_state(self) -> tuple[LinformerRobertaModel, TaskState]:
        file = checkpoint_file(Path(self.cfg.teacher))
        state = read_checkpoint(file)
        task_state = read_task_state(state.get("task_state"))
        vocabulary = getattr(self.task, "vocabulary", {})
        check_same_vocabulary(vocabulary, task_state["vocabulary"], self.task.cfg.data, str(file))
        teacher = LinformerRobertaModel.of_checkpoint(state, self.task.source_dictionary)
        self.check_teacher(teacher, file)
        logger.info(f"teacher: {file}, SHA-256 {digest_file(file)}")
        return teacher.requires_grad_(False).eval(), task_state

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Reject a teacher that does not fit the task."""

    @torch.no_grad()
    def teach(self, like: Tensor, **inputs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return the teacher's outputs, computed with the device and type of `like`."""
        self.teacher.to(like)
        return self.teacher(**inputs)


def layer_errors(states: list[Tensor], targets: list[Tensor], real: Tensor) -> Tensor:
    """Return the squared error of each layer's output, divided by the squared norm of its target, (layers,).

    Args:
        states, targets: input of the first layer, then the output of each layer, (n, B, d).
        real: (B, n), False at padding.

    Raises:
        UserError: the numbers of layers or their widths differ.
    """
    model, teacher = (f"{len(values) - 1} layers of d={values[0].size(-1)}" for values in (states, targets))
    allowed = f"0 with a model of {model} and a teacher of {teacher}"
    check("criterion.layers_weight", "above 0", model == teacher, allowed)
    weights = real.T.unsqueeze(-1).float()  # (n, B, 1)
    pairs = ((weights * state, weights * target) for state, target in zip(states[1:], targets[1:], strict=True))
    return torch.stack([(state - target).square().sum() / target.square().sum() for state, target in pairs])


@dataclass
class MaskedLmDistillationConfig(MaskedLmConfig):
    """Options of ``masked_lm_distillation``: those of ``masked_lm``, the teacher and weights of the loss."""

    teacher: str = field(default=MISSING, metadata={"help": TEACHER_HELP})
    logits_weight: float = field(default=1.0, metadata={"help": "weight of the divergence from the teacher's logits"})
    layers_weight: float = field(default=1.0, metadata={"help": "weight of the error of the outputs of layers"})


class _RecordingModel:
    """Wrapper of a model that records its last inputs and outputs when a criterion calls it."""

    def __init__(self, model: nn.Module, with_layers: bool) -> None:
        self.get_targets = model.get_targets
        self.with_layers = with_layers
        self._model = model

    def __call__(self, **inputs: Any) -> tuple[Tensor, dict[str, Any]]:
        self.inputs = {**inputs, "return_all_hiddens": self.with_layers}
        self.logits, self.extra = self._model(**self.inputs)
        return self.logits, self.extra


@register_criterion("masked_lm_distillation", dataclass=MaskedLmDistillationConfig)
class MaskedLmDistillation(TeacherCriterion, MaskedLmLoss):
    """Loss of ``masked_lm`` plus the distance from a teacher on the same masked text.

        loss + logits_weight KL(teacher || model) + layers_weight mean over layers of |x - t|^2 / |t|^2

    The divergence is a sum over masked tokens, as the loss is (Hinton et al. 2015, arXiv 1503.02531, at temperature 1).
    x and t are the outputs of a layer of the model and of the teacher at all positions but padding, which requires
    equal numbers of layers and equal widths; their error counts once per masked token. ``divergence`` and
    ``layer_error`` are logged with ``loss``. Validation is that of ``masked_lm``.
    """

    def __init__(self, cfg: MaskedLmDistillationConfig, task: FairseqTask) -> None:
        super().__init__(cfg, task)
        self.begin(cfg, task, "logits_weight", "layers_weight")

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Reject a teacher whose maximum length is below the task's."""
        longest, needed = teacher.args.max_positions, self.task.cfg.tokens_per_sample
        allowed = f"one of {needed} tokens (linformer convert {file} --out DIR model.max_positions={needed})"
        check("criterion.teacher", f"{file}, of {longest} tokens,", longest >= needed, allowed)

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor | int, dict[str, Any]]:
        """Return the loss of a batch, the divisor of its gradients, and what is logged."""
        if not model.training:
            return super().forward(model, sample, reduce)
        recorded = _RecordingModel(model, with_layers=self.cfg.layers_weight > 0)
        loss, size, log = super().forward(recorded, sample, reduce)
        logits, extra = self.teach(recorded.logits, **recorded.inputs)
        log_q, log_p = (F.log_softmax(values, dim=-1, dtype=torch.float32) for values in (recorded.logits, logits))
        # Without masks, logits are of all tokens.
        divergence = (size > 0) * F.kl_div(log_q, log_p, reduction="sum", log_target=True)
        log["divergence"] = divergence.detach()
        loss = loss + self.cfg.logits_weight * divergence
        if recorded.with_layers:
            real = recorded.inputs["src_tokens"].ne(self.padding_idx)
            error = size * layer_errors(recorded.extra["inner_states"], extra["inner_states"], real).mean()
            log["layer_error"] = error.detach()
            loss = loss + self.cfg.layers_weight * error
        return loss, size, log

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        masked_lm_loss.MaskedLmLoss.reduce_metrics(logging_outputs)
        masked_lm_loss.log_per_token(logging_outputs, divergence=math.log(2), layer_error=1.0)


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
class EncoderDistillation(TeacherCriterion, FairseqCriterion):
    """Distance of an encoder from its teacher on texts without masks.

        layers_weight mean over layers of |x - t|^2 / |t|^2 + pooled_weight mean over texts of (1 - cos(u, v))
        + similarities_weight mean over pairs of texts of (cos(u, u') - cos(v, v'))^2

    x and t are the outputs of a layer at all positions but padding; u and v are the vectors of a text, pooled by the
    sentence-transformers modules of the teacher's checkpoint, by default the mean over all tokens including <s> and
    </s>. Pairs are those within a batch. A batch is weighted by its tokens.

    A text that exceeds the teacher's maximum length is split into chunks (``data.truncation.cut_texts``), each with
    positions from 0. The target of a token depends only on its chunk, and v is pooled over all chunks.

    ``cosine`` (mean over texts), ``layer_error`` and each layer's error are logged with ``loss``, in validation too.
    """

    def __init__(self, cfg: EncoderDistillationConfig, task: FairseqTask) -> None:
        super().__init__(task)
        self.begin(cfg, task, "layers_weight", "pooled_weight", "similarities_weight")
        if getattr(task, "to_train", None) is None:
            return
        _ = self.pooling
        shortest, unmasked = (getattr(task.cfg, name, None) for name in ("shortest_text", "skip_masking"))
        check("task.shortest_text", shortest, shortest is not None, "a number, such as 8, so that rows are texts")
        check("task.skip_masking", unmasked, bool(unmasked), "true: texts are read without masks")

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss of a batch, the divisor of its gradients, and what is logged."""
        inputs, tokens, cfg = sample["net_input"], sample["ntokens"], self.cfg
        features, extra = model(**inputs, **FEATURES_AND_LAYERS)
        targets, layers = self._targets(inputs["src_tokens"], features)
        d, teacher_d = features.size(-1), targets.size(-1)
        check("criterion.teacher", cfg.teacher, d == teacher_d, f"of the model's d={d}; it has d={teacher_d}")
        real = inputs["src_tokens"].ne(self.padding_idx)
        errors = layer_errors(extra["inner_states"], layers, real) if cfg.layers_weight > 0 else features.new_zeros(0)
        vectors, target_vectors = (pool(values, real, self.pooling) for values in (features, targets))
        cosines = (vectors * target_vectors).sum(1)
        similarities = (vectors @ vectors.T - target_vectors @ target_vectors.T).square().sum()  # the diagonal adds 0
        pairs = len(cosines) * (len(cosines) - 1)
        loss = cfg.pooled_weight * (1 - cosines).mean() + cfg.similarities_weight * similarities / max(1, pairs)
        loss = (loss + cfg.layers_weight * errors.sum() / max(1, len(errors))) * tokens
        log = {"loss": loss, "cosine": cosines.sum(), "similarity_error": similarities}
        log |= {f"layer_{number}": error * tokens for number, error in enumerate(errors, 1)}
        counts = {"sample_size": tokens, "ntokens": tokens, "nsentences": len(cosines), "npairs": pairs}
        return loss, tokens, {name: value.detach() for name, value in log.items()} | counts

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Reject a value of ``only_positions_from`` that is not the teacher's maximum length."""
        first, longest = getattr(self.task.cfg, "only_positions_from", None), teacher.args.max_positions
        allowed = f"null, or {longest}, the maximum length of {file}"
        check("task.only_positions_from", first, first in (None, longest), allowed)

    @cached_property
    def pooling(self) -> str:
        """Pooling in the teacher's sentence-transformers modules."""
        return pooling_of(self._teacher_and_task_state[1]["sentence_modules"])

    def _targets(self, tokens: Tensor, features_like: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the teacher's features (B, n, d), and the first layer's input and all layer outputs, (n, B, d)."""
        longest = self.teacher.args.max_positions
        if tokens.size(1) <= longest:
            features, extra = self.teach(features_like, src_tokens=tokens, **FEATURES_AND_LAYERS)
            return features, extra["inner_states"]
        chunks = cut_texts(tokens, longest, self.padding_idx)
        features, extra = self.teach(features_like, src_tokens=chunks.tokens, **FEATURES_AND_LAYERS)
        states = [chunks.joined(state.transpose(0, 1)).transpose(0, 1) for state in extra["inner_states"]]
        return chunks.joined(features), states

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        sums = {name: sum(log[name] for log in logging_outputs) for name in logging_outputs[0]}
        if layers := [sums[name] for name in sums if name.startswith("layer_")]:
            sums["layer_error"] = sum(layers) / len(layers)
        count_names = {"cosine": "nsentences", "similarity_error": "npairs"}
        for name in [name for name in sums if name not in ("sample_size", "ntokens", *count_names.values())]:
            count = sums[count_names.get(name, "sample_size")]
            metrics.log_scalar(name, sums[name] / max(1, count), count, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def pool(features: Tensor, real: Tensor, mode: str) -> Tensor:
    """Return the normalized vectors of texts, (B, d), in at least 32 bits.

    Args:
        features: (B, n, d).
        real: (B, n), False at padding.
        mode: "cls", "mean" or "max".
    """
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    if mode == "cls":
        vectors = features[:, 0]
    elif mode == "max":
        vectors = features.masked_fill(~real.unsqueeze(-1), -torch.inf).amax(1)
    else:
        vectors = mean_over_text(features, ~real)
    return F.normalize(vectors, dim=1)
