"""Which vocabulary a model was trained with. Its shapes do not tell: two vocabularies may have the same size."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from ..data.tokenizer import ENCODER_FILE, MERGES_FILE, SENTENCEPIECE_FILE
from ..errors import UserError

MASK = "<mask>"  # the tasks add it to the dictionary that they read
SUBWORD_MODELS = ((SENTENCEPIECE_FILE,), (ENCODER_FILE, MERGES_FILE))


def fingerprint(dictionary: Dictionary, folder: Path) -> dict[str, str]:
    """SHA-256 of a dictionary's symbols in their order, and of the subword model in `folder` where there is one.

    The counts of the symbols are left out, and so is <mask>, which the tasks add.

    Returns:
        The hex digests ``dictionary`` and, where there is one, ``subword model``.
    """
    symbols = "\n".join(symbol for symbol in dictionary.symbols if symbol != MASK)
    found = {"dictionary": hashlib.sha256(symbols.encode("utf-8", "surrogateescape")).hexdigest()}
    for names in SUBWORD_MODELS:
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            content = b"".join(file.read_bytes() for file in files)
            return {**found, "subword model": hashlib.sha256(content).hexdigest()}
    return found


def carried_fingerprint(task_state: Any) -> dict[str, str]:
    """The fingerprint in a checkpoint's ``task_state``; empty where it carries none.

    Raises:
        UserError: it holds something else.
    """
    found = {} if task_state is None else task_state
    found = found.get("vocabulary") or {} if isinstance(found, dict) else None
    if not isinstance(found, dict) or not all(isinstance(word, str) for item in found.items() for word in item):
        raise UserError("the checkpoint's task_state is not one that a task saved: it was edited by hand")
    return found


def check_same_vocabulary(here: Mapping[str, str], there: Mapping[str, str], data: str, checkpoint: str) -> None:
    """Compares the vocabulary of the data with the one that a checkpoint was trained with.

    Args:
        here: fingerprint of the data's vocabulary.
        there: fingerprint of the checkpoint's. A part that either lacks is not compared.
        data: what the message calls the data.
        checkpoint: what it calls the checkpoint.

    Raises:
        UserError: they differ.
    """
    for part in here.keys() & there.keys():
        if here[part] != there[part]:
            raise UserError(
                f"{data} has another {part} than {checkpoint} was trained with: prepare it again with that checkpoint "
                "as --tokenizer, or name the data that belongs to it"
            )
