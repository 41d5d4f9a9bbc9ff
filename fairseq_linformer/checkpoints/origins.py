"""What a model was converted from. Its checkpoints carry it, through all trainings after that."""

from typing import Any, TypedDict

from ..errors import UserError

ORIGINS = "converted_from"  # in a checkpoint's task_state


class Origin(TypedDict):
    """What one conversion began with: the name of a file, a folder or a model on the Hub, and its SHA-256."""

    source: str
    sha256: str


def carried_origins(task_state: Any) -> list[Origin]:
    """The origins in a checkpoint's ``task_state``, the first conversion's first.

    Raises:
        UserError: it holds something else.
    """
    found = task_state.get(ORIGINS, []) if isinstance(task_state, dict) else []
    if not isinstance(found, list) or not all(_is_origin(one) for one in found):
        raise UserError(f"the checkpoint's task_state has a {ORIGINS} that no conversion wrote: it was edited by hand")
    return found


def _is_origin(value: Any) -> bool:
    is_whole = isinstance(value, dict) and value.keys() == Origin.__required_keys__
    return is_whole and all(isinstance(text, str) for text in value.values())
