"""Which vocabulary a model was trained with. Its shapes do not tell: two vocabularies may have the same size."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from fairseq.data import Dictionary

from ..data.dictionaries import without_mask
from ..data.tokenizer import ENCODER_FILE, MERGES_FILE, SENTENCEPIECE_FILE, TOKENIZER_FILE
from ..errors import UserError

# The kinds of subword models, and fairseq's options for their files by the names that these have beside a dictionary.
SUBWORD_MODELS = {
    "sentencepiece": {"sentencepiece_model": SENTENCEPIECE_FILE},
    "gpt2": {"gpt2_encoder_json": ENCODER_FILE, "gpt2_vocab_bpe": MERGES_FILE},
    "tokenizers": {"tokenizers_file": TOKENIZER_FILE},
}
# What a folder without one holds.
NO_SUBWORD_MODEL = f"no {SENTENCEPIECE_FILE} or {TOKENIZER_FILE}, nor {ENCODER_FILE} with {MERGES_FILE}"


def subword_model_options(folder: Path, kind: str | None = None) -> dict[str, str]:
    """fairseq's options for the subword model in a folder, "bpe" among them; none where it has none of that kind."""
    for name, files in SUBWORD_MODELS.items():
        paths = {option: folder / file for option, file in files.items()}
        if kind in (None, name) and all(path.is_file() for path in paths.values()):
            return {"bpe": name, **{option: str(path) for option, path in paths.items()}}
    return {}


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


def check_same_vocabulary(here: Mapping[str, str], there: Mapping[str, str], data: str, checkpoint: str) -> None:
    """Compares the vocabulary of the data with the one that a checkpoint was trained with.

    Args:
        here: digests of the data's vocabulary.
        there: those of the checkpoint's. A part that either lacks is not compared.
        data: what the message calls the data.
        checkpoint: what it calls the checkpoint.

    Raises:
        UserError: they differ.
    """
    for part in here.keys() & there.keys():
        if here[part] != there[part]:
            raise UserError(
                f"{data} has another {part} than {checkpoint} was trained with: prepare it again with --tokenizer and "
                "that checkpoint, or name the data that belongs to it"
            )
