"""Which vocabulary a model was trained with. Its shapes do not tell: two vocabularies may have the same size."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from ..data.dictionaries import without_mask
from ..data.tokenizer import subword_model_options
from ..errors import UserError
from .task_state import read_task_state


def digest_vocabulary(dictionary: Dictionary, folder: Path) -> dict[str, str]:
    """SHA-256 of a dictionary's symbols in their order, and of the subword model in `folder` where there is one.

    The counts of the symbols are left out, and so is <mask>, which the tasks add.

    Returns:
        The digests ``dictionary`` and, where there is one, ``subword model``.
    """
    symbols = "\n".join(without_mask(dictionary))
    found = {"dictionary": hashlib.sha256(symbols.encode("utf-8", "surrogateescape")).hexdigest()}
    options = subword_model_options(folder)
    content = b"".join(Path(path).read_bytes() for option, path in options.items() if option != "bpe")
    return {**found, "subword model": hashlib.sha256(content).hexdigest()} if options else found


def check_vocabulary_of(state: Mapping[str, Any], here: Mapping[str, str], data: str, checkpoint: str) -> None:
    """As ``check_same_vocabulary``, with the content of a checkpoint in place of its digests."""
    check_same_vocabulary(here, read_task_state(state.get("task_state"))["vocabulary"], data, checkpoint)


def check_same_vocabulary(
    here: Mapping[str, str], there: Mapping[str, str], data: str, checkpoint: str, instead: str = ""
) -> None:
    """Compares the vocabulary of the data with the one that a checkpoint was trained with.

    Args:
        here: digests of the data's vocabulary.
        there: those of the checkpoint's. A part that either lacks is not compared.
        data: what the message calls the data.
        checkpoint: what it calls the checkpoint.
        instead: what it says at its end, of what else the user may want.

    Raises:
        UserError: they differ.
    """
    for part in differing_parts(here, there):
        raise UserError(
            f"{data} has another {part} than {checkpoint} was trained with: prepare it again with --tokenizer and "
            f"that checkpoint, or name the data that belongs to it{instead}"
        )


def differing_parts(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The parts of two vocabularies, as ``digest_vocabulary`` names them, that both have and that differ."""
    return [part for part in here if part in there and here[part] != there[part]]
