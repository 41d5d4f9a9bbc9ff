"""Models that are named as on the Hub of Hugging Face, such as roberta-base: fetched, or how to get them."""

import re
from pathlib import Path

from ..checkpoints.sentence_modules import MODULES_FILE, SETTINGS_FILE
from ..data.tokenizer import SENTENCEPIECE_FILE, TOKENIZER_FILE, VOCABULARY_FILES
from ..errors import UserError

_OF_ENCODER = (
    "config.json",
    "sentence_*_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
    SENTENCEPIECE_FILE,
    "spiece.model",
    "tokenizer.model",
)
# What an import reads: no code, and no weights but those that hold plain tensors.
FILES = (
    *_OF_ENCODER,
    *(f"0_*/{name}" for name in _OF_ENCODER),  # sentence-transformers' older layout
    MODULES_FILE,
    SETTINGS_FILE,
    "*/config.json",
    *(f"fairseq/{name}" for name in VOCABULARY_FILES),
)
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def here(source: Path) -> Path:
    """What is at a path; where nothing is, and it can be a name on the Hub, the model of that name, fetched once.

    NAME and OWNER/NAME can be names, but not files ending in .pt, nor paths in a folder that is here.

    Raises:
        UserError: it cannot be fetched; the message says how to get it.
    """
    name = source.as_posix()
    in_folder = "/" in name and source.parent.is_dir()
    if source.exists() or in_folder or source.suffix == ".pt" or not _NAME.fullmatch(name):
        return source
    nothing = f"there is no file or folder {name}"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(f"{nothing}, and to fetch a model of that name: pip install huggingface_hub") from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"{nothing}, and the model of that name could not be fetched from the Hub ({reason}): where it can be "
            f"reached, hf download {name} --local-dir {source.name}; then name that folder"
        ) from error
