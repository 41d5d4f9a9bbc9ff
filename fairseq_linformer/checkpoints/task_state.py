"""What the checkpoints of our tasks carry beside the weights, in fairseq's ``task_state``."""

from typing import Any, TypedDict

from ..system.state import check_state


class Origin(TypedDict):
    """What one conversion began with: the name of a file, a folder or a model on the Hub, and its SHA-256."""

    source: str
    sha256: str


class MadeOf(TypedDict):
    """What a training is made of: a ``Provenance``."""

    config: str
    configuration: dict[str, Any]
    data: str
    checkpoint: str | None


class Labels(TypedDict):
    """What the outputs of a fine-tuned model mean: the task's ``classes`` by number, its ``scale`` of scores."""

    classes: list[str]
    scale: float


class TaskState(TypedDict):
    """What our tasks add to what others carry.

    Attributes:
        vocabulary: digests of the vocabulary (``digest_vocabulary``); empty where the checkpoint carries none.
        made_of: None in a checkpoint that fairseq alone wrote.
        converted_from: what the model was converted from, the first conversion first, through all trainings after that.
        labels: None of a model that was not fine-tuned, or before checkpoints had them.
        sentence_modules: files of sentence-transformers, text by name (``sentence_modules.py``), through all as well.
        drawn_lm_head: whether the LM head is none that was ever trained, as of an imported model that had none.
    """

    vocabulary: dict[str, str]
    made_of: MadeOf | None
    converted_from: list[Origin]
    labels: Labels | None
    sentence_modules: dict[str, str]
    drawn_lm_head: bool


# From the checkpoint that a training or a conversion starts from.
INHERITED = ("converted_from", "sentence_modules", "drawn_lm_head")


def read_task_state(task_state: Any) -> TaskState:
    """What a checkpoint's ``task_state`` says; nothing where it is not of our tasks.

    Raises:
        UserError: it is not one that a task saved, but edited by hand.
    """
    nothing: TaskState = {
        "vocabulary": {},
        "made_of": None,
        "converted_from": [],
        "labels": None,
        "sentence_modules": {},
        "drawn_lm_head": False,
    }
    carried = {} if task_state is None else task_state
    whole = {**nothing, **carried} if isinstance(carried, dict) else carried
    return check_state(whole, "the checkpoint's task_state", TaskState)
