"""What the criteria that have a teacher share: the teacher, and the error of layers.

Dimensions: B batch, n sequence length, d embedding.
"""

import logging
import math
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks import FairseqTask
from torch import Tensor

from ..checkpoint import TaskState, check_same_vocabulary, checkpoint_file, read_checkpoint, read_task_state
from ..errors import UserError, check
from ..files import digest_file
from ..model.roberta import LinformerRobertaModel

logger = logging.getLogger(__name__)

TEACHER_HELP = "checkpoint, or its run's folder, of the model to learn from"


class WithTeacher:
    """A criterion with a teacher, which is in no checkpoint and is not trained: ``nn.Module`` does not see it.

    Attributes:
        cfg: the criterion's options; ``teacher`` is one of them.
        task: of the training.
    """

    cfg: Any
    task: FairseqTask

    def begin(self, cfg: Any, task: FairseqTask, *weights: str) -> None:
        """Takes the options. For a training the teacher is read at once: what is wrong with it is said before any work.

        Args:
            cfg: the criterion's options.
            task: of the training.
            weights: which of the options weigh parts of the loss.

        Raises:
            FileNotFoundError: there is no such teacher.
            UserError: it has another vocabulary, cannot teach this task, or a weight of the loss is below 0.
        """
        self.cfg, self.task = cfg, task
        for name in weights:
            check(name, getattr(cfg, name), 0 <= getattr(cfg, name) < math.inf, "at least 0")
        if getattr(task, "to_train", None) is not None:
            _ = self.teacher

    @property
    def teacher(self) -> LinformerRobertaModel:
        """In evaluation mode; on the CPU until it is asked."""
        return self._read_teacher[0]

    @property
    def carried(self) -> TaskState:
        """What the teacher's checkpoint carries beside its weights."""
        return self._read_teacher[1]

    @cached_property
    def _read_teacher(self) -> tuple[LinformerRobertaModel, TaskState]:
        file = checkpoint_file(Path(self.cfg.teacher))
        state = read_checkpoint(file)
        carried = read_task_state(state.get("task_state"))
        own = getattr(self.task, "vocabulary", {})
        check_same_vocabulary(own, carried["vocabulary"], self.task.cfg.data, str(file))
        teacher = LinformerRobertaModel.of_checkpoint(state, self.task.source_dictionary)
        self.check_teacher(teacher, file)
        logger.info(f"teacher: {file}, SHA-256 {digest_file(file)}")
        return teacher.requires_grad_(False).eval(), carried

    def check_teacher(self, teacher: LinformerRobertaModel, file: Path) -> None:
        """Refuses a teacher that cannot teach this task: none."""

    @torch.no_grad()
    def ask_teacher(self, like: Tensor, **inputs: Any) -> tuple[Tensor, dict[str, Any]]:
        """What the teacher says, on the device and in the type of a tensor of the model."""
        self.teacher.to(like)  # nothing to do but the first time
        return self.teacher(**inputs)


def layer_errors(states: list[Tensor], targets: list[Tensor], real: Tensor) -> Tensor:
    """The squared error of what each layer gives, divided by the squared norm of its target, (layers,).

    Args:
        states, targets: input of the first layer and output of each, (n, B, d).
        real: (B, n), True where a position is no padding.

    Raises:
        UserError: the layers are not as many, or not as wide.
    """
    sizes = [(len(found) - 1, found[0].size(-1)) for found in (states, targets)]
    if sizes[0] != sizes[1]:
        own, wanted = (f"{layers} layers of d={width}" for layers, width in sizes)
        raise UserError(f"criterion.layers_weight must be 0: the model has {own}, the teacher {wanted}")
    weights = real.T.unsqueeze(-1).float()  # (n, B, 1)
    pairs = ((weights * state, weights * target) for state, target in zip(states[1:], targets[1:], strict=True))
    return torch.stack([(state - target).square().sum() / target.square().sum() for state, target in pairs])
